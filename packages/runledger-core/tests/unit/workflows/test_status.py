import pytest

from runledger_core import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)

VALUES = {
    WorkflowRunStatus: [
        "RUNNING",
        "WAITING_FOR_EXTERNAL",
        "SUCCEEDED",
        "COMPLETED_WITH_ERRORS",
        "CANCELED",
    ],
    WorkflowStepStatus: [
        "BLOCKED",
        "WAITING_FOR_EXTERNAL",
        "ENQUEUED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "CANCELED",
    ],
    WorkflowDependencyReleaseMode: ["ON_TERMINAL", "ON_SUCCESS"],
    WorkflowStepExecutionKind: ["JOB", "EXTERNAL"],
}
enums = pytest.mark.parametrize("enum", VALUES)


@enums
def test_values_are_spelled_as_stored(enum):
    assert [member.value for member in enum] == VALUES[enum]


@enums
def test_members_survive_a_text_round_trip(enum):
    assert [enum(str(member)) for member in enum] == list(enum)


@enums
@pytest.mark.parametrize("text", ["", "UNKNOWN", "Running", " JOB", "running", "SKIPPED"])
def test_unknown_text_is_rejected(enum, text):
    with pytest.raises(ValueError, match="is not a valid"):
        enum(text)


def test_terminal_statuses_of_runs():
    terminal = {status for status in WorkflowRunStatus if status.is_terminal}

    assert terminal == {"SUCCEEDED", "COMPLETED_WITH_ERRORS", "CANCELED"}


def test_terminal_statuses_of_steps():
    terminal = {status for status in WorkflowStepStatus if status.is_terminal}

    assert terminal == {"SUCCEEDED", "FAILED", "CANCELED"}


@pytest.mark.parametrize(
    ("mode", "satisfying"),
    [("ON_TERMINAL", {"SUCCEEDED", "FAILED", "CANCELED"}), ("ON_SUCCESS", {"SUCCEEDED"})],
)
def test_ends_that_satisfy_an_edge(mode, satisfying):
    release_mode = WorkflowDependencyReleaseMode(mode)

    found = {status for status in WorkflowStepStatus if release_mode.is_satisfied_by(status)}

    assert found == satisfying


def test_released_jobs_are_enqueued_and_released_gates_wait():
    assert WorkflowStepExecutionKind.JOB.released_status == "ENQUEUED"
    assert WorkflowStepExecutionKind.EXTERNAL.released_status == "WAITING_FOR_EXTERNAL"
