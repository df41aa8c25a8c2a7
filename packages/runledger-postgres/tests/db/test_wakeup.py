from __future__ import annotations

import threading

import pytest

from runledger_core import JobEnqueue, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.wakeup import (
    CANCEL_CHANNEL,
    COUNT_WOKEN,
    DROP_MARKS,
    SLEEP_MARK_CLASS,
    TAKE_MARKS,
    WAKE_CHANNEL,
)

REQUEST = JobEnqueue("test.a", {})


@pytest.fixture
def database(runledger_database):
    with runledger_database.connect() as connection:
        connection.execute(
            "INSERT INTO runledger.job_definitions (job_type) VALUES ('test.a'), ('test.b')"
        )
    return runledger_database


def asleep(database, *job_types: str):
    """A worker's connection that listens and holds marks of the types."""
    connection = database.connect(autocommit=True)
    connection.execute(f"LISTEN {WAKE_CHANNEL}")
    for job_type in job_types:
        connection.execute(
            "SELECT pg_advisory_lock_shared(%s, hashtext(%s))", [SLEEP_MARK_CLASS, job_type]
        )
    return connection


def heard(connection) -> list[str]:
    # What was committed before arrives no later than the answer to a query.
    connection.execute("SELECT 1")
    return [notify.payload for notify in connection.notifies(timeout=0)]


def marks(observer) -> int:
    return observer.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::int8 = %(class)s",
        **{"class": SLEEP_MARK_CLASS},
    )


def test_enqueue_wakes_a_worker_that_sleeps_on_the_type(database):
    worker = asleep(database, "test.a")

    enqueue_job(database.connect(autocommit=True), REQUEST)

    assert heard(worker) == ["test.a"]


def test_keyed_enqueue_wakes_once_and_its_repeat_not_again(database):
    worker = asleep(database, "test.a")
    request = JobEnqueue("test.a", {}, idempotency_key="key")
    connection = database.connect(autocommit=True)

    enqueue_job(connection, request)
    first = heard(worker)
    enqueue_job(connection, request)
    enqueue_jobs(connection, [request, request])

    assert (first, heard(worker)) == (["test.a"], [])


def test_transaction_notifies_once_per_type_and_only_when_it_commits(database):
    worker = asleep(database, "test.a", "test.b")
    connection = database.connect()
    other = JobEnqueue("test.b", {})

    for _ in range(3):
        enqueue_job(connection, REQUEST)
        enqueue_jobs(connection, [REQUEST, other, REQUEST, other])
    before_commit = heard(worker)
    connection.commit()

    assert before_commit == []
    assert sorted(heard(worker)) == ["test.a", "test.b"]


def test_transaction_that_is_rolled_back_notifies_nobody(database):
    worker = asleep(database, "test.a")
    connection = database.connect()

    enqueue_job(connection, REQUEST)
    connection.rollback()

    assert heard(worker) == []


def test_nobody_is_notified_when_nobody_sleeps(database, observer):
    listener = asleep(database)

    enqueue_job(database.connect(autocommit=True), REQUEST)

    assert heard(listener) == []
    assert marks(observer) == 0


def test_sleeper_of_another_type_is_left_asleep(database):
    worker = asleep(database, "test.b")

    enqueue_job(database.connect(autocommit=True), REQUEST)

    assert heard(worker) == []


def test_job_that_is_not_due_wakes_nobody(database, observer):
    worker = asleep(database, "test.a")
    tomorrow = observer.value("SELECT now() + interval '1 day'")
    later = JobEnqueue("test.a", {}, next_run_at=tomorrow)

    enqueue_job(database.connect(autocommit=True), later)
    enqueue_jobs(
        database.connect(autocommit=True),
        [later, JobEnqueue("test.a", {}, next_run_at=tomorrow, idempotency_key="key")],
    )

    assert heard(worker) == []


def test_refused_enqueue_wakes_nobody(database):
    worker = asleep(database, "test.a")
    connection = database.connect()

    with pytest.raises(ValidationError):
        enqueue_jobs(connection, [REQUEST, JobEnqueue("test.none", {})])
    connection.commit()

    assert heard(worker) == []


def test_many_sleepers_hear_one_notification_each(database):
    workers = [asleep(database, "test.a") for _ in range(4)]

    enqueue_job(database.connect(autocommit=True), REQUEST)

    assert [heard(worker) for worker in workers] == [["test.a"]] * 4


def test_writer_holds_no_mark_afterwards_and_takes_none_away(database, observer):
    asleep(database, "test.a")
    connection = database.connect()

    enqueue_jobs(connection, [REQUEST, JobEnqueue("test.b", {})])

    assert marks(observer) == 1


def test_databases_of_a_server_do_not_hear_each_other(
    database, runledger_unmigrated_database, observer
):
    stranger = asleep(runledger_unmigrated_database, "test.a")
    listener = asleep(database)

    enqueue_job(database.connect(autocommit=True), REQUEST)

    assert (heard(stranger), heard(listener)) == ([], [])


def test_producers_of_one_type_seldom_take_each_other_for_sleepers(database, observer, scaled):
    listener = asleep(database)
    count = scaled(ci=100, full=1_000)

    def produce() -> None:
        connection = database.connect(autocommit=True)
        for _ in range(count):
            enqueue_job(connection, REQUEST)

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert observer.jobs() == 8 * count
    assert len(heard(listener)) <= 8 * count // 100


def test_marks_are_taken_all_or_none_without_waiting(database, observer):
    worker, stranger = database.connect(autocommit=True), database.connect(autocommit=True)
    types = {"job_types": ["test.a", "test.b"]}
    stranger.execute("SELECT pg_advisory_lock(%s, hashtext('test.b'))", [SLEEP_MARK_CLASS])

    refused = worker.execute(TAKE_MARKS, types).fetchone()
    held_after_refusal = marks(observer)
    stranger.execute(DROP_MARKS)
    taken = worker.execute(TAKE_MARKS, types).fetchone()
    held = marks(observer)
    worker.execute(DROP_MARKS)

    assert (refused, taken) == ((False,), (True,))
    # The first is the stranger's own.
    assert (held_after_refusal, held, marks(observer)) == (1, 2, 0)


def test_names_in_the_statement_are_those_that_workers_use():
    assert f"'{WAKE_CHANNEL}'" in COUNT_WOKEN
    assert COUNT_WOKEN.count(f"({SLEEP_MARK_CLASS}, hashtext(due.job_type))") == 2
    assert f"({SLEEP_MARK_CLASS}, hashtext(t))" in TAKE_MARKS
    assert SLEEP_MARK_CLASS.to_bytes(4, "big") == b"RLwa"
    assert max(len(WAKE_CHANNEL), len(CANCEL_CHANNEL)) < 63
