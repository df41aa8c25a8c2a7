from __future__ import annotations

import secrets
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import psycopg_pool
import pytest

from runledger_core import ConflictError, InternalError, JobEnqueue, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.errors import QueryError
from runledger_postgres.jobs import _enqueue_keyed
from runledger_postgres.lifecycle import claim_jobs, heartbeat_job

ORGANIZATION = UUID("01900000-0000-7000-8000-00000000000a")
REQUEST = JobEnqueue("test.job", {"n": 1}, idempotency_key="key")
OTHER_REQUEST = replace(REQUEST, payload={"n": 2})
UNKEYED_REQUEST = replace(REQUEST, idempotency_key=None)
LOAD = 32
# A thread that failed leaves the others alone at the barrier.
PATIENCE_SECONDS = 30


@pytest.fixture
def wide_pool(database, runledger_connection_budget):
    with (
        runledger_connection_budget.acquire(LOAD + 4),
        psycopg_pool.ConnectionPool(database.dsn, min_size=LOAD, max_size=LOAD, open=True) as pool,
    ):
        pool.wait()
        yield pool


class Waiting:
    """A call in a thread on a connection of its own."""

    def __init__(self, database, call, *, autocommit: bool = True) -> None:
        self.connection = database.connect(autocommit=autocommit)
        self.pid = self.connection.info.backend_pid
        self._executor = ThreadPoolExecutor(1)
        self._future = self._executor.submit(call, self.connection)

    def result(self):
        try:
            return self._future.result(60)
        finally:
            self._executor.shutdown()


@contextmanager
def winner_of(database, request: JobEnqueue = REQUEST):
    """An open transaction that has inserted the key."""
    connection = database.connect()
    enqueued = enqueue_job(connection, request)
    yield connection, enqueued.id
    connection.close()


def batch(request: JobEnqueue):
    """The request between others, twice."""
    others = [replace(REQUEST, idempotency_key=key) for key in ("a", "z")]
    return lambda db: enqueue_jobs(db, [others[0], request, UNKEYED_REQUEST, request, others[1]])[1]


def single(request: JobEnqueue):
    return lambda db: enqueue_job(db, request)


ways = pytest.mark.parametrize("way", [single, batch])
modes = pytest.mark.parametrize("autocommit", [True, False], ids=["own", "joined"])


@ways
@modes
def test_loser_waits_for_a_winner_who_rolls_back_and_makes_the_job(
    database, observer, way, autocommit
):
    with winner_of(database) as (winner, winner_id):
        loser = Waiting(database, way(REQUEST), autocommit=autocommit)
        observer.until_blocked(loser.pid, by=winner.info.backend_pid)
        winner.rollback()
        enqueued = loser.result()
        loser.connection.commit()

    assert enqueued.disposition == "INSERTED"
    assert enqueued.id != winner_id
    assert observer.value(
        "SELECT array_agg(id) FROM runledger.job_queue WHERE idempotency_key = 'key'"
    ) == [enqueued.id]


@ways
@modes
def test_loser_waits_for_a_winner_who_commits_and_gets_his_job(database, observer, way, autocommit):
    with winner_of(database) as (winner, winner_id):
        loser = Waiting(database, way(REQUEST), autocommit=autocommit)
        observer.until_blocked(loser.pid, by=winner.info.backend_pid)
        winner.commit()
        enqueued = loser.result()
        loser.connection.commit()

    assert (enqueued.id, enqueued.disposition) == (winner_id, "EXISTING")
    assert observer.jobs() == (1 if way is single else 4)


@ways
@modes
def test_loser_with_another_request_is_told_so_after_the_wait(database, observer, way, autocommit):
    with winner_of(database) as (winner, _):
        loser = Waiting(database, way(OTHER_REQUEST), autocommit=autocommit)
        observer.until_blocked(loser.pid, by=winner.info.backend_pid)
        winner.commit()
        with pytest.raises(ConflictError) as caught:
            loser.result()
        loser.connection.commit()

    assert (caught.value.code, caught.value.field) == ("job.idempotency_conflict", "payload")
    assert caught.value.entry_index == (None if way is single else 1)
    # Nothing of the loser's batch is left either.
    assert observer.jobs() == 1


@ways
def test_loser_makes_the_job_if_the_winner_deleted_his(database, observer, way):
    with winner_of(database) as (winner, winner_id):
        loser = Waiting(database, way(REQUEST))
        observer.until_blocked(loser.pid, by=winner.info.backend_pid)
        winner.execute("DELETE FROM runledger.job_queue")
        winner.commit()
        enqueued = loser.result()

    assert enqueued.disposition == "INSERTED"
    assert enqueued.id != winner_id


def test_loser_makes_the_job_if_the_winners_was_deleted_before_the_second_look(
    database, observer, monkeypatch
):
    administrator = database.connect(autocommit=True)
    looks = []

    def run_then_delete(db, bound):
        rows = run(db, bound)
        looks.append(rows[0].verdict)
        if len(looks) == 1:
            administrator.execute("DELETE FROM runledger.job_queue")
        return rows

    run = vars(_enqueue_keyed)["run"]
    with winner_of(database) as (winner, _):
        monkeypatch.setattr(_enqueue_keyed, "run", run_then_delete)
        loser = Waiting(database, single(REQUEST))
        observer.until_blocked(loser.pid, by=winner.info.backend_pid)
        winner.commit()
        enqueued = loser.result()

    assert looks == ["RACED", "INSERTED"]
    assert enqueued.disposition == "INSERTED"


def test_key_whose_job_cannot_be_seen_is_an_error_of_ours(database, observer):
    role = f"tenant_{secrets.token_hex(6)}"
    enqueue_job(database.connect(autocommit=True), REQUEST)
    administrator = database.connect(autocommit=True)
    administrator.execute(
        f"""
        CREATE ROLE {role} LOGIN PASSWORD '{role}';
        GRANT USAGE ON SCHEMA runledger TO {role};
        GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA runledger TO {role};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA runledger TO {role};
        ALTER TABLE runledger.job_queue ENABLE ROW LEVEL SECURITY;
        CREATE POLICY pending ON runledger.job_queue USING (status = 'PENDING');
        UPDATE runledger.job_queue SET status = 'CANCELED'
        """
    )
    tenant = database.connect(autocommit=True, user=role, password=role)

    with pytest.raises(InternalError) as caught:
        enqueue_job(tenant, REQUEST)
    tenant.close()
    administrator.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert caught.value.code == "job.idempotency_conflict_missing_existing"


@ways
def test_key_of_another_organization_is_not_waited_for(database, observer, way):
    with winner_of(database):
        connection = database.connect(autocommit=True)
        connection.execute("SET lock_timeout = '1s'")

        enqueued = way(replace(REQUEST, organization_id=ORGANIZATION))(connection)

    assert enqueued.disposition == "INSERTED"


def test_everybody_gets_the_same_job(wide_pool, observer, scaled):
    rounds = scaled(ci=10, full=200)
    barrier = threading.Barrier(64, timeout=PATIENCE_SECONDS)
    seen: list[list[tuple[UUID, str]]] = [[] for _ in range(rounds)]

    def enqueue_rounds() -> None:
        for number in range(rounds):
            request = replace(REQUEST, idempotency_key=f"key {number}")
            barrier.wait()
            enqueued = enqueue_job(wide_pool, request)
            seen[number].append((enqueued.id, enqueued.disposition))

    with ThreadPoolExecutor(64) as executor:
        for future in [executor.submit(enqueue_rounds) for _ in range(64)]:
            future.result()

    for results in seen:
        assert len({job_id for job_id, _ in results}) == 1
        assert Counter(kind for _, kind in results) == {"INSERTED": 1, "EXISTING": 63}
    assert observer.jobs() == rounds


def test_batches_of_the_same_keys_in_any_order_do_not_deadlock(wide_pool, observer, scaled):
    rounds = scaled(ci=10, full=100)
    barrier = threading.Barrier(4, timeout=PATIENCE_SECONDS)
    orders = [1, -1, 1, -1]

    def enqueue_rounds(step: int) -> None:
        for number in range(rounds):
            requests = [
                replace(
                    REQUEST,
                    idempotency_key=f"{number} {key}",
                    organization_id=ORGANIZATION if key % 2 else None,
                )
                for key in range(300)
            ]
            barrier.wait()
            enqueue_jobs(wide_pool, requests[::step])

    with ThreadPoolExecutor(4) as executor:
        for future in [executor.submit(enqueue_rounds, step) for step in orders]:
            future.result()

    assert observer.jobs() == rounds * 300


def test_batches_that_wait_in_the_middle_of_the_same_keys_do_not_deadlock(database, observer):
    requests = [replace(REQUEST, idempotency_key=key) for key in ("a", "key", "z")]

    with winner_of(database) as (winner, _):
        forward = Waiting(database, lambda db: enqueue_jobs(db, requests))
        observer.until_blocked(forward.pid, by=winner.info.backend_pid)
        backward = Waiting(database, lambda db: enqueue_jobs(db, requests[::-1]))
        observer.until_blocked(backward.pid)
        winner.rollback()
        made, found = forward.result(), backward.result()

    assert [job.disposition for job in (*made, *found)] == ["INSERTED"] * 3 + ["EXISTING"] * 3
    assert [job.id for job in found] == [job.id for job in reversed(made)]


def test_large_batch_with_repeated_keys_is_answered_in_order(wide_pool, observer, scaled):
    count = scaled(ci=5_000, full=50_000)
    # Every tenth repeats the key of the one five before it.
    numbers = [n - 5 if n % 10 == 9 else n for n in range(count)]
    requests = [
        JobEnqueue("test.job", {"n": n, "name": "a customer's name"}, idempotency_key=f"key {n}")
        for n in numbers
    ]

    first = enqueue_jobs(wide_pool, requests)
    again = enqueue_jobs(wide_pool, list(reversed(requests)))

    assert [job.disposition for job in first] == [
        "EXISTING" if n % 10 == 9 else "INSERTED" for n in range(count)
    ]
    assert all(first[n].id == first[n - 5].id for n in range(9, count, 10))
    assert [job.id for job in reversed(again)] == [job.id for job in first]
    assert {job.disposition for job in again} == {"EXISTING"}
    assert observer.jobs() == count - count // 10


@ways
def test_repeat_does_not_wait_for_a_heartbeat(database, observer, way):
    job_id = enqueue_job(database.connect(autocommit=True), REQUEST).id
    (job,) = claim_jobs(
        database.connect(autocommit=True), worker_id="worker", limit=1, lease_ttl_seconds=60
    )
    heart = database.connect()
    heartbeat_job(heart, job.lease, lease_ttl_seconds=60)
    connection = database.connect(autocommit=True)
    connection.execute("SET lock_timeout = '1s'")

    assert way(REQUEST)(connection).id == job_id


@ways
def test_heartbeat_does_not_wait_for_a_repeat(database, way):
    enqueue_job(database.connect(autocommit=True), REQUEST)
    (job,) = claim_jobs(
        database.connect(autocommit=True), worker_id="worker", limit=1, lease_ttl_seconds=60
    )
    connection = database.connect()

    assert way(REQUEST)(connection).disposition == "EXISTING"
    heartbeat_job(
        database.connect(autocommit=True), job.lease, lease_ttl_seconds=60, lock_timeout_ms=1_000
    )


def test_busy_type_is_disabled_at_once_and_its_definition_never_locked(
    wide_pool, database, observer, scaled
):
    enough = scaled(ci=640, full=20_000)
    refusals = []
    is_stopped = threading.Event()

    def produce(number: int) -> None:
        keyed = replace(REQUEST, idempotency_key=f"key {number}")
        while not is_stopped.is_set():
            try:
                enqueue_job(wide_pool, UNKEYED_REQUEST)
                enqueue_jobs(wide_pool, [keyed, UNKEYED_REQUEST])
            except ValidationError as error:
                refusals.append(error.code)
                return

    with ThreadPoolExecutor(LOAD) as executor:
        producers = [executor.submit(produce, number) for number in range(LOAD)]
        try:
            observer.until("SELECT count(*) > %(n)s FROM runledger.job_queue", n=enough)
            locker = observer.value("SELECT xmax::text FROM runledger.job_definitions")
            administrator = database.connect(autocommit=True)
            administrator.execute("SET lock_timeout = '1s'")
            administrator.execute("UPDATE runledger.job_definitions SET is_enabled = false")
            for producer in producers:
                producer.result(60)
        finally:
            is_stopped.set()

    # No transaction has ever locked the row, so there was no multixact either.
    assert locker == "0"
    assert refusals == ["job.definition_not_found_or_disabled"] * LOAD


def test_producers_make_no_multixacts(wide_pool, database, observer):
    count = "SELECT next_multixact_id FROM pg_control_checkpoint()"
    database.connect(autocommit=True).execute("CHECKPOINT")
    before = observer.value(count)

    with ThreadPoolExecutor(LOAD) as executor:
        for future in [
            executor.submit(enqueue_jobs, wide_pool, [UNKEYED_REQUEST, REQUEST])
            for _ in range(LOAD * 4)
        ]:
            future.result()
    database.connect(autocommit=True).execute("CHECKPOINT")

    assert observer.value(count) == before
    assert observer.jobs() == LOAD * 4 + 1


def test_wait_of_a_keyed_batch_that_the_caller_bounds_leaves_his_transaction_usable(
    database, observer
):
    with winner_of(database):
        connection = database.connect()
        connection.execute("CREATE TABLE public.orders (id int4)")
        connection.execute("SET LOCAL lock_timeout = '50ms'")

        with pytest.raises(QueryError) as caught:
            batch(REQUEST)(connection)
        connection.commit()

    assert caught.value.code == "db.lock_timeout"
    assert observer.value("SELECT count(*) FROM public.orders") == 0
