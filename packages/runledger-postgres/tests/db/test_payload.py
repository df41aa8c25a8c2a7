from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from runledger_core import (
    InternalError,
    JobCompletion,
    JobEnqueue,
    JobFailure,
    JsonInput,
    Scope,
    UnavailableError,
    ValidationError,
)
from runledger_postgres import enqueue_job, get_job
from runledger_postgres.jobs import (
    PayloadNotFound,
    PayloadRejected,
    PayloadRejection,
    PayloadUpdated,
    get_job_payload_by_idempotency_key,
    update_job_payload_uuid_array_field,
)
from runledger_postgres.lifecycle import (
    complete_job_failure,
    complete_job_success,
    release_job,
    requeue_job,
)

from ._one_job import claim

ADMIN = Scope.ADMIN
ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")
ONE, TWO = UUID(int=1), UUID(int=2)


def enqueue(pool, payload: JsonInput = None, **options) -> UUID:
    request = JobEnqueue("test.job", {"kept": True} if payload is None else payload, **options)
    return enqueue_job(pool, request).id


def edit(pool, job_id: UUID, **changes):
    arguments = {"scope": ADMIN, "job_type": "test.job", "field": "ids", "values": [ONE, TWO]}
    return update_job_payload_uuid_array_field(pool, job_id, **(arguments | changes))


def payload_of(pool, job_id: UUID) -> object:
    job = get_job(pool, job_id, scope=ADMIN)
    assert job is not None
    return job.payload


def test_field_of_a_waiting_job_is_set_and_the_others_stay(pool):
    job_id = enqueue(pool)

    result = edit(pool, job_id)

    assert result == PayloadUpdated()
    assert payload_of(pool, job_id) == {"kept": True, "ids": [str(ONE), str(TWO)]}


def test_field_may_be_emptied(pool):
    job_id = enqueue(pool, {"ids": [str(ONE)]})

    edit(pool, job_id, values=[])

    assert payload_of(pool, job_id) == {"ids": []}


def test_field_name_is_no_path(pool):
    job_id = enqueue(pool, {"a": {"b": 1}})

    edit(pool, job_id, field="{a,b}", values=[ONE])

    assert payload_of(pool, job_id) == {"a": {"b": 1}, "{a,b}": [str(ONE)]}


def test_released_and_requeued_jobs_are_waiting_too(pool):
    job_id = enqueue(pool)
    release_job(pool, claim(pool), reason="shutdown")
    assert edit(pool, job_id) == PayloadUpdated()
    complete_job_success(pool, claim(pool), JobCompletion.success())
    requeue_job(pool, job_id, scope=ADMIN)

    assert edit(pool, job_id, values=[]) == PayloadUpdated()


@pytest.mark.parametrize("state", ["leased", "succeeded", "retried"])
def test_payload_that_an_attempt_saw_is_kept(pool, state):
    job_id = enqueue(pool)
    lease = claim(pool)
    if state == "succeeded":
        complete_job_success(pool, lease, JobCompletion.success())
    if state == "retried":
        failure = JobFailure.retryable("test.busy", "busy")
        complete_job_failure(pool, lease, failure, retry_delay_ms=1)

    result = edit(pool, job_id)

    assert result == PayloadRejected(PayloadRejection.NOT_PENDING_OR_CLAIMED)
    assert payload_of(pool, job_id) == {"kept": True}


def test_keyed_job_keeps_its_payload(pool):
    job_id = enqueue(pool, idempotency_key="key")

    assert edit(pool, job_id) == PayloadRejected(PayloadRejection.IDEMPOTENT_REQUEST_SNAPSHOT)


def test_job_of_a_workflow_run_keeps_its_payload(pool):
    job_id = enqueue(pool)
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_queue SET workflow_run_id = %s", [uuid4()])

    assert edit(pool, job_id) == PayloadRejected(PayloadRejection.WORKFLOW_MANAGED)


@pytest.mark.parametrize("payload", [[], "text", 3])
def test_payload_without_fields_is_kept(pool, payload):
    job_id = enqueue(pool, payload)

    assert edit(pool, job_id) == PayloadRejected(PayloadRejection.PAYLOAD_NOT_OBJECT)
    assert payload_of(pool, job_id) == payload


def test_payload_may_not_grow_beyond_its_limit_but_may_shrink(pool):
    job_id = enqueue(pool, {"ids": [str(ONE)] * 2, "rest": ["x"] * 262_000})

    grown = edit(pool, job_id, values=[ONE] * 3_000)
    shrunk = edit(pool, job_id, values=[])

    assert grown == PayloadRejected(PayloadRejection.PAYLOAD_TOO_LARGE)
    assert shrunk == PayloadUpdated()


def test_job_of_another_id_type_or_scope_is_not_found(pool):
    job_id = enqueue(pool, organization_id=ORGANIZATION)

    assert edit(pool, uuid4()) == PayloadNotFound()
    assert edit(pool, job_id, job_type="test.other") == PayloadNotFound()
    assert edit(pool, job_id, scope=Scope.GLOBAL) == PayloadNotFound()
    assert edit(pool, job_id, scope=Scope.organization(ORGANIZATION)) == PayloadUpdated()


def test_wait_for_a_locked_job_is_bounded_and_leaves_the_callers_transaction_usable(pool):
    job_id = enqueue(pool)
    with pool.connection() as holder, pool.connection() as caller, holder.transaction():
        holder.execute("SELECT FROM runledger.job_queue WHERE id = %s FOR UPDATE", [job_id])

        with caller.transaction(), pytest.raises(UnavailableError) as refused:
            edit(caller, job_id, lock_timeout_ms=10)
        with caller.transaction():
            alive = caller.execute("SELECT 1").fetchone()

    assert refused.value.code == "db.lock_timeout"
    assert alive == (1,)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"values": [str(ONE)]}, "input.wrong_type", "values[0]"),
        ({"field": " "}, "input.blank", "field"),
        ({"field": "a\0"}, "input.invalid_characters", "field"),
        ({"job_type": ""}, "input.blank", "job_type"),
        ({"values": [ONE] * 30_000}, "input.json_too_large", "values"),
    ],
)
def test_bad_edit_is_refused_before_sql(changes, code, field):
    with pytest.raises(ValidationError) as refused:
        edit(object(), ONE, **changes)

    assert (refused.value.code, refused.value.field) == (code, field)


def test_payload_is_found_by_its_key(pool):
    theirs = enqueue(pool, {"n": 1}, idempotency_key="key", organization_id=ORGANIZATION)
    everybodys = enqueue(pool, {"n": 2}, idempotency_key="key")

    found = [
        get_job_payload_by_idempotency_key(pool, "key", scope=scope, job_type="test.job")
        for scope in (Scope.organization(ORGANIZATION), Scope.GLOBAL, Scope.organization(uuid4()))
    ]

    assert [one and (one.id, one.payload) for one in found] == [
        (theirs, {"n": 1}),
        (everybodys, {"n": 2}),
        None,
    ]


def test_key_of_another_type_is_not_found(pool):
    enqueue(pool, idempotency_key="key")

    found = get_job_payload_by_idempotency_key(
        pool, "key", scope=Scope.GLOBAL, job_type="test.other"
    )

    assert found is None


def test_key_names_no_single_job_across_organizations():
    with pytest.raises(ValidationError) as refused:
        get_job_payload_by_idempotency_key(object(), "key", scope=ADMIN, job_type="test.job")  # pyright: ignore[reportArgumentType]  # no SQL runs

    assert (refused.value.code, refused.value.field) == ("input.out_of_range", "scope")


def test_unreadable_payload_found_by_key_is_a_coded_error(pool):
    enqueue(pool, idempotency_key="key")
    with pool.connection() as connection:
        connection.execute("UPDATE runledger.job_queue SET payload = '1e5000'")

    with pytest.raises(InternalError) as refused:
        get_job_payload_by_idempotency_key(pool, "key", scope=Scope.GLOBAL, job_type="test.job")

    assert refused.value.code == "job.undecodable_row"
