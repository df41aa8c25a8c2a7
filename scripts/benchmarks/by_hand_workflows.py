"""Workflows as a person writes them in a day: steps that count what they wait for, and edges.

No history, no fence, no lease renewal, no failures: a floor, as `by_hand` is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg.types.json import Jsonb

from .graphs import GRAPHS
from .loops import PAYLOAD, Connection, Loop, Step

SCHEMA: Final = """
CREATE TABLE hand.runs (
    id int8 PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    status text NOT NULL DEFAULT 'running',
    steps_open int4 NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
) WITH (fillfactor = 85);
CREATE TABLE hand.steps (
    run_id int8 NOT NULL,
    place int4 NOT NULL,
    status text NOT NULL,
    pending int4 NOT NULL,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempt int4 NOT NULL DEFAULT 0,
    worker text,
    lease_expires_at timestamptz,
    finished_at timestamptz,
    payload jsonb NOT NULL,
    PRIMARY KEY (run_id, place)
) WITH (fillfactor = 85);
CREATE INDEX ON hand.steps (run_at, run_id, place) WHERE status = 'ready';
CREATE TABLE hand.edges (
    run_id int8 NOT NULL,
    prerequisite int4 NOT NULL,
    dependent int4 NOT NULL,
    PRIMARY KEY (run_id, prerequisite, dependent)
);
"""
# Any number of runs of one graph, in one statement.
_ENQUEUE: Final = """
WITH run AS (
    INSERT INTO hand.runs (steps_open)
    SELECT cardinality(%(pending)s::int4[]) FROM generate_series(1, %(runs)s)
    RETURNING id
), steps AS (
    INSERT INTO hand.steps (run_id, place, status, pending, payload)
    SELECT r.id, s.place, CASE s.pending WHEN 0 THEN 'ready' ELSE 'blocked' END, s.pending,
        %(payload)s
    FROM run AS r CROSS JOIN unnest(%(pending)s::int4[]) WITH ORDINALITY AS s(pending, place)
)
INSERT INTO hand.edges (run_id, prerequisite, dependent)
SELECT r.id, e.prerequisite, e.dependent
FROM run AS r
CROSS JOIN unnest(%(prerequisites)s::int4[], %(dependents)s::int4[])
    AS e(prerequisite, dependent)
"""
_TAKE: Final = """
UPDATE hand.steps AS s SET
    status = 'running', attempt = attempt + 1, worker = 'me',
    lease_expires_at = now() + interval '1 minute'
FROM (
    SELECT run_id, place FROM hand.steps
    WHERE status = 'ready' AND run_at <= now()
    ORDER BY run_at, run_id, place
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
) AS t
WHERE s.run_id = t.run_id AND s.place = t.place
RETURNING s.run_id, s.place, s.payload
"""
# Steps end, those that waited for them are counted down, and runs are; how many of those ended.
_FINISH: Final = """
WITH ended AS (
    SELECT * FROM unnest(%(run_ids)s::int8[], %(places)s::int4[]) AS n(run_id, place)
), finished AS (
    UPDATE hand.steps AS s SET
        status = 'done', finished_at = now(), worker = NULL, lease_expires_at = NULL
    FROM ended AS n WHERE s.run_id = n.run_id AND s.place = n.place
), waiting AS (
    SELECT e.run_id, e.dependent, count(*)::int4 AS ended
    FROM ended AS n
    JOIN hand.edges AS e ON e.run_id = n.run_id AND e.prerequisite = n.place
    GROUP BY e.run_id, e.dependent
), released AS (
    UPDATE hand.steps AS s SET
        pending = s.pending - w.ended,
        status = CASE s.pending WHEN w.ended THEN 'ready' ELSE s.status END,
        run_at = CASE s.pending WHEN w.ended THEN now() ELSE s.run_at END
    FROM waiting AS w WHERE s.run_id = w.run_id AND s.place = w.dependent
), runs AS (
    UPDATE hand.runs AS r SET
        steps_open = r.steps_open - n.ended,
        status = CASE r.steps_open WHEN n.ended THEN 'done' ELSE r.status END,
        finished_at = CASE r.steps_open WHEN n.ended THEN now() END
    FROM (SELECT run_id, count(*)::int4 AS ended FROM ended GROUP BY run_id) AS n
    WHERE r.id = n.run_id
    RETURNING r.status
)
SELECT count(*) FROM runs WHERE status = 'done'
"""


def flow(dsn: str, *, graph: str, open_runs: int, batch: int) -> Loop:
    """Keep so many runs open on one connection: finish, begin new runs, take; one commit for all.

    Args:
        dsn: The database's URL.
        graph: One of GRAPHS.
        open_runs: Runs at once.
        batch: Most steps to take.
    """

    @contextmanager
    def open_step() -> Generator[Step]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield _round(connection, _graph_parameters(graph), open_runs, batch)

    return Loop(open_step)


def _graph_parameters(graph: str) -> dict[str, object]:
    waits = GRAPHS[graph]()
    return {
        "pending": [len(needed) for needed in waits],
        # Places count from 1.
        "prerequisites": [other + 1 for needed in waits for other in needed],
        "dependents": [place for place, needed in enumerate(waits, start=1) for _ in needed],
        "payload": Jsonb(PAYLOAD),
    }


def _round(connection: Connection, graph: dict[str, object], open_runs: int, batch: int) -> Step:
    taken: list[tuple[int, int]] = []
    connection.execute(_ENQUEUE, graph | {"runs": open_runs})

    def step() -> int:
        ended = len(taken)
        with connection.transaction():
            if taken:
                run_ids, places = zip(*taken, strict=True)
                parameters = {"run_ids": list(run_ids), "places": list(places)}
                row = connection.execute(_FINISH, parameters).fetchone()
                if row and row[0]:
                    connection.execute(_ENQUEUE, graph | {"runs": row[0]})
            rows = connection.execute(_TAKE, {"limit": batch}).fetchall()
        taken[:] = [(run_id, place) for run_id, place, _ in rows]
        # The first round only takes; a loop ends with a step of nothing.
        return ended or 1

    return step
