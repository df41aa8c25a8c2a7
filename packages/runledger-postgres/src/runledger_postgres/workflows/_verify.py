"""Where what is stored of runs contradicts itself: read set-based, for a batch of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from .._rows import Statement, column
from .._session import Bound
from ..errors import QueryError
from ._run_status import status_of


@dataclass(frozen=True, slots=True)
class WorkflowDifference:
    """One thing that is stored of a run, or of a step, and that cannot be so.

    Attributes:
        run_id: The run.
        step_key: Its step; None of the run itself, and of a job that no step has.
        field: The column that differs; `job_status` is that of the step's job.
        stored: What it holds, as text; None for nothing.
        expected: What follows from the edges, the steps and their jobs.
        is_repaired: Whether it was put right by the call that found it.
        error: Why the run could not be repaired, if the database refused that; all of it is as it
            was then.
    """

    run_id: UUID
    step_key: str | None
    _: KW_ONLY
    field: str
    stored: str | None
    expected: str | None
    is_repaired: bool = False
    error: QueryError | None = None


class Mend(StrEnum):
    """How a difference is put right; each is one of the writes of a repair."""

    CANCEL_JOB = "CANCEL_JOB"
    """The job is open, but its run was canceled, or no step has it."""
    WRITE = "WRITE"
    """The step gets the expected status."""
    COUNT = "COUNT"
    """The step's counters are counted anew."""
    RUN = "RUN"
    """The run's counters and status are counted anew."""
    SETTLE = "SETTLE"
    """The step ends as its job did, with all that follows."""
    DOOM = "DOOM"
    """The step is canceled, with all that follows."""
    RELEASE = "RELEASE"
    """The step makes its job, or opens its gate."""


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """A difference, with the row to mend; nothing can be done where there is no `mend`."""

    run_id: UUID
    step_id: UUID | None
    job_id: UUID | None
    _: KW_ONLY
    step_key: str | None
    field: str
    stored: str | None
    expected: str | None
    mend: Mend | None = column(Mend)


# Where a step `t` of a run that goes on stands for those that wait for it, and for its run: it has
# not ended before it is stored so, and how it has ended is told by its job `j`. So a difference is
# told where it is, not again in all that follows from it.
_HAS_NEVER_RUN: Final = """(
                    t.execution_kind = 'JOB' AND t.job_id IS NULL
                    AND t.status IN ('SUCCEEDED', 'FAILED')
                )"""
_STANDING: Final = f"""
                CASE
                    WHEN {_HAS_NEVER_RUN} THEN 'BLOCKED'
                    WHEN t.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED') THEN t.status::text
                    WHEN j.status IN ('PENDING', 'LEASED') THEN 'ENQUEUED'
                    WHEN j.status = 'DEAD_LETTERED' THEN 'FAILED'
                    ELSE coalesce(j.status::text, t.status::text)
                END
"""
_OF_JOB: Final = """
                LEFT JOIN LATERAL (
                    SELECT q.status FROM runledger.job_queue AS q WHERE q.id = t.job_id OFFSET 0
                ) AS j ON true
"""

# One statement, so one snapshot: each transaction of the engine leaves all of this in order, so
# what is under way is no difference. Each row is looked up by its key, whatever the planner thinks
# of the tables.
_STEPS: Final = f"""
    WITH runs AS MATERIALIZED (
        SELECT
            w.id, w.status::text AS status, w.status = 'CANCELED' AS is_canceled, w.steps_open,
            w.steps_waiting_external, w.steps_failed, w.steps_canceled, w.finished_at
        FROM runledger.workflow_runs AS w
        WHERE w.id = ANY (%(run_ids)s::uuid[])
    ), steps AS MATERIALIZED (
        SELECT
            s.*, r.is_canceled, c.total, c.pending, c.unsatisfied,
            s.status IN ('SUCCEEDED', 'FAILED', 'CANCELED') AS has_ended
        FROM runs AS r
        CROSS JOIN LATERAL (
            SELECT
                t.id, t.workflow_run_id, t.step_key, t.execution_kind, t.status::text AS status,
                t.job_id, j.status::text AS job_status, {_HAS_NEVER_RUN} AS has_never_run,
                CASE WHEN r.is_canceled THEN t.status::text ELSE {_STANDING} END AS standing,
                t.dependency_count_total, t.dependency_count_pending,
                t.dependency_count_unsatisfied
            FROM runledger.workflow_steps AS t
            {_OF_JOB}
            WHERE t.workflow_run_id = r.id
            OFFSET 0
        ) AS s
        CROSS JOIN LATERAL (
            SELECT
                count(*) AS total,
                count(*) FILTER (WHERE p.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED'))
                    AS pending,
                count(*) FILTER (
                    WHERE e.release_mode = 'ON_SUCCESS' AND p.status IN ('FAILED', 'CANCELED')
                ) AS unsatisfied
            FROM runledger.workflow_step_dependencies AS e
            CROSS JOIN LATERAL (
                SELECT {_STANDING} AS status
                FROM runledger.workflow_steps AS t
                {_OF_JOB}
                WHERE t.id = e.prerequisite_step_id
                OFFSET 0
            ) AS p
            WHERE e.workflow_run_id = s.workflow_run_id AND e.dependent_step_id = s.id
        ) AS c
    ), expected AS MATERIALIZED (
        SELECT
            s.*,
            CASE
                WHEN s.job_status IN ('SUCCEEDED', 'CANCELED') THEN s.job_status
                WHEN s.job_status = 'DEAD_LETTERED' THEN 'FAILED'
                WHEN s.is_canceled AND (s.job_status IS NOT NULL OR NOT s.has_ended)
                    THEN 'CANCELED'
                WHEN s.job_status IS NOT NULL THEN 'ENQUEUED'
                -- Of a step whose job is gone nobody can tell.
                WHEN s.job_id IS NOT NULL OR s.is_canceled THEN s.status
                WHEN s.has_ended AND NOT s.has_never_run THEN s.status
                WHEN s.pending > 0 THEN 'BLOCKED'
                WHEN s.unsatisfied > 0 THEN 'CANCELED'
                WHEN s.execution_kind = 'EXTERNAL' THEN 'WAITING_FOR_EXTERNAL'
                ELSE 'ENQUEUED'
            END AS expected_status
        FROM steps AS s
    )
"""
_RUNS: Final = f"""
    , sums AS MATERIALIZED (
        SELECT
            s.workflow_run_id AS id,
            count(*) FILTER (WHERE s.standing NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED'))
                AS steps_open,
            count(*) FILTER (WHERE s.standing = 'WAITING_FOR_EXTERNAL') AS steps_waiting_external,
            count(*) FILTER (WHERE s.standing = 'FAILED') AS steps_failed,
            count(*) FILTER (WHERE s.standing = 'CANCELED') AS steps_canceled
        FROM steps AS s
        GROUP BY s.workflow_run_id
    ), counted AS MATERIALIZED (
        SELECT
            m.*,
            CASE WHEN r.is_canceled THEN 'CANCELED' ELSE {status_of("m")} END AS status
        FROM sums AS m
        JOIN runs AS r ON r.id = m.id
    )
"""
_DIFFERENCES: Final = """
    SELECT
        s.workflow_run_id AS run_id, s.id AS step_id, s.job_id, s.step_key, f.field, f.stored,
        f.expected, f.mend
    FROM expected AS s
    CROSS JOIN LATERAL (
        VALUES
            ('status', s.status, s.expected_status, CASE
                WHEN s.is_canceled THEN 'WRITE'
                WHEN s.job_status IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELED')
                    AND NOT s.has_ended THEN 'SETTLE'
                WHEN s.expected_status = 'CANCELED' AND NOT s.has_ended THEN 'DOOM'
                WHEN s.status = 'BLOCKED' AND s.job_id IS NULL THEN 'RELEASE'
                ELSE 'WRITE'
            END),
            ('job_status', s.job_status, CASE
                WHEN s.is_canceled AND s.job_status IN ('PENDING', 'LEASED') THEN 'CANCELED'
                -- The job of a released step is gone, or was never made.
                WHEN s.job_status IS NULL AND s.execution_kind = 'JOB' THEN CASE
                    WHEN s.status IN ('ENQUEUED', 'RUNNING')
                        AND s.expected_status = 'ENQUEUED' THEN 'PENDING'
                    WHEN s.job_id IS NOT NULL THEN
                        CASE s.status WHEN 'FAILED' THEN 'DEAD_LETTERED' ELSE s.status END
                END
                ELSE s.job_status
            END, CASE
                WHEN s.job_status IS NOT NULL THEN 'CANCEL_JOB'
                WHEN s.job_id IS NULL THEN 'RELEASE'
            END),
            ('dependency_count_total', s.dependency_count_total::text, s.total::text, 'COUNT'),
            ('dependency_count_pending', s.dependency_count_pending::text,
                s.pending::text, 'COUNT'),
            ('dependency_count_unsatisfied', s.dependency_count_unsatisfied::text,
                s.unsatisfied::text, 'COUNT')
    ) AS f(field, stored, expected, mend)
    -- A cancel leaves the counters of steps as they were.
    WHERE NOT (s.is_canceled AND f.mend = 'COUNT')
    UNION ALL
    SELECT r.id, NULL, NULL, NULL, f.field, f.stored, f.expected, 'RUN'
    FROM counted AS n
    JOIN runs AS r ON r.id = n.id
    CROSS JOIN LATERAL (
        VALUES
            ('status', r.status, n.status),
            ('steps_open', r.steps_open::text, n.steps_open::text),
            ('steps_waiting_external', r.steps_waiting_external::text,
                n.steps_waiting_external::text),
            ('steps_failed', r.steps_failed::text, n.steps_failed::text),
            ('steps_canceled', r.steps_canceled::text, n.steps_canceled::text),
            ('finished_at', r.finished_at::text, CASE
                WHEN n.status NOT IN ('RUNNING', 'WAITING_FOR_EXTERNAL')
                    THEN coalesce(r.finished_at::text, 'an instant')
            END)
    ) AS f(field, stored, expected)
    UNION ALL
    SELECT r.id, NULL, j.id, NULL, 'job_status', j.status::text, 'CANCELED', 'CANCEL_JOB'
    FROM runs AS r
    CROSS JOIN LATERAL (
        SELECT q.id, q.status
        FROM runledger.job_queue AS q
        WHERE q.workflow_run_id = r.id AND q.status IN ('PENDING', 'LEASED')
        OFFSET 0
    ) AS j
    WHERE NOT EXISTS (SELECT FROM runledger.workflow_steps AS s WHERE s.job_id = j.id OFFSET 0)
"""

FIND_DIFFERENCES: Final = Statement(
    f"""
    {_STEPS} {_RUNS}
    SELECT d.*
    FROM ({_DIFFERENCES}) AS d
    WHERE d.stored IS DISTINCT FROM d.expected
    ORDER BY d.run_id, d.step_key, d.field, d.job_id
    """,
    DifferenceRow,
)


def find_differences(run_ids: Sequence[UUID]) -> Bound[DifferenceRow]:
    """Return the read of all differences of some runs, each run's own after those of its steps."""
    return Bound(FIND_DIFFERENCES, {"run_ids": list(run_ids)})
