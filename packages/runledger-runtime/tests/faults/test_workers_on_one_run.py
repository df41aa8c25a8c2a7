"""Several workers on one run take turns at its row; none of them spins while another has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from _faults import define, eventually, registry_of

from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres import connect_pool
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_runtime import JobsConfig, Supervisor

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

JOB_TYPE = "workflow.work"
CONCURRENCY = 8
IS_OVER = "SELECT status = 'SUCCEEDED' FROM runledger.workflow_runs"
# Of rounds and of looks for work, BEGIN and COMMIT apart; not of heartbeats, nor of this test.
COUNT_STATEMENTS = """
SELECT coalesce(sum(calls), 0)::int4 FROM pg_stat_statements
WHERE query ~ 'runledger.(job_queue|workflow_)' AND query !~ '^SELECT status'
"""
HOLD_RUN = "SELECT id FROM runledger.workflow_runs FOR NO KEY UPDATE"
COUNT_ENDED = "SELECT count(*) >= %s FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
# A step that is ended alone takes seven; that eight end together in most rounds makes up for the
# rounds that found the run's row held, and for the looks of workers that were woken for nothing.
MOST_PER_STEP = {1: 2.0, 2: 4.0, 6: 8.0}


@pytest.fixture
def dsn(own_server: Callable[..., Any]) -> str:
    return own_server(shared_preload_libraries="pg_stat_statements").dsn


@pytest.fixture
def counting(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
        yield connection


def wide(steps: int) -> WorkflowRunEnqueue:
    builder = WorkflowDagBuilder("workflow.wide", {})
    for number in range(steps):
        builder = builder.job(str(number), JOB_TYPE, {})
    return builder.build()


def layered(steps: int) -> WorkflowRunEnqueue:
    """Layers of twenty; each step waits for two of the layer before."""
    builder = WorkflowDagBuilder("workflow.layered", {})
    for number in range(steps):
        layer = number // 20 * 20
        before = {layer - 20 + number % 20, layer - 20 + (number + 7) % 20} if layer else set()
        builder = builder.job(str(number), JOB_TYPE, {}, after_success=map(str, before))
    return builder.build()


@contextmanager
def workers(dsn: str, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for number in range(count):
            pool = stack.enter_context(connect_pool(dsn, max_size=1))
            config = JobsConfig(f"worker-{number}", max_global_concurrency=CONCURRENCY)
            builder = Supervisor.builder(pool, config).with_registry(
                registry_of({JOB_TYPE: lambda *_: None})
            )
            stack.enter_context(builder.disable_scheduler().disable_reaper().build())
        yield


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("graph", [wide, layered])
def test_workers_do_not_spin(
    count: int,
    dsn: str,
    graph: Callable[[int], WorkflowRunEnqueue],
    counting: psycopg.Connection[Any],
    scaled: Callable[..., int],
) -> None:
    steps = scaled(ci=500, full=10_000)
    define(counting, JOB_TYPE)
    enqueue_workflow_run(counting, graph(steps))
    counting.execute("SELECT pg_stat_statements_reset()")

    with workers(dsn, count):
        eventually(lambda: counting.execute(IS_OVER).fetchone() == (True,), seconds=600)

    (statements,) = counting.execute(COUNT_STATEMENTS).fetchone() or (0,)
    print(f"{statements / steps:.2f} statements a step")  # noqa: T201  # with a failure
    assert steps / CONCURRENCY < statements < MOST_PER_STEP[count] * steps


def test_workers_rest_while_somebody_holds_their_run(
    dsn: str, counting: psycopg.Connection[Any]
) -> None:
    define(counting, JOB_TYPE)
    enqueue_workflow_run(counting, layered(2_000))

    with workers(dsn, 2), psycopg.connect(dsn) as holder:
        eventually(lambda: counting.execute(COUNT_ENDED, [100]).fetchone() == (True,))
        holder.execute(HOLD_RUN)
        counting.execute("SELECT pg_stat_statements_reset()")
        holder.execute("SELECT pg_sleep(2)")
        (statements,) = counting.execute(COUNT_STATEMENTS).fetchone() or (0,)
        holder.rollback()
        eventually(lambda: counting.execute(IS_OVER).fetchone() == (True,))

    # A dozen tries each, ever longer apart; without a rest there are thousands.
    assert 2 < statements < 400
