import pytest

from runledger_core import (
    EnqueueDisposition,
    JobDeadLetterReason,
    JobEventType,
    JobFailureKind,
    JobOutcome,
    JobStage,
    JobStatus,
)

VALUES = {
    JobStatus: ["PENDING", "LEASED", "SUCCEEDED", "DEAD_LETTERED", "CANCELED"],
    JobStage: ["queued", "scheduled", "running", "completed"],
    JobEventType: [
        "ENQUEUED",
        "LEASED",
        "HEARTBEAT",
        "STAGE_CHANGED",
        "PROGRESS",
        "RETRY_SCHEDULED",
        "SUCCEEDED",
        "FAILED",
        "DEAD_LETTERED",
        "CANCELED",
        "REQUEUED",
    ],
    JobFailureKind: ["RETRYABLE", "TERMINAL", "PANICKED", "TIMEOUT", "LEASE_EXPIRED"],
    JobOutcome: [
        "SUCCEEDED",
        "CANCELED",
        "RETRYABLE",
        "TERMINAL",
        "PANICKED",
        "TIMEOUT",
        "LEASE_EXPIRED",
    ],
    JobDeadLetterReason: ["FAILURE_KIND_NON_RETRYABLE", "ATTEMPTS_EXHAUSTED", "LEASE_EXPIRED"],
    EnqueueDisposition: ["INSERTED", "EXISTING"],
}
enums = pytest.mark.parametrize("enum", VALUES)


@enums
def test_values_are_spelled_as_stored(enum):
    assert [member.value for member in enum] == VALUES[enum]


@enums
def test_members_survive_a_text_round_trip(enum):
    assert [enum(str(member)) for member in enum] == list(enum)


@enums
@pytest.mark.parametrize("text", ["", "UNKNOWN", "Queued", " PENDING", "pending"])
def test_unknown_text_is_rejected(enum, text):
    with pytest.raises(ValueError, match="is not a valid"):
        enum(text)


def test_terminal_statuses():
    terminal = {status for status in JobStatus if status.is_terminal}

    assert terminal == {"SUCCEEDED", "DEAD_LETTERED", "CANCELED"}


def test_retryable_kinds():
    retryable = {kind for kind in JobFailureKind if kind.is_retryable}

    assert retryable == {"RETRYABLE", "TIMEOUT", "LEASE_EXPIRED"}


def test_every_failure_kind_is_an_outcome():
    assert {*JobFailureKind, "SUCCEEDED", "CANCELED"} == set(JobOutcome)
