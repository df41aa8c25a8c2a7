import copy
import dataclasses
import pickle
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from runledger_core import JobEnqueue, JobStage, JobType, ValidationError

INT32_MAX = 2_147_483_647
ORGANIZATION = UUID(int=1)


def full_request():
    return JobEnqueue(
        "jobs.email.send",
        {"to": "secret@example.com"},
        organization_id=ORGANIZATION,
        priority=-5,
        max_attempts=4,
        timeout_seconds=60,
        next_run_at=datetime(2026, 7, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        idempotency_key="secret:17",
        stage=JobStage.SCHEDULED,
    )


def pickled(request):
    return pickle.loads(pickle.dumps(request))  # our own bytes


def test_only_type_and_payload_are_needed():
    request = JobEnqueue("jobs.email.send", None)

    assert type(request.job_type) is JobType
    assert request.payload_json == "null"
    assert dataclasses.asdict(request) == {
        "job_type": "jobs.email.send",
        "payload": None,
        "organization_id": None,
        "priority": None,
        "max_attempts": None,
        "timeout_seconds": None,
        "next_run_at": None,
        "idempotency_key": None,
        "stage": None,
        "trace_context": None,
        "payload_json": "null",
    }


def test_instants_are_kept_in_utc():
    assert full_request().next_run_at == datetime(2026, 7, 1, tzinfo=UTC)
    assert str(full_request().next_run_at) == "2026-07-01 00:00:00+00:00"


def test_repr_shows_neither_payload_nor_key():
    assert repr(full_request()) == (
        "JobEnqueue(job_type='jobs.email.send', "
        "organization_id=UUID('00000000-0000-0000-0000-000000000001'), priority=-5, "
        "max_attempts=4, timeout_seconds=60, next_run_at=datetime.datetime(2026, 7, 1, 0, 0, "
        "tzinfo=datetime.timezone.utc), stage=<JobStage.SCHEDULED: 'scheduled'>)"
    )


def test_request_of_another_trace_is_the_same_request():
    request = full_request()
    traced = dataclasses.replace(request, trace_context="00-1-2-01")

    assert traced.trace_context == "00-1-2-01"
    assert traced == request
    assert repr(traced) == repr(request)


def test_later_changes_of_the_payload_change_nothing():
    payload = {"to": "a"}
    request = JobEnqueue("a", payload)

    payload["to"] = "b"

    assert request.payload_json == '{"to":"a"}'


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("job_type", "", "input.blank"),
        ("job_type", "a" * 201, "input.too_long"),
        ("payload", {1}, "input.json_unsupported_type"),
        ("payload", float("nan"), "input.json_not_finite"),
        ("payload", {1: 2}, "input.json_invalid_key"),
        ("payload", "\0", "input.json_invalid_text"),
        pytest.param("payload", 10**4300, "input.json_number_too_long", id="long number"),
        pytest.param("payload", "x" * 1_048_575, "input.json_too_large", id="1 MiB + 1"),
        ("organization_id", str(ORGANIZATION), "input.wrong_type"),
        ("priority", INT32_MAX + 1, "input.out_of_range"),
        ("priority", -INT32_MAX - 2, "input.out_of_range"),
        ("priority", True, "input.wrong_type"),
        ("max_attempts", 0, "input.out_of_range"),
        ("max_attempts", INT32_MAX + 1, "input.out_of_range"),
        ("max_attempts", False, "input.wrong_type"),
        ("timeout_seconds", -1, "input.out_of_range"),
        ("timeout_seconds", 1.0, "input.wrong_type"),
        ("next_run_at", datetime(2026, 7, 1), "input.naive_timestamp"),  # noqa: DTZ001  # the mistake
        ("next_run_at", "now", "input.wrong_type"),
        ("idempotency_key", "", "input.blank"),
        ("idempotency_key", " \n", "input.blank"),
        ("idempotency_key", "é" * 257, "input.too_long"),
        ("idempotency_key", "a\0", "input.invalid_characters"),
        ("idempotency_key", 17, "input.wrong_type"),
        ("stage", "waiting", "input.out_of_range"),
        ("trace_context", "", "input.blank"),
        pytest.param("trace_context", "a" * 1_025, "input.too_long", id="1,025 characters"),
        ("trace_context", "00-\n", "input.invalid_characters"),
        ("trace_context", "00-é", "input.invalid_characters"),
        ("trace_context", b"00", "input.wrong_type"),
    ],
)
def test_other_values_are_refused(field, value, code):
    request = full_request()

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(request, **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field


def test_largest_values_are_kept():
    request = JobEnqueue(
        "é" * 200,
        "x" * 1_048_574,
        priority=-INT32_MAX - 1,
        max_attempts=INT32_MAX,
        timeout_seconds=INT32_MAX,
        next_run_at=datetime.max.replace(tzinfo=UTC),
        idempotency_key="é" * 256,
        trace_context="a" * 1_024,
    )

    assert len(request.payload_json) == 1_048_576
    assert request.next_run_at == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_replacing_encodes_the_new_payload():
    request = dataclasses.replace(full_request(), payload=[1], stage="running")

    assert request.payload_json == "[1]"
    assert request.stage is JobStage.RUNNING
    assert request.idempotency_key == "secret:17"


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled])
def test_clones_are_equal(clone):
    cloned = clone(full_request())

    assert cloned == full_request()
    assert hash(cloned) == hash(full_request())
    assert cloned.payload_json == '{"to":"secret@example.com"}'


def test_requests_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        full_request().priority = 1  # pyright: ignore[reportAttributeAccessIssue]  # the mistake


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        JobEnqueue("a", None, ORGANIZATION)  # pyright: ignore[reportCallIssue]  # the mistake
