"""The one write behind the end of steps: steps, jobs of those released, counters of their runs.

Rows are found by arrays, never by a join: see the comments of `lifecycle._lease`. The arrays are in
the order of the ids, so that a search by halves finds the place of a row; they are of types of one
size and hold no NULL, so that an element is found without a walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runledger_core.workflows import DOOMED_CODE

from .._rows import Statement
from .._whole import whole_or_error
from ..wakeup import COUNT_WOKEN
from ._graph import STEP_JOB_COLUMNS
from ._run_status import status_of
from ._waiters import COUNT_WAITERS_WOKEN


@dataclass(frozen=True, slots=True)
class SettledRow:
    """How many were told: sleeping workers of new jobs, waiters for runs that have ended."""

    woken: int
    waiters_woken: int
    is_whole: bool


# What becomes of each step, in the order of their ids: so jobs are made, and claimed, in the order
# in which their steps were enqueued. The arrays are cast once, not for each row.
_CHANGED: Final = """
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() AS at
    ), given AS MATERIALIZED (
        SELECT
            %(statuses)s::runledger.workflow_step_status[] AS statuses,
            %(pending)s::int4[] AS pending, %(unsatisfied)s::int4[] AS unsatisfied
    ), changing AS MATERIALIZED (
        SELECT
            o.*,
            CASE
                WHEN g.statuses[o.place] = 'ENQUEUED' AND o.execution_kind = 'EXTERNAL'
                    THEN 'WAITING_FOR_EXTERNAL'
                ELSE g.statuses[o.place]
            END AS status,
            g.pending[o.place] AS pending, g.unsatisfied[o.place] AS unsatisfied
        FROM (
            SELECT
                s.id, s.workflow_run_id, s.status AS old_status, s.execution_kind, s.job_type,
                s.organization_id, s.payload, s.priority, s.max_attempts, s.timeout_seconds,
                s.stage, s.trace_context, width_bucket(s.id, %(step_ids)s::uuid[]) AS place
            FROM runledger.workflow_steps AS s
            WHERE s.id = ANY (%(step_ids)s::uuid[])
            ORDER BY s.id
        ) AS o
        CROSS JOIN given AS g
    ), changed AS MATERIALIZED (
        SELECT c.*, CASE WHEN c.status = 'ENQUEUED' THEN runledger.uuidv7() END AS job_id
        FROM changing AS c
    )
"""

# The job gets the payload of its step, and from then on has it.
_WRITTEN: Final = f"""
    , places AS (
        SELECT
            array_agg(o.id) AS step_ids, array_agg(o.status) AS statuses,
            -- The step's own id stands for none.
            array_agg(coalesce(o.job_id, o.id)) AS job_ids,
            array_agg(o.pending) AS pending, array_agg(o.unsatisfied) AS unsatisfied
        FROM (SELECT c.* FROM changed AS c ORDER BY c.id) AS o
    ), written AS (
        UPDATE runledger.workflow_steps AS s
        SET
            (status, job_id, payload, released_at, finished_at, dependency_count_pending,
                dependency_count_unsatisfied, status_reason, last_error_code, updated_at) = (
                SELECT
                    n.status,
                    CASE WHEN n.status = 'ENQUEUED' THEN p.job_ids[n.place] ELSE s.job_id END,
                    CASE WHEN n.status <> 'ENQUEUED' THEN s.payload END,
                    CASE WHEN n.is_released THEN k.at ELSE s.released_at END,
                    CASE WHEN n.has_ended THEN k.at END,
                    CASE WHEN s.status = 'BLOCKED' THEN p.pending[n.place]
                        ELSE s.dependency_count_pending END,
                    CASE WHEN s.status = 'BLOCKED' THEN p.unsatisfied[n.place]
                        ELSE s.dependency_count_unsatisfied END,
                    CASE WHEN n.is_doomed THEN '{DOOMED_CODE}' ELSE s.status_reason END,
                    CASE WHEN n.is_doomed THEN '{DOOMED_CODE}' ELSE s.last_error_code END,
                    k.at
                FROM (
                    SELECT
                        t.place, p.statuses[t.place] AS status,
                        p.statuses[t.place] IN ('ENQUEUED', 'WAITING_FOR_EXTERNAL') AS is_released,
                        p.statuses[t.place] IN ('SUCCEEDED', 'FAILED', 'CANCELED') AS has_ended,
                        s.status = 'BLOCKED' AND p.statuses[t.place] = 'CANCELED' AS is_doomed
                    FROM (SELECT width_bucket(s.id, p.step_ids) AS place OFFSET 0) AS t
                ) AS n
            )
        FROM places AS p
        CROSS JOIN clock AS k
        WHERE s.id = ANY (%(step_ids)s::uuid[])
        RETURNING s.id
    ), made_due AS (
        INSERT INTO runledger.job_queue ({STEP_JOB_COLUMNS})
        SELECT
            c.job_id, c.job_type, c.organization_id, c.workflow_run_id, c.payload, c.priority,
            c.max_attempts, c.timeout_seconds, k.at, true, c.stage, k.at, k.at, c.trace_context
        FROM changed AS c
        CROSS JOIN clock AS k
        WHERE c.job_id IS NOT NULL
        ORDER BY c.job_id
        RETURNING job_type, is_ready
    )
"""

# Counters are changed by what this statement changes: the run's row is locked already, and so is as
# this statement sees it. Its status follows from them.
_COUNTED: Final = f"""
    , sums AS MATERIALIZED (
        SELECT
            c.workflow_run_id,
            count(*) FILTER (WHERE c.status IN ('SUCCEEDED', 'FAILED', 'CANCELED')) AS ended,
            count(*) FILTER (WHERE c.status = 'WAITING_FOR_EXTERNAL')
                - count(*) FILTER (WHERE c.old_status = 'WAITING_FOR_EXTERNAL') AS waiting,
            count(*) FILTER (WHERE c.status = 'FAILED') AS failed,
            count(*) FILTER (WHERE c.status = 'CANCELED') AS canceled
        FROM changed AS c
        GROUP BY c.workflow_run_id
    ), counted AS MATERIALIZED (
        SELECT
            w.id,
            (w.steps_open - m.ended)::int4 AS steps_open,
            (w.steps_waiting_external + m.waiting)::int4 AS steps_waiting_external,
            (w.steps_failed + m.failed)::int4 AS steps_failed,
            (w.steps_canceled + m.canceled)::int4 AS steps_canceled
        FROM sums AS m
        CROSS JOIN LATERAL (
            SELECT r.* FROM runledger.workflow_runs AS r WHERE r.id = m.workflow_run_id OFFSET 0
        ) AS w
    ), run_places AS (
        SELECT
            array_agg(o.id) AS run_ids, array_agg(o.status) AS statuses,
            array_agg(o.steps_open) AS steps_open,
            array_agg(o.steps_waiting_external) AS steps_waiting_external,
            array_agg(o.steps_failed) AS steps_failed,
            array_agg(o.steps_canceled) AS steps_canceled
        FROM (
            SELECT
                n.*,
                {status_of("n")}::runledger.workflow_run_status AS status
            FROM counted AS n
            ORDER BY n.id
        ) AS o
    ), runs AS (
        UPDATE runledger.workflow_runs AS w
        SET
            (status, steps_open, steps_waiting_external, steps_failed, steps_canceled,
                finished_at, result, updated_at) = (
                SELECT
                    p.statuses[t.place], p.steps_open[t.place],
                    p.steps_waiting_external[t.place], p.steps_failed[t.place],
                    p.steps_canceled[t.place],
                    CASE WHEN p.steps_open[t.place] = 0 THEN k.at END,
                    CASE WHEN p.statuses[t.place] = 'SUCCEEDED' AND w.result_step_key IS NOT NULL
                        THEN (
                            SELECT coalesce(s.output, (
                                SELECT q.output FROM runledger.job_queue AS q WHERE q.id = s.job_id
                            ))
                            FROM runledger.workflow_steps AS s
                            WHERE s.workflow_run_id = w.id AND s.step_key = w.result_step_key
                        )
                    END,
                    k.at
                FROM (SELECT width_bucket(w.id, p.run_ids) AS place OFFSET 0) AS t
            )
        FROM run_places AS p
        CROSS JOIN clock AS k
        WHERE w.id = ANY (ARRAY(SELECT n.id FROM counted AS n))
        RETURNING w.id, w.status
    ), ended_runs AS (
        SELECT r.id FROM runs AS r WHERE r.status IN ('SUCCEEDED', 'COMPLETED_WITH_ERRORS')
    )
"""

# A trigger of the host may have kept the write of a step, a job or a run from its row.
_IS_WHOLE: Final = """
    (SELECT count(*) FROM written) = (SELECT count(*) FROM changed)
    AND (SELECT count(*) FROM made_due) = (SELECT count(c.job_id) FROM changed AS c)
    AND (SELECT count(*) FROM runs) = (SELECT count(*) FROM counted)
"""

SETTLE_STEPS: Final = Statement(
    f"""
    {_CHANGED} {_WRITTEN} {_COUNTED}
    SELECT
        ({COUNT_WOKEN}) AS woken,
        ({COUNT_WAITERS_WOKEN}) AS waiters_woken,
        {whole_or_error(_IS_WHOLE)} AS is_whole
    """,
    SettledRow,
)
