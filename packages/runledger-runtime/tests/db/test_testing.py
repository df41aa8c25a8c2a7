from datetime import UTC, datetime, timedelta

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobFailure, JobStatus, Scope, ValidationError
from runledger_postgres import (
    QueryUnavailableError,
    cancel_job,
    connect_pool,
    enqueue_job,
    enqueue_jobs,
    get_job,
    list_job_attempts,
    list_job_logs,
)
from runledger_runtime import JobCatalog
from runledger_runtime.testing import DrainDisposition, drain
from runledger_test_support import make_due
from runledger_test_support.drain import drain as drain_of_test_support


@pytest.fixture
def catalog(runledger_pool) -> JobCatalog:
    """A catalog to add jobs to; `define` syncs them."""
    return JobCatalog()


def enqueue(pool, catalog, job_type, *payloads, **values):
    catalog.sync_definitions(pool)
    requests = [JobEnqueue(job_type, payload, **values) for payload in payloads or ({},)]
    return [job.id for job in enqueue_jobs(pool, requests)]


def job_of(pool, job_id):
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


def test_nothing_due_is_an_empty_report(runledger_pool, catalog):
    catalog.job("mail", lambda context, payload: None)
    enqueue(runledger_pool, catalog, "mail", {}, next_run_at=datetime.now(UTC) + timedelta(hours=1))

    report = drain(runledger_pool, catalog)

    assert report.attempts == ()


def test_empty_catalog_is_an_empty_report(runledger_pool, catalog):
    assert drain(runledger_pool, catalog).attempts == ()


def test_every_due_job_runs_in_the_calling_thread_in_order(runledger_pool, catalog):
    seen: list[object] = []

    def send(context, payload):
        seen.append(payload)
        return JobCompletion.with_output({"sent": payload})

    catalog.job("mail", send)
    first, second = enqueue(runledger_pool, catalog, "mail", 1, 2)
    (urgent,) = enqueue(runledger_pool, catalog, "mail", 3, priority=9)

    report = drain(runledger_pool, catalog)

    assert seen == [3, 1, 2]
    assert [attempt.job_id for attempt in report.attempts] == [urgent, first, second]
    assert report.succeeded == 3
    assert job_of(runledger_pool, first).output == {"sent": 1}


def test_jobs_that_handlers_enqueue_run_too(runledger_pool, catalog):
    def split(context, payload):
        if payload:
            enqueue_job(runledger_pool, JobEnqueue("split", payload - 1))

    catalog.job("split", split)
    enqueue(runledger_pool, catalog, "split", 3)

    assert drain(runledger_pool, catalog).succeeded == 4


def test_limit_bounds_the_attempts(runledger_pool, catalog):
    catalog.job("mail", lambda context, payload: None)
    enqueue(runledger_pool, catalog, "mail", 1, 2, 3)

    assert drain(runledger_pool, catalog, limit=2).succeeded == 2
    assert drain(runledger_pool, catalog).succeeded == 1


@pytest.mark.parametrize("limit", [0, True, 1.5])
def test_limit_must_be_a_positive_integer(runledger_pool, catalog, limit):
    with pytest.raises(ValidationError) as caught:
        drain(runledger_pool, catalog, limit=limit)

    assert caught.value.field == "limit"


@pytest.mark.parametrize(
    ("field", "given"),
    [("pool", None), ("pool", "dbname=test"), ("catalog", None), ("retry_at_once", 1)],
)
def test_argument_of_another_type_is_refused(runledger_pool, catalog, field, given):
    arguments = {"pool": runledger_pool, "catalog": catalog, "retry_at_once": False}

    with pytest.raises(ValidationError) as caught:
        drain(**arguments | {field: given})

    assert (caught.value.code, caught.value.field) == ("input.wrong_type", field)


def test_failures_are_stored_as_a_worker_stores_them(runledger_pool, catalog):
    def fail(context, payload):
        if payload == "terminal":
            raise JobFailure.terminal("mail.refused", "no")
        message = "unexpected"
        raise ValueError(message)

    catalog.job("mail", fail, max_attempts=3)
    catalog.retry_delay_override("mail", "job.handler_exception", 70_000)
    dead, waiting = enqueue(runledger_pool, catalog, "mail", "terminal", "other")

    report = drain(runledger_pool, catalog)

    assert (report.dead_lettered, report.retry_scheduled) == (1, 1)
    assert [attempt.failure.code for attempt in report.attempts if attempt.failure] == [
        "mail.refused",
        "job.handler_exception",
    ]
    assert job_of(runledger_pool, dead).status is JobStatus.DEAD_LETTERED
    assert job_of(runledger_pool, waiting).status is JobStatus.PENDING
    (attempt,) = list_job_attempts(runledger_pool, waiting, scope=Scope.ADMIN)
    assert attempt.retry_delay_ms == 70_000
    (log,) = list_job_logs(runledger_pool, waiting, scope=Scope.ADMIN)
    assert "ValueError: unexpected" in str(log.payload)


def test_retry_that_was_made_due_runs_in_the_next_drain(runledger_pool, catalog):
    def fail_once(context, payload):
        if context.attempt == 1:
            raise JobFailure.retryable("mail.busy", "later")

    catalog.job("mail", fail_once)
    (job_id,) = enqueue(runledger_pool, catalog, "mail")
    drain(runledger_pool, catalog)
    make_due(runledger_pool, job_id)

    report = drain(runledger_pool, catalog)

    assert [attempt.attempt for attempt in report.attempts] == [2]
    assert report.succeeded == 1


def test_retry_at_once_runs_a_job_to_its_end(runledger_pool, catalog):
    def fail(context, payload):
        raise JobFailure.retryable("mail.busy", "later")

    catalog.job("mail", fail, max_attempts=3)
    (job_id,) = enqueue(runledger_pool, catalog, "mail")

    report = drain(runledger_pool, catalog, retry_at_once=True)

    assert [attempt.disposition for attempt in report.attempts] == [
        DrainDisposition.RETRY_SCHEDULED,
        DrainDisposition.RETRY_SCHEDULED,
        DrainDisposition.DEAD_LETTERED,
    ]
    assert job_of(runledger_pool, job_id).status is JobStatus.DEAD_LETTERED


def test_success_with_impossible_progress_is_given_up(runledger_pool, catalog):
    def overdo(context, payload):
        context.progress(1, 3)
        return JobCompletion.success().with_progress(4)

    catalog.job("mail", overdo)
    enqueue(runledger_pool, catalog, "mail")

    report = drain(runledger_pool, catalog)

    assert report.dead_lettered == 1
    assert report.attempts[0].failure is not None
    assert report.attempts[0].failure.code == "job.invalid_completion_progress"


def test_job_canceled_while_it_ran_is_refused(runledger_pool, catalog):
    def cancel_itself(context, payload):
        cancel_job(runledger_pool, context.job_id, scope=Scope.ADMIN)

    catalog.job("mail", cancel_itself)
    (job_id,) = enqueue(runledger_pool, catalog, "mail")

    report = drain(runledger_pool, catalog)

    assert report.refused == 1
    assert job_of(runledger_pool, job_id).status is JobStatus.CANCELED


def test_job_that_python_cannot_read_does_not_end_the_drain(runledger_pool, catalog):
    catalog.job("mail", lambda context, payload: None)
    bad, good = enqueue(runledger_pool, catalog, "mail", 1, 2)
    with runledger_pool.connection() as connection:
        connection.execute(
            "UPDATE runledger.job_queue SET payload = repeat('9', 5000)::jsonb WHERE id = %s",
            [bad],
        )

    report = drain(runledger_pool, catalog)

    assert [attempt.job_id for attempt in report.attempts] == [good]
    (attempt,) = list_job_attempts(runledger_pool, bad, scope=Scope.ADMIN)
    assert attempt.error_code == "job.undecodable_row"


def test_locked_job_is_waited_for(runledger_pool, runledger_database, catalog):
    holder = runledger_database.connect()

    def lock_itself(context, payload):
        holder.execute("SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE", [context.job_id])
        holder.execute("SET LOCAL idle_in_transaction_session_timeout = '300ms'")

    catalog.job("mail", lock_itself)
    enqueue(runledger_pool, catalog, "mail")

    assert drain(runledger_pool, catalog).succeeded == 1


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 port=1 dbname=s3cr3t connect_timeout=2",
        "host=s3cr3t..invalid",
        "host=s3cr3t.invalid connect_timeout=2",
    ],
)
def test_database_that_is_away_is_told_by_code_and_shows_no_connection_string(catalog, dsn):
    catalog.job("mail", lambda context, payload: None)

    pool = ConnectionPool(dsn, min_size=0, max_size=1, open=False)
    with pytest.raises(QueryUnavailableError) as caught:
        drain(pool, catalog)

    assert caught.value.code == "db.unavailable"
    assert "s3cr3t" not in f"{caught.value} {caught.value!r}"


def test_handler_may_use_the_only_connection_of_the_pool(runledger_database):
    catalog = JobCatalog()

    def count(context, payload):
        with context.connection() as connection:
            connection.execute("SELECT 1")
        context.progress(1, 1)
        context.log("INFO", "counted")

    catalog.job("mail", count)
    with connect_pool(runledger_database.dsn, max_size=1) as pool:
        enqueue(pool, catalog, "mail")

        assert drain(pool, catalog).succeeded == 1


def test_registry_and_unfrozen_catalog_can_be_drained(runledger_pool, catalog):
    catalog.job("mail", lambda context, payload: None)
    enqueue(runledger_pool, catalog, "mail")

    report = drain(runledger_pool, catalog.to_registry())
    catalog.job("later", lambda context, payload: None)

    assert report.succeeded == 1
    assert catalog.contains("later")


def test_test_support_offers_the_same_function():
    assert drain_of_test_support is drain
