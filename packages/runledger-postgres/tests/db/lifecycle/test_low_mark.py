"""Claims that begin at a mark: what they find, what they leave, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from runledger_core import JobCompletion, JobEnqueue, JobFailure, Scope
from runledger_postgres import enqueue_jobs
from runledger_postgres._session import Bound
from runledger_postgres.lifecycle import (
    ClaimRequest,
    ReadyMark,
    RoundResult,
    SuccessEntry,
    complete_job_failure,
    complete_job_success,
    release_job,
    requeue_job,
    run_worker_round,
)
from runledger_postgres.lifecycle._claim import claim_statements

if TYPE_CHECKING:
    from conftest import Queue

ROUNDS = 20
NIL = UUID(int=0)
NOW = "clock_timestamp()"


@pytest.fixture
def engine(queue: Queue) -> psycopg.Connection[Any]:
    """A connection as the engine has it."""
    return queue.database.connect(autocommit=True)


@contextmanager
def old_snapshot(queue: Queue) -> Iterator[None]:
    """Let a host's transaction keep all that dies from now on."""
    connection = queue.database.connect()
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT FROM runledger.job_queue LIMIT 1")
    yield
    connection.rollback()
    connection.close()


def request(limit: int = 10, *, types: tuple[str, ...] = ("test.job",), **where: Any):
    return ClaimRequest("w", list(types), limit=limit, window=limit, lease_ttl_seconds=600, **where)


def live_through(queue: Queue, engine: psycopg.Connection[Any], count: int) -> dict[str, ReadyMark]:
    """Enqueue, claim and complete so many jobs; return the marks behind them."""
    marks: dict[str, ReadyMark] = {}
    done: list[SuccessEntry] = []
    while count or done:
        born = min(count, 1_000)
        count -= born
        queue.execute(
            "INSERT INTO runledger.job_queue (job_type, max_attempts)"
            " SELECT 'test.job', 3 FROM generate_series(1, %s)",
            born,
        )
        result = run_worker_round(
            engine, successes=done, claim=request(1_000, marks=marks, has_look=False)
        )
        done = [SuccessEntry(job.lease, JobCompletion()) for job in result.claimed]
        marks |= result.last_taken
    return marks


def insert(queue: Queue, at: str = NOW, *, priority: int = 0, is_ready: bool = True) -> UUID:
    return queue.value(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, priority, next_run_at, is_ready)"
        f" VALUES ('test.job', 3, %s, {at}, %s) RETURNING id",
        priority,
        is_ready,
    )


def mark_at(queue: Queue, job_id: UUID) -> Mapping[str, ReadyMark]:
    job = queue.job(job_id)
    return {"test.job": ReadyMark(~job.priority, job.next_run_at, id=job_id)}


def ids(result: RoundResult) -> list[UUID]:
    return [job.id for job in result.claimed]


class PlanReader:
    """Runs the statements of a claim and counts what they read, with a plan for any values."""

    def __init__(self, connection: psycopg.Connection[Any], *, mode: str) -> None:
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        self._connection = connection
        self._prepared: dict[str, str] = {}

    def blocks(self, request: ClaimRequest) -> int:
        """Return the blocks that flip, claim and look read; what they change is undone."""
        with self._connection.transaction(force_rollback=True):
            return sum(self._blocks(bound) for bound in claim_statements(request))

    def _blocks(self, bound: Bound[Any]) -> int:
        names = list(bound.params)
        if not names:
            # A setting.
            self._connection.execute(bound.statement.sql)
            return 0
        numbers = {name: f"${index}" for index, name in enumerate(names, 1)}
        sql = bound.statement.sql
        for name, number in numbers.items():
            sql = sql.replace(f"%({name})s", number)
        if sql not in self._prepared:
            self._prepared[sql] = f"plan_{len(self._prepared)}"
            self._connection.execute(f"PREPARE {self._prepared[sql]} AS {sql}".encode())
        places = ", ".join(["%s"] * len(names))
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {self._prepared[sql]}({places})"
        cursor = psycopg.ClientCursor(self._connection)
        ((plan,),) = cursor.execute(explain.encode(), list(bound.params.values())).fetchall()[0]
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


def test_marked_rounds_read_little_however_much_lived_under_an_old_snapshot(
    queue: Queue, engine: psycopg.Connection[Any], scaled: Callable[..., int]
):
    count = scaled(ci=20_000, full=200_000)
    with old_snapshot(queue):
        marks = live_through(queue, engine, count)
        insert(queue, priority=100)
        insert(queue, priority=100)
        modes = ("force_generic_plan", "force_custom_plan")
        connect = queue.database.connect_directly
        readers = [PlanReader(connect(autocommit=True), mode=mode) for mode in modes]

        # First those that must read little: each round leaves rows that were rolled back.
        for reader in readers:
            assert sum(reader.blocks(request(marks=marks)) for _ in range(ROUNDS)) < 1_000
        for reader in readers:
            assert sum(reader.blocks(request()) for _ in range(ROUNDS)) > count / 2

        seen = run_worker_round(engine, claim=request(1, marks=marks)).backlog
        walked = run_worker_round(engine, claim=request(1)).backlog
        assert seen is not None
        assert walked is not None
        assert seen.ready_walk.entries < 10
        assert walked.ready_walk.entries > count


def test_flip_and_look_from_a_mark_read_little(
    queue: Queue, engine: psycopg.Connection[Any], scaled: Callable[..., int]
):
    reader = PlanReader(queue.database.connect_directly(autocommit=True), mode="force_generic_plan")
    count = scaled(ci=20_000, full=200_000)
    with old_snapshot(queue):
        queue.execute(
            "INSERT INTO runledger.job_queue (job_type, max_attempts, is_ready, next_run_at)"
            " SELECT 'other.job', 3, false, now() - n * interval '1 ms'"
            " FROM generate_series(1, %s) n",
            count,
        )
        queue.execute("UPDATE runledger.job_queue SET is_ready = true")
        (later,) = queue.enqueue(next_run_at=queue.value("SELECT now() + interval '1 hour'"))
        where = {"waiting_from": queue.value("SELECT now()")}

        marked = sum(reader.blocks(request(**where)) for _ in range(ROUNDS))
        from_the_start = sum(reader.blocks(request()) for _ in range(ROUNDS))

        seen = run_worker_round(engine, claim=request(**where)).backlog
        walked = run_worker_round(engine, claim=request()).backlog
        assert seen is not None
        assert walked is not None
        assert seen.next_due_at == walked.next_due_at == queue.job(later).next_run_at
        assert seen.waiting_walk.entries < 10
        assert walked.waiting_walk.entries > count
    assert marked < 1_000
    assert from_the_start > count / 2


def test_claim_begins_at_its_mark_and_the_next_from_the_start_finds_what_it_left(
    queue: Queue, engine: psycopg.Connection[Any]
):
    urgent = insert(queue, priority=5)
    early = insert(queue, f"{NOW} - interval '1 hour'")
    at_mark = insert(queue)
    minor = insert(queue, f"{NOW} - interval '1 hour'", priority=-1)

    marked = run_worker_round(engine, claim=request(marks=mark_at(queue, at_mark)))
    unmarked = run_worker_round(engine, claim=request())

    assert ids(marked) == [at_mark, minor]
    assert ids(unmarked) == [urgent, early]
    assert marked.backlog is not None
    assert marked.backlog.best == {}


def test_look_begins_where_the_claim_began(queue: Queue, engine: psycopg.Connection[Any]):
    insert(queue, priority=5)
    first, second = insert(queue), insert(queue)

    marked = run_worker_round(engine, claim=request(1, marks=mark_at(queue, first)))
    rest = run_worker_round(engine, claim=request(1, marks=marked.last_taken))

    assert (ids(marked), ids(rest)) == ([first], [second])
    assert marked.last_taken == mark_at(queue, first)
    assert marked.backlog is not None
    assert marked.backlog.best == mark_at(queue, second)
    assert rest.has_ready is False


def test_jobs_of_one_instant_are_divided_by_their_ids(
    queue: Queue, engine: psycopg.Connection[Any]
):
    jobs = queue.enqueue(7)
    marks: Mapping[str, ReadyMark] = {}
    claimed: list[UUID] = []

    for _ in range(4):
        result = run_worker_round(engine, claim=request(2, marks=marks))
        claimed += ids(result)
        marks = result.last_taken

    assert claimed == jobs


def test_type_without_a_mark_is_claimed_from_its_start(
    queue: Queue, engine: psycopg.Connection[Any]
):
    queue.define("other.job")
    other = queue.enqueue(2, "other.job")
    hidden, at_mark = queue.enqueue(2)

    result = run_worker_round(
        engine,
        claim=request(types=("test.job", "other.job"), marks=mark_at(queue, at_mark)),
    )

    assert ids(result) == [*other, at_mark]
    assert ids(run_worker_round(engine, claim=request())) == [hidden]


def test_nothing_sorts_before_the_start(queue: Queue, engine: psycopg.Connection[Any]):
    queue.execute(
        "INSERT INTO runledger.job_queue (id, job_type, max_attempts, priority, next_run_at)"
        " VALUES (%s, 'test.job', 3, 2147483647, '-infinity')",
        NIL,
    )
    waiting = insert(queue, "'-infinity'", priority=-(2**31), is_ready=False)

    result = run_worker_round(engine, claim=request())

    assert ids(result) == [NIL, waiting]


def test_flip_begins_with_all_that_are_due_at_its_mark(
    queue: Queue, engine: psycopg.Connection[Any]
):
    at = queue.value("SELECT now() - interval '1 hour'")
    tied = [insert(queue, f"'{at}'", is_ready=False) for _ in range(3)]
    before = insert(queue, f"'{at - timedelta(microseconds=1)}'", is_ready=False)

    marked = run_worker_round(engine, claim=request(waiting_from=at))
    unmarked = run_worker_round(engine, claim=request())

    assert ids(marked) == tied
    assert marked.due_in_seconds is None
    assert ids(unmarked) == [before]


def test_job_that_was_committed_late_is_found_from_the_start(
    queue: Queue, engine: psycopg.Connection[Any]
):
    host = queue.database.connect()
    (late,) = [job.id for job in enqueue_jobs(host, [JobEnqueue("test.job", {})])]
    queue.enqueue()
    marks = run_worker_round(engine, claim=request()).last_taken
    host.commit()

    marked = run_worker_round(engine, claim=request(marks=marks))
    unmarked = run_worker_round(engine, claim=request())

    assert (ids(marked), marked.has_ready) == ([], False)
    assert ids(unmarked) == [late]


def test_job_that_others_hold_is_seen_behind_the_mark(
    queue: Queue, engine: psycopg.Connection[Any]
):
    first, held, free = queue.enqueue(3)
    marks = mark_at(queue, first)

    with queue.held(first, held):
        narrow = run_worker_round(engine, claim=request(2, marks=marks))
        wide = run_worker_round(
            engine,
            claim=ClaimRequest(
                "w", ["test.job"], limit=2, window=4, lease_ttl_seconds=60, marks=marks
            ),
        )

    assert (ids(narrow), narrow.has_ready) == ([], True)
    assert (ids(wide), wide.has_ready) == ([free], True)


def retry(queue: Queue, job_id: UUID) -> None:
    lease = queue.lease()
    complete_job_failure(queue.pool, lease, JobFailure.retryable("a", "b"), retry_delay_ms=1)
    queue.until(
        "SELECT next_run_at < clock_timestamp() FROM runledger.job_queue WHERE id = %s", job_id
    )


def release(queue: Queue, job_id: UUID) -> None:
    release_job(queue.pool, queue.lease(), reason="test")


def requeue(queue: Queue, job_id: UUID) -> None:
    complete_job_success(queue.pool, queue.lease())
    requeue_job(queue.pool, job_id, scope=Scope.ADMIN)


@pytest.mark.parametrize("give_back", [retry, release, requeue])
def test_job_that_comes_again_sorts_behind_the_mark(
    queue: Queue, engine: psycopg.Connection[Any], give_back: Callable[[Queue, UUID], None]
):
    first, second = queue.enqueue(2)
    marks = mark_at(queue, second)
    give_back(queue, first)

    assert ids(run_worker_round(engine, claim=request(marks=marks))) == [second, first]


def test_round_without_a_flip_leaves_what_came_due(queue: Queue, engine: psycopg.Connection[Any]):
    job_id = insert(queue, f"{NOW} - interval '1 s'", is_ready=False)

    without = run_worker_round(engine, claim=request(has_flip=False))

    assert (ids(without), without.has_ready) == ([], False)
    assert without.due_in_seconds is not None
    assert without.due_in_seconds <= -1
    assert ids(run_worker_round(engine, claim=request())) == [job_id]


def test_round_without_a_look_says_nothing_of_the_rest(
    queue: Queue, engine: psycopg.Connection[Any]
):
    jobs = queue.enqueue(3)

    result = run_worker_round(engine, claim=request(2, has_look=False))

    assert ids(result) == jobs[:2]
    assert (result.backlog, result.has_ready, result.due_in_seconds) == (None, False, None)


def test_undecodable_job_moves_the_mark_too(queue: Queue, engine: psycopg.Connection[Any]):
    good, poison = queue.enqueue(2)
    queue.execute("UPDATE runledger.job_queue SET payload = %s WHERE id = %s", "9" * 5_000, poison)

    result = run_worker_round(engine, claim=request())

    assert (ids(result), len(result.undecodable)) == ([good], 1)
    assert result.last_taken["test.job"].id == poison


@pytest.mark.parametrize("at", ["'infinity'", "'-infinity'"])
def test_instant_that_python_has_no_date_for_may_be_a_mark(
    queue: Queue, engine: psycopg.Connection[Any], at: str
):
    job_id = insert(queue, at)
    with queue.held(job_id):
        held = run_worker_round(engine, claim=request())
    assert held.backlog is not None
    marks = held.backlog.best

    marked = run_worker_round(engine, claim=request(marks=marks))
    unmarked = run_worker_round(engine, claim=request())

    assert marks["test.job"].id == job_id
    assert ids(marked) + ids(unmarked) == [job_id]
