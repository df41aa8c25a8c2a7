from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from runledger_core import ConflictError, JobEnqueue, JobStage, Scope, ValidationError
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.lifecycle import (
    cancel_job,
    complete_job_success,
    requeue_job,
)

from ._one_job import claim

pytestmark = pytest.mark.core

ORGANIZATION_A = UUID("01900000-0000-7000-8000-00000000000a")
ORGANIZATION_B = UUID("01900000-0000-7000-8000-00000000000b")
INSTANT = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
KEY = "key-that-is-not-shown"
REQUEST = JobEnqueue("test.job", {"n": 1, "of": [1, 2]}, idempotency_key=KEY)

INSERT_DEFINITIONS = """
    INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job'), ('test.other')
"""


@pytest.fixture
def pool(runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute(INSERT_DEFINITIONS)
    return runledger_pool


def execute(pool, statement: str) -> None:
    with pool.connection() as connection:
        connection.execute(statement)


def enqueue_second(pool, request: JobEnqueue):
    return enqueue_jobs(pool, [JobEnqueue("test.job", {}), request, request])


def test_repeated_request_gets_the_job_of_the_first(pool, observer):
    first = enqueue_job(pool, REQUEST)
    again = enqueue_job(pool, REQUEST)

    assert (first.disposition, again.disposition) == ("INSERTED", "EXISTING")
    assert again.id == first.id
    assert observer.jobs() == 1
    assert (
        observer.value("SELECT count(*) FROM runledger.job_timeline WHERE event_type = 'ENQUEUED'")
        == 1
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": {"n": 1, "of": [2, 1]}}, "payload"),
        ({"priority": 0}, "priority"),
        ({"max_attempts": 8}, "max_attempts"),
        ({"timeout_seconds": 900}, "timeout_seconds"),
        ({"next_run_at": INSTANT}, "next_run_at"),
        ({"stage": JobStage.RUNNING}, "stage"),
    ],
)
@pytest.mark.parametrize(("enqueue", "entry_index"), [(enqueue_job, None), (enqueue_second, 1)])
def test_different_request_is_a_conflict_that_names_the_field(
    pool, change, field, enqueue, entry_index
):
    enqueue_job(pool, REQUEST)

    with pytest.raises(ConflictError) as caught:
        enqueue(pool, replace(REQUEST, **change))

    error = caught.value
    assert (error.code, error.field) == ("job.idempotency_conflict", field)
    assert error.entry_index == entry_index
    assert error.client_message.endswith(f": {field}")
    assert KEY not in f"{error} {error!r}"


def test_conflict_names_every_field_that_differs(pool):
    enqueue_job(pool, REQUEST)

    with pytest.raises(ConflictError) as caught:
        enqueue_job(pool, replace(REQUEST, payload=None, priority=1, stage=JobStage.RUNNING))

    assert caught.value.client_message.endswith(": payload, priority, stage")


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"payload": {"a": 1, "b": 2}}, {"payload": {"b": 2, "a": 1}}),
        ({"payload": {"a": 1}}, {"payload": {"a": 1.0}}),
        ({"payload": [100, 0]}, {"payload": [1e2, -0.0]}),
        ({"payload": (1, 2)}, {"payload": [1, 2]}),
        ({"payload": {"é": "ü"}}, {"payload": {"\u00e9": "\u00fc"}}),
        ({"stage": None}, {"stage": JobStage.QUEUED}),
        (
            {"next_run_at": INSTANT},
            {"next_run_at": datetime.fromisoformat("2030-01-02T05:04:05.678901+02:00")},
        ),
    ],
    ids=["order", "float", "exponent", "tuple", "text", "stage", "zone"],
)
def test_requests_that_mean_the_same_are_equal(pool, first, again):
    enqueued = enqueue_job(pool, replace(REQUEST, **first))

    assert enqueue_job(pool, replace(REQUEST, **again)).id == enqueued.id


@pytest.mark.parametrize(
    ("first", "again"),
    [(1, True), (0, False), (1, "1"), (None, {}), ({}, []), ([1], [1, 1]), ({"a": None}, {})],
    ids=repr,
)
def test_payloads_that_python_or_a_casual_look_takes_for_equal_differ(pool, first, again):
    enqueue_job(pool, replace(REQUEST, payload=first))

    with pytest.raises(ConflictError):
        enqueue_job(pool, replace(REQUEST, payload=again))


def test_later_change_of_the_definition_is_no_conflict(pool):
    enqueued = enqueue_job(pool, REQUEST)
    execute(
        pool,
        "UPDATE runledger.job_definitions SET default_priority = 1, max_attempts = 1,"
        " default_timeout_seconds = 1",
    )

    assert enqueue_job(pool, REQUEST).id == enqueued.id


def test_stored_request_has_the_form_of_the_original(pool, observer):
    enqueue_job(
        pool,
        replace(
            REQUEST,
            organization_id=ORGANIZATION_A,
            priority=5,
            next_run_at=INSTANT,
            stage=JobStage.SCHEDULED,
        ),
    )

    snapshot = observer.value("SELECT enqueue_request::text FROM runledger.job_queue")

    assert snapshot == (
        '{"stage": "scheduled", "payload": {"n": 1, "of": [1, 2]}, "priority": 5,'
        ' "next_run_at": "2030-01-02T03:04:05.678901Z", "max_attempts": null,'
        ' "timeout_seconds": null}'
    )


def test_stored_request_of_another_implementation_matches(pool, runledger_database):
    execute(
        pool,
        """
        INSERT INTO runledger.job_queue (job_type, max_attempts, idempotency_key, enqueue_request)
        VALUES ('test.job', 1, 'theirs', '{"payload": {"a": 1}, "priority": null, "max_attempts": 3,
            "timeout_seconds": null, "next_run_at": "0099-12-31T23:59:59.000001Z",
            "stage": "queued"}')
        """,
    )
    next_run_at = datetime(99, 12, 31, 23, 59, 59, 1, tzinfo=UTC)

    again = enqueue_job(
        pool,
        JobEnqueue(
            "test.job",
            {"a": 1},
            max_attempts=3,
            next_run_at=next_run_at,
            idempotency_key="theirs",
        ),
    )

    assert again.disposition == "EXISTING"


def test_stored_field_that_this_version_does_not_know_is_a_difference(pool):
    enqueue_job(pool, REQUEST)
    execute(
        pool,
        "UPDATE runledger.job_queue"
        """ SET enqueue_request = enqueue_request || '{"execution_resource_key": "r"}'""",
    )

    with pytest.raises(ConflictError) as caught:
        enqueue_job(pool, REQUEST)

    assert caught.value.field == "execution_resource_key"


def test_key_counts_per_type_and_organization_or_global(pool, observer):
    requests = [
        REQUEST,
        replace(REQUEST, organization_id=ORGANIZATION_A),
        replace(REQUEST, organization_id=ORGANIZATION_B),
        replace(REQUEST, job_type="test.other"),
        replace(REQUEST, job_type="test.other", organization_id=ORGANIZATION_A),
    ]

    singly = [enqueue_job(pool, request).id for request in requests]
    together = enqueue_jobs(pool, [*requests, *reversed(requests)])

    assert len(set(singly)) == observer.jobs() == 5
    assert [job.id for job in together] == [*singly, *reversed(singly)]
    assert {job.disposition for job in together} == {"EXISTING"}


def test_key_counts_per_type_and_organization_inside_a_batch_too(pool, observer):
    organizations = [None, ORGANIZATION_A, ORGANIZATION_B]
    requests = [replace(REQUEST, organization_id=each, payload=str(each)) for each in organizations]

    enqueued = enqueue_jobs(pool, [*requests, *requests])

    assert [job.disposition for job in enqueued] == ["INSERTED"] * 3 + ["EXISTING"] * 3
    assert observer.jobs() == 3


@pytest.mark.parametrize(
    "key", ["k" * 512, "é" * 256, "€" * 170, "x y", " padded ", "'\"\\%s%%{}", "NULL"]
)
def test_keys_of_every_kind_and_size_work(pool, key):
    request = replace(REQUEST, idempotency_key=key)

    first, second = enqueue_job(pool, request), enqueue_jobs(pool, [request, REQUEST])[0]

    assert first.id == second.id


def test_key_that_does_not_compress_fits_the_index(pool):
    key = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(170))
    job_type = "".join(chr(0x1F300 + n * 7919 % 700) for n in range(200))
    execute(pool, f"INSERT INTO runledger.job_definitions (job_type) VALUES ('{job_type}')")
    request = JobEnqueue(job_type, {}, organization_id=ORGANIZATION_A, idempotency_key=key)

    assert enqueue_job(pool, request).id == enqueue_job(pool, request).id


@pytest.mark.parametrize("key", ["", "  ", "k" * 513, "é" * 257, "a\0b", "\ud800"])
def test_key_that_cannot_be_stored_is_refused(key):
    with pytest.raises(ValidationError) as caught:
        replace(REQUEST, idempotency_key=key)

    assert caught.value.field == "idempotency_key"


def test_key_still_matches_whatever_became_of_the_job(pool):
    enqueued = enqueue_job(pool, REQUEST)

    def matches() -> bool:
        again = enqueue_job(pool, REQUEST)
        return (again.id, again.disposition) == (enqueued.id, "EXISTING")

    lease = claim(pool)
    assert matches()
    complete_job_success(pool, lease)
    assert matches()
    requeue_job(pool, enqueued.id, scope=Scope.ADMIN)
    assert matches()
    cancel_job(pool, enqueued.id, scope=Scope.ADMIN)
    assert matches()


def test_key_of_a_disabled_type_still_answers_and_a_new_one_is_refused(pool, observer):
    enqueued = enqueue_job(pool, REQUEST)
    execute(pool, "UPDATE runledger.job_definitions SET is_enabled = false")
    new = replace(REQUEST, idempotency_key="new")

    assert enqueue_job(pool, REQUEST).id == enqueued.id
    assert [job.id for job in enqueue_jobs(pool, [REQUEST, REQUEST])] == [enqueued.id] * 2
    with pytest.raises(ConflictError):
        enqueue_job(pool, replace(REQUEST, payload=2))
    with pytest.raises(ValidationError) as caught:
        enqueue_jobs(pool, [REQUEST, new, REQUEST])
    assert (caught.value.code, caught.value.entry_index) == (
        "job.definition_not_found_or_disabled",
        1,
    )
    assert observer.jobs() == 1


def test_key_of_a_type_without_a_definition_still_answers(pool):
    enqueued = enqueue_job(pool, REQUEST)
    execute(pool, "DELETE FROM runledger.job_definitions")

    assert enqueue_job(pool, REQUEST).id == enqueued.id


@pytest.mark.parametrize(("enqueue", "entry_index"), [(enqueue_job, None), (enqueue_second, 1)])
def test_row_that_predates_stored_requests_is_a_conflict_of_its_own(
    pool, observer, enqueue, entry_index
):
    execute(
        pool,
        "ALTER TABLE runledger.job_queue DROP CONSTRAINT ck_job_queue_idempotency_enqueue_request",
    )
    enqueue_job(pool, REQUEST)
    execute(pool, "UPDATE runledger.job_queue SET enqueue_request = NULL")

    with pytest.raises(ConflictError) as caught:
        enqueue(pool, REQUEST)

    assert caught.value.code == "job.legacy_idempotency_snapshot_missing"
    assert caught.value.entry_index == entry_index
    assert KEY not in f"{caught.value} {caught.value!r}"
    assert observer.jobs() == 1


def test_requests_without_a_key_always_make_a_job(pool, observer):
    request = replace(REQUEST, idempotency_key=None)

    jobs = enqueue_jobs(pool, [request, REQUEST, request, REQUEST])

    assert [job.disposition for job in jobs] == ["INSERTED", "INSERTED", "INSERTED", "EXISTING"]
    assert observer.jobs() == 3


def test_batch_answers_in_its_own_order(pool, observer):
    stored = enqueue_job(pool, replace(REQUEST, idempotency_key="m"))
    keys = ["z", "m", "a", None, "z", "a", "m", None]

    jobs = enqueue_jobs(pool, [replace(REQUEST, idempotency_key=key) for key in keys])

    assert [job.disposition[0] for job in jobs] == ["I", "E", "I", "I", "E", "E", "E", "I"]
    ids = [job.id for job in jobs]
    assert (ids[1], ids[6]) == (stored.id, stored.id)
    assert (ids[4], ids[5]) == (ids[0], ids[2])
    # New jobs run in the order of the requests, not of their keys.
    assert ids[0] < ids[2] < ids[3] < ids[7]
    assert observer.jobs() == 5


def test_conflict_inside_a_batch_names_the_later_entry(pool, observer):
    with pytest.raises(ConflictError) as caught:
        enqueue_jobs(
            pool, [REQUEST, replace(REQUEST, idempotency_key="x"), replace(REQUEST, payload=2)]
        )

    assert (caught.value.code, caught.value.entry_index) == ("job.idempotency_conflict", 2)
    assert caught.value.field == "payload"
    assert observer.jobs() == 0


def test_first_refused_entry_is_the_one_that_is_named(pool):
    enqueue_job(pool, REQUEST)

    with pytest.raises(ConflictError) as caught:
        enqueue_jobs(
            pool,
            [REQUEST, replace(REQUEST, priority=1), JobEnqueue("test.none", {}), REQUEST],
        )

    assert caught.value.entry_index == 1


@pytest.mark.parametrize("is_joined", [False, True])
def test_batch_with_a_conflict_leaves_nothing(pool, runledger_database, observer, is_joined):
    enqueue_job(pool, REQUEST)
    requests = [
        replace(REQUEST, idempotency_key="new"),
        JobEnqueue("test.job", {}),
        replace(REQUEST, payload=2),
    ]
    connection = runledger_database.connect()

    with pytest.raises(ConflictError):
        enqueue_jobs(connection if is_joined else pool, requests)
    connection.commit()

    assert observer.jobs() == 1
