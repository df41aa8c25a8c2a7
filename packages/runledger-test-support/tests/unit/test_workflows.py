from __future__ import annotations

import pytest

from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunStatus, WorkflowStepStatus
from runledger_test_support import expected_run_status, expected_step_statuses

BLOCKED, ENQUEUED = WorkflowStepStatus.BLOCKED, WorkflowStepStatus.ENQUEUED
SUCCEEDED, FAILED = WorkflowStepStatus.SUCCEEDED, WorkflowStepStatus.FAILED
CANCELED, WAITING = WorkflowStepStatus.CANCELED, WorkflowStepStatus.WAITING_FOR_EXTERNAL

# The order of the steps is not that of the edges.
STEPS = (
    WorkflowDagBuilder("test.workflow", {})
    .job("cleanup", "test.job", {}, after_terminal=["join"])
    .job("join", "test.job", {}, after_success=["work"], after_terminal=["gate"])
    .job("work", "test.job", {}, after_success=["first"])
    .external("gate", after_success=["first"])
    .job("first", "test.job", {})
    .build()
    .steps
)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({}, [ENQUEUED, BLOCKED, BLOCKED, BLOCKED, BLOCKED]),
        ({"first": SUCCEEDED}, [SUCCEEDED, ENQUEUED, WAITING, BLOCKED, BLOCKED]),
        (
            {"first": SUCCEEDED, "work": SUCCEEDED, "gate": FAILED},
            [SUCCEEDED, SUCCEEDED, FAILED, ENQUEUED, BLOCKED],
        ),
        # Doomed, but not before its last prerequisite has ended.
        (
            {"first": SUCCEEDED, "work": FAILED},
            [SUCCEEDED, FAILED, WAITING, BLOCKED, BLOCKED],
        ),
        (
            {"first": SUCCEEDED, "work": CANCELED, "gate": SUCCEEDED},
            [SUCCEEDED, CANCELED, SUCCEEDED, CANCELED, ENQUEUED],
        ),
        # What is said of steps that never run has no effect.
        (
            {"first": FAILED, "work": SUCCEEDED, "gate": SUCCEEDED, "cleanup": SUCCEEDED},
            [FAILED, CANCELED, CANCELED, CANCELED, SUCCEEDED],
        ),
    ],
)
def test_steps_stand_where_their_edges_leave_them(outcomes, expected) -> None:
    statuses = expected_step_statuses(STEPS, outcomes)

    assert [statuses[key] for key in ("first", "work", "gate", "join", "cleanup")] == expected


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([SUCCEEDED, ENQUEUED], WorkflowRunStatus.RUNNING),
        ([WAITING, BLOCKED], WorkflowRunStatus.RUNNING),
        ([FAILED, WAITING], WorkflowRunStatus.WAITING_FOR_EXTERNAL),
        ([SUCCEEDED, SUCCEEDED], WorkflowRunStatus.SUCCEEDED),
        ([SUCCEEDED, FAILED], WorkflowRunStatus.COMPLETED_WITH_ERRORS),
        ([SUCCEEDED, CANCELED], WorkflowRunStatus.COMPLETED_WITH_ERRORS),
    ],
)
def test_run_stands_where_its_steps_leave_it(statuses, expected) -> None:
    assert expected_run_status(statuses) == expected
