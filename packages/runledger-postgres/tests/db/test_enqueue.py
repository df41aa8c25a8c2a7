from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runledger_core import InternalError, JobEnqueue, JobStage, Scope, ValidationError, raise_limits
from runledger_core import limits as core_limits
from runledger_postgres import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.jobs import JobRecord, _enqueue

pytestmark = pytest.mark.core

ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")

# For what is refused, or answered, without one.
NO_DATABASE: Any = None

INSERT_DEFINITIONS = """
    INSERT INTO runledger.job_definitions
        (job_type, default_priority, max_attempts, default_timeout_seconds, is_enabled)
    VALUES ('test.job', 7, 4, 60, true), ('test.other', 1, 1, 1, true), ('test.off', 1, 1, 1, false)
"""
KEEP_JOBS_BACK = """
    CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER keep BEFORE INSERT ON runledger.job_queue FOR EACH ROW
        WHEN (NEW.job_type = 'test.job') EXECUTE FUNCTION public.keep();
"""


@pytest.fixture
def pool(runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute(INSERT_DEFINITIONS)
    return runledger_pool


@pytest.fixture
def larger_limits():
    before = core_limits.current_limits()
    yield raise_limits
    core_limits._current = before


def read(db, job_id: UUID) -> JobRecord:
    job = get_job(db, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job


def stored(observer, job_id: UUID) -> dict:
    return observer.value(
        """
        SELECT to_jsonb(q) - ARRAY['id', 'created_at', 'updated_at']
        FROM runledger.job_queue AS q WHERE id = %(id)s
        """,
        id=job_id,
    )


def test_job_gets_the_defaults_of_its_definition(pool, observer):
    before = observer.value("SELECT clock_timestamp()")

    enqueued = enqueue_job(pool, JobEnqueue("test.job", {"n": 1}))

    assert enqueued.disposition == "INSERTED"
    job = read(pool, enqueued.id)
    assert (job.job_type, job.payload, job.organization_id) == ("test.job", {"n": 1}, None)
    assert (job.priority, job.max_attempts, job.timeout_seconds) == (7, 4, 60)
    assert (job.status, job.stage) == ("PENDING", "queued")
    assert (job.run_number, job.attempt, job.claim_number) == (1, 0, 0)
    assert before < job.next_run_at == job.created_at == job.updated_at
    assert stored(observer, enqueued.id)["is_ready"] is True
    assert stored(observer, enqueued.id)["enqueue_request"] is None


def test_values_of_the_request_go_before_those_of_the_definition(pool, observer):
    due_at = datetime(2100, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    request = JobEnqueue(
        "test.job",
        [1],
        organization_id=ORGANIZATION,
        priority=-5,
        max_attempts=1,
        timeout_seconds=2,
        next_run_at=due_at,
        idempotency_key="key",
        stage=JobStage.SCHEDULED,
    )

    job = read(pool, enqueue_job(pool, request).id)

    assert (job.organization_id, job.payload) == (ORGANIZATION, [1])
    assert (job.priority, job.max_attempts, job.timeout_seconds) == (-5, 1, 2)
    assert (job.next_run_at, job.stage, job.idempotency_key) == (due_at, "scheduled", "key")


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize(
    ("next_run_at", "is_ready"),
    [
        (None, True),
        (datetime.min.replace(tzinfo=UTC), True),
        (datetime(2000, 1, 1, tzinfo=UTC), True),
        (datetime.max.replace(tzinfo=UTC), False),
    ],
)
def test_job_is_ready_at_once_if_it_is_due(pool, observer, key, next_run_at, is_ready):
    request = JobEnqueue("test.job", {}, next_run_at=next_run_at, idempotency_key=key)

    enqueued = enqueue_job(pool, request)

    assert stored(observer, enqueued.id)["is_ready"] is is_ready
    if next_run_at is not None:
        assert read(pool, enqueued.id).next_run_at == next_run_at


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("job_type", ["test.none", "test.off", "TEST.JOB", "test.job "])
def test_unknown_or_disabled_type_is_refused(pool, observer, key, job_type):
    with pytest.raises(ValidationError) as caught:
        enqueue_job(pool, JobEnqueue(job_type, {}, idempotency_key=key))

    assert caught.value.code == "job.definition_not_found_or_disabled"
    assert (caught.value.field, caught.value.entry_index) == ("job_type", None)
    assert observer.jobs() == 0


@pytest.mark.parametrize("key", [None, "key"])
def test_batch_with_an_unknown_type_stores_nothing_and_names_the_first(pool, observer, key):
    good = JobEnqueue("test.job", {}, idempotency_key=key)
    bad = [JobEnqueue("test.none", {}, idempotency_key=key), JobEnqueue("test.off", {})]

    with pytest.raises(ValidationError) as caught:
        enqueue_jobs(pool, [good, good, *bad, good])

    assert (caught.value.code, caught.value.entry_index) == (
        "job.definition_not_found_or_disabled",
        2,
    )
    assert observer.jobs() == 0


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("others", [0, 2])
def test_job_that_a_trigger_of_the_host_keeps_from_its_row_is_no_job(
    pool, runledger_database, observer, key, others
):
    requests = [JobEnqueue("test.other", {})] * others
    requests.insert(1, JobEnqueue("test.job", {}, idempotency_key=key))
    with runledger_database.connect() as connection:
        connection.execute(KEEP_JOBS_BACK)
        connection.commit()

        with pytest.raises(InternalError) as caught:
            enqueue_jobs(connection, requests)
        connection.commit()
        left = observer.jobs()
        connection.execute("DROP FUNCTION public.keep CASCADE")
        enqueue_jobs(connection, requests)
        connection.commit()

    assert caught.value.code == {
        None: "db.rows_kept_back",
        "key": "job.idempotency_conflict_missing_existing",
    }.get(key)
    assert (left, observer.jobs()) == (0, others + 1)


def test_no_requests_need_no_database():
    assert enqueue_jobs(NO_DATABASE, []) == []


@pytest.mark.parametrize("wrong", [None, "test.job", {"job_type": "test.job"}])
def test_what_is_no_request_is_refused_before_sql(wrong):
    with pytest.raises(ValidationError) as caught:
        enqueue_jobs(NO_DATABASE, [JobEnqueue("test.job", {}), wrong])

    assert (caught.value.code, caught.value.entry_index) == ("input.wrong_type", 1)


def test_requests_may_come_from_a_generator(pool, observer):
    requests: Any = (JobEnqueue("test.job", {"n": n}) for n in range(3))

    enqueued = enqueue_jobs(pool, requests)

    assert len(enqueued) == observer.jobs() == 3


def test_batch_that_no_statement_can_hold_is_refused_before_sql(monkeypatch):
    monkeypatch.setattr(_enqueue, "_BATCH_CHARACTERS", 100)

    with pytest.raises(ValidationError) as caught:
        enqueue_jobs(NO_DATABASE, [JobEnqueue("test.job", "x" * 49)] * 2)

    assert (caught.value.code, caught.value.field) == ("job.enqueue_batch_too_large", "requests")


@pytest.mark.parametrize("key", [None, "key {}"])
def test_batch_of_more_entries_than_a_statement_has_parameters(pool, observer, scaled, key):
    count = scaled(ci=66_000, full=200_000)
    requests = [
        JobEnqueue(
            ("test.job", "test.other")[n % 2],
            {"n": n},
            priority=n if n % 3 else None,
            idempotency_key=key and key.format(n),
        )
        for n in range(count)
    ]

    ids = [job.id for job in enqueue_jobs(pool, requests)]

    assert ids == sorted(set(ids))
    assert observer.value(
        """
        SELECT array_agg(id ORDER BY (payload ->> 'n')::int4) = array_agg(id ORDER BY id)
            AND count(*) = %(count)s
            AND bool_and(job_type = CASE WHEN (payload ->> 'n')::int4 %% 2 = 0 THEN 'test.job'
                ELSE 'test.other' END)
        FROM runledger.job_queue
        """,
        count=count,
    )
    assert ids[count // 2] == observer.value(
        "SELECT id FROM runledger.job_queue WHERE payload ->> 'n' = %(n)s::text", n=count // 2
    )


@pytest.mark.parametrize("payload", ["\0", {"a\0": 1}, [{"a": ["b\0"]}], "\ud800", {"\udfff": 1}])
def test_text_that_postgresql_cannot_hold_never_reaches_it(pool, observer, payload):
    with pytest.raises(ValidationError) as caught:
        enqueue_job(pool, JobEnqueue("test.job", payload))

    assert caught.value.code == "input.json_invalid_text"
    assert observer.jobs() == 0


@pytest.mark.parametrize("payload", [float("nan"), {"a": [{"b": float("inf")}]}, -float("inf")])
def test_number_that_json_cannot_hold_never_reaches_postgresql(pool, observer, payload):
    with pytest.raises(ValidationError) as caught:
        enqueue_job(pool, JobEnqueue("test.job", payload))

    assert caught.value.code == "input.json_not_finite"
    assert observer.jobs() == 0


def test_large_payload_is_stored_and_wakes_the_sleeper(
    pool, runledger_database, observer, larger_limits
):
    larger_limits(payload_bytes=6 * 1024 * 1024)
    payload = 'é"\\' * 1_000_000
    worker = runledger_database.connect_directly(autocommit=True)
    worker.execute("LISTEN runledger_wake")
    worker.execute("SELECT pg_advisory_lock_shared(1380743009, hashtext('test.job'))")

    enqueued = enqueue_job(pool, JobEnqueue("test.job", payload))

    worker.execute("SELECT 1")
    assert [notify.payload for notify in worker.notifies(timeout=0)] == ["test.job"]
    assert read(pool, enqueued.id).payload == payload


def test_payload_over_the_limit_is_refused_before_sql():
    with pytest.raises(ValidationError) as caught:
        enqueue_job(NO_DATABASE, JobEnqueue("test.job", "x" * (1024 * 1024 - 1)))

    assert caught.value.code == "input.json_too_large"


EXAMPLES = itertools.count()
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def stored_form(value):
    """jsonb keeps numbers in decimal: a float without a fraction comes back as an integer."""
    if isinstance(value, float):
        return json.loads(format(Decimal(repr(value)), "f"))
    if isinstance(value, list):
        return [stored_form(node) for node in value]
    if isinstance(value, dict):
        return {key: stored_form(node) for key, node in value.items()}
    return value


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(payloads=st.lists(JSON_VALUES, min_size=1, max_size=8))
def test_payloads_come_back_equal(pool, payloads):
    example = next(EXAMPLES)
    requests = [
        JobEnqueue("test.job", payload, idempotency_key=None if n % 2 else f"{example} {n}")
        for n, payload in enumerate(payloads)
    ]

    enqueued = enqueue_jobs(pool, requests)
    again = enqueue_jobs(pool, requests)

    payloads_read = [read(pool, job.id).payload for job in enqueued]
    assert payloads_read == [stored_form(payload) for payload in payloads]
    assert [job.id for job in again][::2] == [job.id for job in enqueued][::2]


def test_enqueue_takes_no_lock_on_the_definition(pool, runledger_database, observer):
    disabling = runledger_database.connect()
    disabling.execute("UPDATE runledger.job_definitions SET is_enabled = false")

    enqueued = enqueue_job(pool, JobEnqueue("test.job", {}))
    disabling.commit()

    assert enqueued.disposition == "INSERTED"
    with pytest.raises(ValidationError):
        enqueue_job(pool, JobEnqueue("test.job", {}))


@pytest.mark.parametrize("key", [None, "key"])
def test_open_enqueue_leaves_no_lock_in_its_definition(runledger_database, pool, observer, key):
    connection = runledger_database.connect()

    enqueue_job(connection, JobEnqueue("test.job", {}, idempotency_key=key))

    lockers = "SELECT xmax::text FROM runledger.job_definitions WHERE job_type = 'test.job'"
    assert observer.value(lockers) == "0"
    connection.commit()


def test_open_enqueue_does_not_hold_up_a_disable(runledger_database, pool, observer):
    connection = runledger_database.connect()
    enqueue_job(connection, JobEnqueue("test.job", {}))

    runledger_database.connect(autocommit=True).execute(
        "UPDATE runledger.job_definitions SET is_enabled = false"
    )
    connection.commit()

    assert observer.jobs() == 1


def test_instants_keep_their_microseconds(pool):
    due_at = datetime(2030, 6, 1, 12, 0, 0, 999_999, tzinfo=UTC) + timedelta(microseconds=1)

    enqueued = enqueue_job(pool, JobEnqueue("test.job", {}, next_run_at=due_at))

    assert read(pool, enqueued.id).next_run_at == due_at
