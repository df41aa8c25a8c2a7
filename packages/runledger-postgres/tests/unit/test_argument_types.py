from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import NonCallableMock
from uuid import UUID

import pytest

from runledger_core import (
    JobCompletion,
    JobDefinitionSpec,
    JobEnqueue,
    JobFailure,
    JobLease,
    JobProgressUpdate,
    Scope,
    ValidationError,
)
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunEnqueue
from runledger_postgres import (
    admin,
    definitions,
    jobs,
    lifecycle,
    runtime_configs,
    schedules,
    workers,
    workflows,
)
from runledger_postgres.admin import JobFilter, WorkflowRunFilter

# Whoever ran SQL on this would fail with another error.
DB: Any = object()
JOB = UUID(int=1)
LEASE = JobLease(JOB, 1, attempt=1, claim_number=1, worker_id="worker-1")
FAILURE = JobFailure.retryable("a.code", "message")
UPDATE = JobProgressUpdate(done=1)
SPEC = JobDefinitionSpec("test.job", max_attempts=3)
ADMIN: dict[str, Any] = {"scope": Scope.ADMIN}
TTL: dict[str, Any] = {"lease_ttl_seconds": 60}

Call = Callable[[Any], object]

SCOPED: dict[str, Call] = {
    "get_job": lambda scope: jobs.get_job(DB, JOB, scope=scope),
    "get_dead_letter": lambda scope: jobs.get_dead_letter(DB, JOB, scope=scope),
    "list_dead_letters": lambda scope: jobs.list_dead_letters(DB, scope=scope),
    "list_job_events": lambda scope: jobs.list_job_events(DB, JOB, scope=scope),
    "list_job_attempts": lambda scope: jobs.list_job_attempts(DB, JOB, scope=scope),
    "list_job_logs": lambda scope: jobs.list_job_logs(DB, JOB, scope=scope),
    "get_job_payload_by_idempotency_key": lambda scope: jobs.get_job_payload_by_idempotency_key(
        DB, "key", scope=scope, job_type="test.job"
    ),
    "update_job_payload": lambda scope: jobs.update_job_payload_uuid_array_field(
        DB, JOB, scope=scope, job_type="test.job", field="ids", values=[]
    ),
    "insert_job_log": lambda scope: jobs.insert_job_log(
        DB, JOB, scope=scope, level="INFO", message="a"
    ),
    "cancel_job": lambda scope: lifecycle.cancel_job(DB, JOB, scope=scope),
    "cancel_jobs": lambda scope: lifecycle.cancel_jobs(DB, [JOB], scope=scope),
    "requeue_job": lambda scope: lifecycle.requeue_job(DB, JOB, scope=scope),
    "requeue_jobs": lambda scope: lifecycle.requeue_jobs(DB, [JOB], scope=scope),
    "JobFilter": JobFilter,
}
OF_ONE_JOB: dict[str, Call] = {
    "get_job": lambda job_id: jobs.get_job(DB, job_id, **ADMIN),
    "get_dead_letter": lambda job_id: jobs.get_dead_letter(DB, job_id, **ADMIN),
    "list_job_events": lambda job_id: jobs.list_job_events(DB, job_id, **ADMIN),
    "list_job_attempts": lambda job_id: jobs.list_job_attempts(DB, job_id, **ADMIN),
    "list_job_logs": lambda job_id: jobs.list_job_logs(DB, job_id, **ADMIN),
    "cancel_job": lambda job_id: lifecycle.cancel_job(DB, job_id, **ADMIN),
    "requeue_job": lambda job_id: lifecycle.requeue_job(DB, job_id, **ADMIN),
}
OF_ONE_LEASE: dict[str, Call] = {
    "heartbeat_job": lambda lease: lifecycle.heartbeat_job(DB, lease, **TTL),
    "complete_job_success": lambda lease: lifecycle.complete_job_success(DB, lease),
    "complete_job_failure": lambda lease: lifecycle.complete_job_failure(DB, lease, FAILURE),
    "update_job_progress": lambda lease: lifecycle.update_job_progress(DB, lease, UPDATE),
    "release_job": lambda lease: lifecycle.release_job(DB, lease, reason="a"),
    "insert_claim_log": lambda lease: jobs.insert_claim_log(DB, lease, level="INFO", message="a"),
    "SuccessEntry": lambda lease: lifecycle.SuccessEntry(lease, JobCompletion.success()),
    "FailureEntry": lambda lease: lifecycle.FailureEntry(lease, FAILURE),
}
LISTS: dict[str, tuple[str, Call]] = {
    "cancel_jobs": ("job_ids", lambda given: lifecycle.cancel_jobs(DB, given, **ADMIN)),
    "requeue_jobs": ("job_ids", lambda given: lifecycle.requeue_jobs(DB, given, **ADMIN)),
    "heartbeat_jobs": ("leases", lambda given: lifecycle.heartbeat_jobs(DB, given, **TTL)),
    "release_jobs": ("leases", lambda given: lifecycle.release_jobs(DB, given, reason="a")),
    "complete_jobs": ("entries", lambda given: lifecycle.complete_jobs(DB, given)),
    "fail_jobs": ("entries", lambda given: lifecycle.fail_jobs(DB, given)),
    "insert_job_logs": ("entries", lambda given: jobs.insert_job_logs(DB, given, **ADMIN)),
    "sync": ("specs", lambda given: definitions.sync_job_definitions(DB, given)),
    "sync exact": (
        "specs",
        lambda given: definitions.sync_job_definitions_exact(DB, given, scope=["test.job"]),
    ),
}
OTHER_LISTS: dict[str, tuple[str, Call]] = {
    "enqueue_jobs": ("requests", lambda given: jobs.enqueue_jobs(DB, given)),
    "find_claims": ("known", lambda given: lifecycle.find_claims(DB, worker_id="w", known=given)),
    "report": ("job_types", lambda given: a_report(job_types=given)),
}
FILTERED: dict[str, Call] = {
    "list_jobs": lambda chosen: admin.list_jobs(DB, chosen),
    "count_jobs": lambda chosen: admin.count_jobs(DB, chosen),
    "count_jobs_bounded": lambda chosen: admin.count_jobs_bounded(DB, chosen, cap=1),
    "list_workflow_runs": lambda chosen: admin.list_workflow_runs(DB, chosen),
    "count_workflow_runs": lambda chosen: admin.count_workflow_runs(DB, chosen),
    "count_workflow_runs_bounded": lambda chosen: admin.count_workflow_runs_bounded(
        DB, chosen, cap=1
    ),
}
WAITING: dict[str, Call] = {
    "cancel_job": lambda ms: lifecycle.cancel_job(DB, JOB, **ADMIN, lock_timeout_ms=ms),
    "cancel_jobs": lambda ms: lifecycle.cancel_jobs(DB, [JOB], **ADMIN, lock_timeout_ms=ms),
    "requeue_job": lambda ms: lifecycle.requeue_job(DB, JOB, **ADMIN, lock_timeout_ms=ms),
    "requeue_jobs": lambda ms: lifecycle.requeue_jobs(DB, [JOB], **ADMIN, lock_timeout_ms=ms),
    "heartbeat_job": lambda ms: lifecycle.heartbeat_job(DB, LEASE, **TTL, lock_timeout_ms=ms),
    "complete_job_success": lambda ms: lifecycle.complete_job_success(
        DB, LEASE, lock_timeout_ms=ms
    ),
    "complete_job_failure": lambda ms: lifecycle.complete_job_failure(
        DB, LEASE, FAILURE, lock_timeout_ms=ms
    ),
    "update_job_progress": lambda ms: lifecycle.update_job_progress(
        DB, LEASE, UPDATE, lock_timeout_ms=ms
    ),
    "release_job": lambda ms: lifecycle.release_job(DB, LEASE, reason="a", lock_timeout_ms=ms),
    "update_job_payload": lambda ms: jobs.update_job_payload_uuid_array_field(
        DB, JOB, **ADMIN, job_type="test.job", field="ids", values=[], lock_timeout_ms=ms
    ),
    "upsert": lambda ms: definitions.upsert_job_definition(DB, SPEC, lock_timeout_ms=ms),
    "insert": lambda ms: definitions.insert_job_definition_if_missing(DB, SPEC, lock_timeout_ms=ms),
    "update": lambda ms: definitions.update_job_definition(DB, "test.job", lock_timeout_ms=ms),
    "sync": lambda ms: definitions.sync_job_definitions(DB, [SPEC], lock_timeout_ms=ms),
    "sync exact": lambda ms: definitions.sync_job_definitions_exact(
        DB, [SPEC], scope=["test.job"], lock_timeout_ms=ms
    ),
    "insert config": lambda ms: runtime_configs.insert_job_runtime_config_if_missing(
        DB, "test.job", schema_version=1, config={}, lock_timeout_ms=ms
    ),
    "upsert config": lambda ms: runtime_configs.upsert_job_runtime_config(
        DB, "test.job", schema_version=1, config={}, lock_timeout_ms=ms
    ),
}
OTHERS: dict[str, tuple[str, Call]] = {
    "failure": ("failure", lambda given: lifecycle.complete_job_failure(DB, LEASE, given)),
    "completion": ("completion", lambda given: lifecycle.complete_job_success(DB, LEASE, given)),
    "update": ("update", lambda given: lifecycle.update_job_progress(DB, LEASE, given)),
    "upsert": ("spec", lambda given: definitions.upsert_job_definition(DB, given)),
    "insert": ("spec", lambda given: definitions.insert_job_definition_if_missing(DB, given)),
    "report": ("report", lambda given: workers.record_worker(DB, given)),
    "prune": ("older_than", lambda given: workers.prune_workers(DB, older_than=given)),
    "scope of a sync": (
        "scope",
        lambda given: definitions.sync_job_definitions_exact(DB, [SPEC], scope=given),
    ),
    "failure's delay": (
        "retry_delay_ms",
        lambda given: lifecycle.complete_job_failure(DB, LEASE, FAILURE, retry_delay_ms=given),
    ),
    "release's delay": (
        "retry_delay_ms",
        lambda given: lifecycle.release_job(DB, LEASE, reason="a", retry_delay_ms=given),
    ),
    "reaper's delay": (
        "retry_delay_ms",
        lambda given: lifecycle.reap_expired_leases(DB, limit=1, retry_delay_ms=given),
    ),
    "kind of failure": ("kind", lifecycle.dead_letter_reason),
    "plan of fires": ("plan", lambda given: schedules.fire_due_schedules(DB, given, limit=1)),
}


class Liar:
    """Has no class, if asked for it."""

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # nobody sets it
        raise RuntimeError


class OddNumber(int):
    """A number that compares with nothing."""

    def _refuse(self, other: object) -> bool:
        raise RuntimeError

    __lt__ = __le__ = __gt__ = __ge__ = _refuse


def fake(spec: type[object]) -> Callable[[], object]:
    return lambda: NonCallableMock(spec=spec)


def a_report(**fields: Any) -> workers.WorkerReport:
    usual: dict[str, Any] = {"pid": 1, "version": "0.4.0", "job_types": [], "concurrency": 4}
    return workers.WorkerReport("worker-1", "host", **usual | fields)


def unchecked(kind: type[Any], *arguments: Any, **keywords: Any) -> object:
    """Return an instance of a subclass that leaves out the checks."""
    subclass = type("Unchecked", (kind,), {"__post_init__": lambda self: None})
    return subclass(*arguments, **keywords)


def refusal_of(call: Call, given: object) -> tuple[str, str | None]:
    with pytest.raises(ValidationError) as refused:
        call(given)
    return refused.value.code, refused.value.field


@pytest.mark.parametrize("given", [None, "ADMIN", JOB])
@pytest.mark.parametrize("call", SCOPED.values(), ids=SCOPED)
def test_scope_of_another_type_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", "scope")


@pytest.mark.parametrize("given", [None, str(JOB), 1])
@pytest.mark.parametrize("call", OF_ONE_JOB.values(), ids=OF_ONE_JOB)
def test_job_id_that_is_no_uuid_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", "job_id")


@pytest.mark.parametrize("given", [None, JOB, "lease"])
@pytest.mark.parametrize("call", OF_ONE_LEASE.values(), ids=OF_ONE_LEASE)
def test_lease_of_another_type_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", "lease")


@pytest.mark.parametrize("given", [None, "abc", b"abc", 1, ""])
@pytest.mark.parametrize(("field", "call"), (LISTS | OTHER_LISTS).values(), ids=LISTS | OTHER_LISTS)
def test_what_is_no_list_is_refused_before_sql(field: str, call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", field)


@pytest.mark.parametrize("given", ["abc", "", 1])
def test_types_of_a_claim_that_are_no_list_are_refused_before_sql(given: object):
    def claim(job_types: Any) -> object:
        return lifecycle.claim_jobs(DB, worker_id="worker-1", limit=1, job_types=job_types, **TTL)

    assert refusal_of(claim, given) == ("input.wrong_type", "job_types")


@pytest.mark.parametrize("given", [[None], ["abc"], (1,), {"a": 1}])
@pytest.mark.parametrize(("field", "call"), LISTS.values(), ids=LISTS)
def test_list_of_another_type_is_refused_before_sql(field: str, call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", f"{field}[0]")


@pytest.mark.parametrize("given", [None, "5000", 1.5, True])
@pytest.mark.parametrize("call", WAITING.values(), ids=WAITING)
def test_wait_that_is_no_integer_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", "lock_timeout_ms")


@pytest.mark.parametrize("given", [0, -1, 2**31])
@pytest.mark.parametrize("call", WAITING.values(), ids=WAITING)
def test_wait_out_of_range_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.out_of_range", "lock_timeout_ms")


@pytest.mark.parametrize("given", ["", "text", 0.5, float("nan"), False])
@pytest.mark.parametrize(("field", "call"), OTHERS.values(), ids=OTHERS)
def test_argument_of_another_type_is_refused_before_sql(field: str, call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", field)


def test_ids_from_a_generator_are_all_taken():
    refused = refusal_of(
        lambda given: lifecycle.cancel_jobs(DB, given, **ADMIN),
        (job_id for job_id in [JOB, "second"]),
    )

    assert refused == ("input.wrong_type", "job_ids[1]")


@pytest.mark.parametrize("make", [fake(list), fake(object), Liar])
@pytest.mark.parametrize(("field", "call"), (LISTS | OTHER_LISTS).values(), ids=LISTS | OTHER_LISTS)
def test_what_only_claims_to_be_a_list_is_refused_before_sql(
    field: str, call: Call, make: Callable[[], object]
):
    assert refusal_of(call, make()) == ("input.wrong_type", field)


def test_error_of_the_code_that_makes_a_list_is_not_hidden():
    requests = (JobEnqueue(job_type, {}) for job_type in ["test.job", " "])

    assert refusal_of(lambda given: jobs.enqueue_jobs(DB, given), requests) == (
        "input.blank",
        "job_type",
    )


@pytest.mark.parametrize("make", [fake(Scope), Liar])
@pytest.mark.parametrize("call", SCOPED.values(), ids=SCOPED)
def test_what_only_claims_to_be_a_scope_is_refused_before_sql(
    call: Call, make: Callable[[], object]
):
    assert refusal_of(call, make()) == ("input.wrong_type", "scope")


@pytest.mark.parametrize("make", [fake(JobLease), Liar])
@pytest.mark.parametrize("call", OF_ONE_LEASE.values(), ids=OF_ONE_LEASE)
def test_what_only_claims_to_be_a_lease_is_refused_before_sql(
    call: Call, make: Callable[[], object]
):
    assert refusal_of(call, make()) == ("input.wrong_type", "lease")


@pytest.mark.parametrize("make", [fake(int), Liar])
@pytest.mark.parametrize(("field", "call"), OTHERS.values(), ids=OTHERS)
def test_what_only_claims_to_be_an_argument_is_refused_before_sql(
    field: str, call: Call, make: Callable[[], object]
):
    assert refusal_of(call, make()) == ("input.wrong_type", field)


def test_number_of_a_subclass_counts_by_its_value():
    entry = lifecycle.FailureEntry(LEASE, FAILURE, retry_delay_ms=OddNumber(5))

    assert type(entry.retry_delay_ms) is int


@pytest.mark.parametrize("given", [None, {}, Scope.ADMIN])
@pytest.mark.parametrize("call", FILTERED.values(), ids=FILTERED)
def test_filter_of_another_type_is_refused_before_sql(call: Call, given: object):
    assert refusal_of(call, given) == ("input.wrong_type", "chosen")


@pytest.mark.parametrize("given", [5, 1.5])
@pytest.mark.parametrize("kind", [JobFilter, WorkflowRunFilter])
def test_filter_refuses_statuses_that_are_no_list(kind: Call, given: object):
    assert refusal_of(
        lambda status: kind(Scope.ADMIN, status=status),  # pyright: ignore[reportCallIssue]  # each of the two kinds has it
        given,
    ) == ("input.wrong_type", "status")


def test_job_request_that_was_never_checked_is_refused_before_sql():
    with pytest.raises(ValidationError) as refused:
        jobs.enqueue_jobs(DB, [JobEnqueue("test.job", {}), unchecked(JobEnqueue, "test.job", {})])  # pyright: ignore[reportArgumentType]  # the fault

    assert (refused.value.code, refused.value.entry_index) == ("input.wrong_type", 1)


def test_run_request_that_was_never_checked_is_refused_before_sql():
    steps = WorkflowDagBuilder("test.run").job("a", "test.job", {}).build().steps
    request = unchecked(WorkflowRunEnqueue, "test.run", {}, steps=steps)

    assert refusal_of(lambda given: workflows.enqueue_workflow_run(DB, given), request) == (
        "input.wrong_type",
        "request",
    )


def test_completion_that_was_never_checked_is_refused_before_sql():
    assert refusal_of(
        lambda given: lifecycle.complete_job_success(DB, LEASE, given), unchecked(JobCompletion)
    ) == ("input.wrong_type", "completion")
