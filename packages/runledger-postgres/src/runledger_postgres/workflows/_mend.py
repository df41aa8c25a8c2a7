"""The repair of a run that we hold: what differs is put right, ends by the engine's own write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core.workflows import WorkflowStepStatus

from .._rows import NoRow, Statement
from .._session import Bound, Transaction
from ._reached import reach_from_jobs, reach_from_steps
from ._run_status import status_of
from ._settle import settle
from ._settle_steps import SETTLE_STEPS, SettledRow
from ._verify import DifferenceRow, Mend
from ._waiters import COUNT_WAITERS_WOKEN

# A step that is to end with its job is put where the end of a job finds it.
MEND_STEPS: Final = Statement(
    """
    WITH given AS (
        SELECT n.id, n.status::runledger.workflow_step_status AS status
        FROM unnest(%(step_ids)s::uuid[], %(statuses)s::text[]) AS n(id, status)
    )
    UPDATE runledger.workflow_steps AS s
    SET
        status = g.status,
        finished_at = CASE
            WHEN g.status IN ('SUCCEEDED', 'FAILED', 'CANCELED')
                THEN coalesce(s.finished_at, clock_timestamp())
        END,
        status_reason = CASE
            WHEN g.status = 'CANCELED' AND s.job_id IS NULL
                THEN coalesce(s.status_reason, 'CANCELED')
            ELSE s.status_reason
        END,
        updated_at = clock_timestamp()
    FROM given AS g
    WHERE s.id = g.id
    """,
    NoRow,
)

MEND_COUNTERS: Final = Statement(
    """
    WITH counted AS MATERIALIZED (
        SELECT s.id, c.total, c.pending, c.unsatisfied
        FROM runledger.workflow_steps AS s
        CROSS JOIN LATERAL (
            SELECT
                count(*)::int4 AS total,
                (count(*) FILTER (
                    WHERE p.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')
                ))::int4 AS pending,
                (count(*) FILTER (
                    WHERE e.release_mode = 'ON_SUCCESS' AND p.status IN ('FAILED', 'CANCELED')
                ))::int4 AS unsatisfied
            FROM runledger.workflow_step_dependencies AS e
            CROSS JOIN LATERAL (
                SELECT t.status FROM runledger.workflow_steps AS t
                WHERE t.id = e.prerequisite_step_id
                OFFSET 0
            ) AS p
            WHERE e.workflow_run_id = s.workflow_run_id AND e.dependent_step_id = s.id
        ) AS c
        WHERE s.workflow_run_id = %(run_id)s::uuid
            AND (s.dependency_count_total, s.dependency_count_pending,
                s.dependency_count_unsatisfied) <> (c.total, c.pending, c.unsatisfied)
    )
    UPDATE runledger.workflow_steps AS s
    SET
        dependency_count_total = c.total,
        dependency_count_pending = c.pending,
        dependency_count_unsatisfied = c.unsatisfied,
        updated_at = clock_timestamp()
    FROM counted AS c
    WHERE s.id = c.id
        AND NOT EXISTS (
            SELECT FROM runledger.workflow_runs AS w
            WHERE w.id = %(run_id)s::uuid AND w.status = 'CANCELED'
        )
    """,
    NoRow,
)


@dataclass(frozen=True, slots=True)
class MendedRunRow:
    """How many were told of the end of the run."""

    waiters_woken: int


MEND_RUN: Final = Statement(
    f"""
    WITH stored AS MATERIALIZED (
        SELECT w.status IN ('RUNNING', 'WAITING_FOR_EXTERNAL') AS was_open
        FROM runledger.workflow_runs AS w
        WHERE w.id = %(run_id)s::uuid
    ), sums AS MATERIALIZED (
        SELECT
            (count(*) FILTER (WHERE s.status NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')))::int4
                AS steps_open,
            (count(*) FILTER (WHERE s.status = 'WAITING_FOR_EXTERNAL'))::int4
                AS steps_waiting_external,
            (count(*) FILTER (WHERE s.status = 'FAILED'))::int4 AS steps_failed,
            (count(*) FILTER (WHERE s.status = 'CANCELED'))::int4 AS steps_canceled
        FROM runledger.workflow_steps AS s
        WHERE s.workflow_run_id = %(run_id)s::uuid
    ), counted AS MATERIALIZED (
        SELECT
            m.*,
            {status_of("m")}::runledger.workflow_run_status AS status
        FROM sums AS m
    ), mended AS (
        UPDATE runledger.workflow_runs AS w
        SET
            status = CASE WHEN w.status = 'CANCELED' THEN w.status ELSE n.status END,
            steps_open = n.steps_open,
            steps_waiting_external = n.steps_waiting_external,
            steps_failed = n.steps_failed,
            steps_canceled = n.steps_canceled,
            finished_at = CASE
                WHEN w.status = 'CANCELED' OR n.steps_open = 0
                    THEN coalesce(w.finished_at, clock_timestamp())
            END,
            result = CASE
                WHEN w.status <> 'CANCELED' AND n.status = 'SUCCEEDED' THEN coalesce((
                    SELECT coalesce(s.output, q.output)
                    FROM runledger.workflow_steps AS s
                    LEFT JOIN runledger.job_queue AS q ON q.id = s.job_id
                    WHERE s.workflow_run_id = w.id AND s.step_key = w.result_step_key
                -- The job that had made it may be deleted.
                ), w.result)
            END,
            updated_at = clock_timestamp()
        FROM counted AS n
        WHERE w.id = %(run_id)s::uuid
        RETURNING w.id, w.steps_open
    ), ended_runs AS (
        SELECT m.id FROM mended AS m CROSS JOIN stored AS o WHERE o.was_open AND m.steps_open = 0
    )
    SELECT ({COUNT_WAITERS_WOKEN}) AS waiters_woken
    """,
    MendedRunRow,
)


def mend_run(work: Transaction, run_id: UUID, found: Sequence[DifferenceRow]) -> None:
    """Put right what was found of a run that is locked; jobs to cancel are canceled already.

    Statuses first, then the counters that follow from them, so that what ends or is released next
    finds them in order.
    """
    written = {row.step_id: row.expected for row in found if row.mend is Mend.WRITE}
    ending = [row for row in found if row.mend is Mend.SETTLE]
    written |= {row.step_id: "ENQUEUED" for row in ending if row.stored != "ENQUEUED"}
    doomed = dict.fromkeys(_steps(found, Mend.DOOM), WorkflowStepStatus.CANCELED)
    parameters = {"step_ids": list(written), "statuses": list(written.values())}
    *_, from_jobs, from_steps = work.fetch_all(
        [
            Bound(MEND_STEPS, parameters),
            Bound(MEND_COUNTERS, {"run_id": run_id}),
            Bound(MEND_RUN, {"run_id": run_id}),
            reach_from_jobs([row.job_id for row in ending if row.job_id is not None]),
            reach_from_steps(doomed),
        ]
    )
    work.fetch_all([*settle(work, [*from_jobs, *from_steps]), *_release(found)])


def _release(found: Sequence[DifferenceRow]) -> list[Bound[SettledRow]]:
    step_ids = sorted(_steps(found, Mend.RELEASE))
    if not step_ids:
        return []
    parameters = {
        "step_ids": step_ids,
        "statuses": [WorkflowStepStatus.ENQUEUED] * len(step_ids),
        "pending": [0] * len(step_ids),
        "unsatisfied": [0] * len(step_ids),
    }
    return [Bound(SETTLE_STEPS, parameters)]


def _steps(found: Iterable[DifferenceRow], mend: Mend) -> set[UUID]:
    return {row.step_id for row in found if row.mend is mend and row.step_id is not None}
