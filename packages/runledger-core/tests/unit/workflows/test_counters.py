import itertools

import pytest

from runledger_core import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepDependencySpec,
    WorkflowStepStatus,
)
from runledger_core.workflows import WorkflowRunCounters, WorkflowStepCounters, run_status

ON_SUCCESS = WorkflowDependencyReleaseMode.ON_SUCCESS
CANCELED = WorkflowRunStatus.CANCELED


def counters(*statuses):
    return WorkflowRunCounters.of(map(WorkflowStepStatus, statuses))


def status_by_the_rules(statuses):
    if {"BLOCKED", "ENQUEUED", "RUNNING"} & set(statuses):
        return "RUNNING"
    if "WAITING_FOR_EXTERNAL" in statuses:
        return "WAITING_FOR_EXTERNAL"
    return "COMPLETED_WITH_ERRORS" if {"FAILED", "CANCELED"} & set(statuses) else "SUCCEEDED"


def test_open_gates_count_as_open_too():
    statuses = ["BLOCKED", "WAITING_FOR_EXTERNAL", "FAILED", "CANCELED", "CANCELED", "SUCCEEDED"]

    assert counters(*statuses) == WorkflowRunCounters(
        steps_open=2, steps_waiting_external=1, steps_failed=1, steps_canceled=2
    )


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["SUCCEEDED", "SUCCEEDED"], "SUCCEEDED"),
        (["SUCCEEDED", "ENQUEUED"], "RUNNING"),
        (["RUNNING"], "RUNNING"),
        (["WAITING_FOR_EXTERNAL", "SUCCEEDED"], "WAITING_FOR_EXTERNAL"),
        (["WAITING_FOR_EXTERNAL", "BLOCKED"], "RUNNING"),
        (["WAITING_FOR_EXTERNAL", "FAILED"], "WAITING_FOR_EXTERNAL"),
        (["SUCCEEDED", "FAILED"], "COMPLETED_WITH_ERRORS"),
        (["SUCCEEDED", "CANCELED"], "COMPLETED_WITH_ERRORS"),
        (["CANCELED"], "COMPLETED_WITH_ERRORS"),
    ],
)
def test_status_follows_from_the_counters(statuses, expected):
    assert run_status(counters(*statuses)) == expected


def test_status_is_that_of_the_rules_for_every_set_of_steps():
    for size in range(1, 5):
        for statuses in itertools.combinations_with_replacement(WorkflowStepStatus, size):
            assert run_status(counters(*statuses)) == status_by_the_rules(statuses)


@pytest.mark.parametrize("status", WorkflowStepStatus)
def test_cancelled_run_stays_cancelled(status):
    assert run_status(counters(status), current=CANCELED) is CANCELED


def test_status_of_a_run_may_go_back_and_forth_until_it_ends():
    waiting = WorkflowRunStatus.WAITING_FOR_EXTERNAL

    assert run_status(counters("ENQUEUED"), current=waiting) == "RUNNING"


def test_prerequisites_of_a_new_run_are_all_pending():
    edges = [WorkflowStepDependencySpec("a"), WorkflowStepDependencySpec("b", ON_SUCCESS)]

    assert WorkflowStepCounters.of(edges, {}) == WorkflowStepCounters(
        dependency_count_total=2, dependency_count_pending=2, dependency_count_unsatisfied=0
    )


@pytest.mark.parametrize(
    ("mode", "status", "pending", "unsatisfied", "verdict"),
    [
        ("ON_TERMINAL", "BLOCKED", 1, 0, "WAITING"),
        ("ON_TERMINAL", "RUNNING", 1, 0, "WAITING"),
        ("ON_TERMINAL", "FAILED", 0, 0, "RELEASED"),
        ("ON_TERMINAL", "CANCELED", 0, 0, "RELEASED"),
        ("ON_SUCCESS", "WAITING_FOR_EXTERNAL", 1, 0, "WAITING"),
        ("ON_SUCCESS", "SUCCEEDED", 0, 0, "RELEASED"),
        ("ON_SUCCESS", "FAILED", 0, 1, "DOOMED"),
        ("ON_SUCCESS", "CANCELED", 0, 1, "DOOMED"),
    ],
)
def test_appended_steps_look_at_those_that_exist(mode, status, pending, unsatisfied, verdict):
    edge = WorkflowStepDependencySpec("a", WorkflowDependencyReleaseMode(mode))

    found = WorkflowStepCounters.of([edge], {"a": WorkflowStepStatus(status)})

    assert found == WorkflowStepCounters(
        dependency_count_total=1,
        dependency_count_pending=pending,
        dependency_count_unsatisfied=unsatisfied,
    )
    assert found.verdict == verdict
