"""Lists and counts of runs for operators."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import Scope, ValidationError
from runledger_core.workflows import WorkflowDagBuilder, WorkflowRunStatus
from runledger_postgres.admin import (
    WorkflowRunFilter,
    count_workflow_runs,
    count_workflow_runs_bounded,
    count_workflow_runs_by_status,
    count_workflow_runs_by_status_bounded,
    list_workflow_runs,
)
from runledger_postgres.lifecycle import cancel_workflow_run

from .conftest import JOB_TYPE, Workflows

ADMIN = Scope.ADMIN
MINE = uuid4()
RUNNING, WAITING, SUCCEEDED, WITH_ERRORS, CANCELED = WorkflowRunStatus

# Whoever ran SQL on this would fail with another error.
NO_DATABASE: Any = object()


def enqueue(
    workflows: Workflows, workflow_type: str = "test.workflow", owner: UUID | None = None
) -> UUID:
    builder = WorkflowDagBuilder(workflow_type, {}).job("a", JOB_TYPE, {})
    return workflows.enqueue((builder.organization_id(owner) if owner else builder).build())


def in_status(workflows: Workflows, status: WorkflowRunStatus) -> UUID:
    """Make a run of this status by what makes one."""
    gates = ("a",) if status is WAITING else ()
    run_id = workflows.enqueue_jobs({"a": []}, gates=gates)
    match status:
        case WorkflowRunStatus.SUCCEEDED:
            workflows.succeed(workflows.claim()["a"])
        case WorkflowRunStatus.COMPLETED_WITH_ERRORS:
            workflows.fail(workflows.claim()["a"])
        case WorkflowRunStatus.CANCELED:
            cancel_workflow_run(workflows.pool, run_id, scope=ADMIN)
        case _:
            pass
    return run_id


def of_each_status(workflows: Workflows) -> dict[WorkflowRunStatus, UUID]:
    """Make one run of each status; the running one last, since a worker would end it."""
    return {status: in_status(workflows, status) for status in (*[*WorkflowRunStatus][1:], RUNNING)}


def chosen(workflows: Workflows, scope: Scope = ADMIN, **conditions: Any) -> list[UUID]:
    filter_ = WorkflowRunFilter(scope, **conditions)
    runs = list_workflow_runs(workflows.pool, filter_)
    assert count_workflow_runs(workflows.pool, filter_) == len(runs)
    assert count_workflow_runs_bounded(workflows.pool, filter_, cap=100) == (len(runs), True)
    return [run.id for run in runs]


@pytest.mark.core
def test_newest_run_comes_first_and_carries_no_body(workflows: Workflows):
    first, second = enqueue(workflows), enqueue(workflows, owner=MINE)

    runs = list_workflow_runs(workflows.pool, WorkflowRunFilter(ADMIN))

    assert [run.id for run in runs] == [second, first]
    assert (runs[0].workflow_type, runs[0].organization_id) == ("test.workflow", MINE)
    assert (runs[0].status, runs[0].steps_open, runs[0].finished_at) == (RUNNING, 1, None)
    assert not hasattr(runs[0], "metadata")


@pytest.mark.core
def test_scope_chooses_whose_runs(workflows: Workflows):
    theirs, everybodys = enqueue(workflows, owner=MINE), enqueue(workflows)

    assert chosen(workflows, Scope.organization(MINE)) == [theirs]
    assert chosen(workflows, Scope.organization(uuid4())) == []
    assert chosen(workflows, Scope.GLOBAL) == [everybodys]
    assert chosen(workflows) == [everybodys, theirs]


def test_status_chooses_its_runs_and_several_any_of_them(workflows: Workflows):
    ids = of_each_status(workflows)

    for status in WorkflowRunStatus:
        assert chosen(workflows, status=status) == [ids[status]]
    assert chosen(workflows, status=[RUNNING, WAITING, RUNNING]) == [ids[RUNNING], ids[WAITING]]
    assert set(chosen(workflows, status=list(WorkflowRunStatus))) == set(ids.values())
    assert chosen(workflows, status=[]) == []


@pytest.mark.parametrize("status", [None, RUNNING, [RUNNING, WAITING], [WAITING, RUNNING]])
def test_pages_of_one_instant_are_in_one_order_both_ways(workflows: Workflows, status: Any):
    ids = [enqueue(workflows) for _ in range(11)][::-1]
    workflows.look.execute("UPDATE runledger.workflow_runs SET created_at = '2026-01-01Z'")
    filter_ = WorkflowRunFilter(ADMIN, status=status)

    down, cursor = [], None
    while page := list_workflow_runs(workflows.pool, filter_, limit=3, after=cursor):
        down += [run.id for run in page]
        cursor = page[-1].id
    up, cursor = [], UUID(int=0)
    while page := list_workflow_runs(workflows.pool, filter_, limit=3, before=cursor):
        up = [run.id for run in page] + up
        cursor = page[0].id

    assert down == ids
    assert up == ids


def test_pages_of_several_statuses_are_merged_by_id(workflows: Workflows):
    ids = [
        workflows.enqueue_jobs({"a": []}, gates=("a",) if number % 2 else ()) for number in range(8)
    ][::-1]
    both = WorkflowRunFilter(ADMIN, status=[RUNNING, WAITING])

    def page(**cursor: UUID) -> list[UUID]:
        return [run.id for run in list_workflow_runs(workflows.pool, both, limit=3, **cursor)]

    assert page() == ids[:3]
    assert page(after=ids[2]) == ids[3:6]
    assert page(before=ids[6]) == ids[3:6]


@pytest.mark.parametrize("status", [None, RUNNING])
def test_page_stays_where_it_was_when_runs_arrive(
    workflows: Workflows, status: WorkflowRunStatus | None
):
    ids = [enqueue(workflows) for _ in range(4)]
    filter_ = WorkflowRunFilter(ADMIN, status=status)
    first = list_workflow_runs(workflows.pool, filter_, limit=2)

    enqueue(workflows)
    second = list_workflow_runs(workflows.pool, filter_, limit=2, after=first[-1].id)
    back = list_workflow_runs(workflows.pool, filter_, limit=2, before=second[0].id)

    assert [run.id for run in second] == [ids[1], ids[0]]
    assert back == first


def test_type_is_matched_exactly_or_in_part_in_any_case(workflows: Workflows):
    run_id, other = enqueue(workflows, "Test.Other"), enqueue(workflows, "test.workflow")

    assert chosen(workflows, workflow_type="Test.Other") == [run_id]
    assert chosen(workflows, workflow_type="test.other") == []
    assert chosen(workflows, workflow_type="%") == []
    assert chosen(workflows, workflow_type_contains="t.oTh") == [run_id]
    assert chosen(workflows, workflow_type_contains="TEST.") == [other, run_id]


@pytest.mark.parametrize("character", ["%", "_", "\\", "/"])
def test_wildcards_in_part_of_a_type_stand_for_themselves(workflows: Workflows, character: str):
    names = ("a%b", "a_b", "axb", "a\\b", "a/b")
    ids = {name: enqueue(workflows, name) for name in names}

    assert chosen(workflows, workflow_type_contains=f"A{character}B") == [ids[f"a{character}b"]]


@pytest.mark.parametrize("text", ["'; DROP TABLE x; --", "%(x)s", "100%", "{}", "é"])
def test_odd_text_is_a_value_and_never_sql(workflows: Workflows, text: str):
    enqueue(workflows)

    assert chosen(workflows, workflow_type=text) == []
    assert chosen(workflows, workflow_type_contains=text) == []


def test_conditions_hold_together(workflows: Workflows):
    wanted = enqueue(workflows, "Test.Other", owner=MINE)
    enqueue(workflows, "Test.Other")
    enqueue(workflows, owner=MINE)

    found = chosen(
        workflows,
        Scope.organization(MINE),
        status=[RUNNING, CANCELED],
        workflow_type="Test.Other",
        workflow_type_contains="other",
    )

    assert found == [wanted]


def test_list_joins_the_callers_transaction(workflows: Workflows):
    with workflows.pool.connection() as connection, connection.transaction(force_rollback=True):
        run_id = enqueue(workflows)
        connection.execute("UPDATE runledger.workflow_runs SET workflow_type = 'mine'")
        mine = list_workflow_runs(connection, WorkflowRunFilter(ADMIN, workflow_type="mine"))

        assert [run.id for run in mine] == [run_id]
        assert chosen(workflows, workflow_type="mine") == []


def test_unreadable_metadata_does_not_fail_the_list(workflows: Workflows):
    run_id = enqueue(workflows)
    workflows.look.execute("UPDATE runledger.workflow_runs SET metadata = '1e5000'")

    assert chosen(workflows) == [run_id]


def test_each_status_is_counted(workflows: Workflows):
    empty = count_workflow_runs_by_status(workflows.pool, scope=ADMIN)
    of_each_status(workflows)
    enqueue(workflows, owner=MINE)

    counts = count_workflow_runs_by_status(workflows.pool, scope=ADMIN)
    bounded = count_workflow_runs_by_status_bounded(workflows.pool, scope=ADMIN, cap=1)

    assert empty == dict.fromkeys(WorkflowRunStatus, 0)
    assert counts == {**dict.fromkeys(WorkflowRunStatus, 1), RUNNING: 2}
    assert bounded == {**dict.fromkeys(WorkflowRunStatus, (1, True)), RUNNING: (1, False)}


def test_scope_chooses_whose_runs_are_counted(workflows: Workflows):
    for owner in (MINE, MINE, None):
        enqueue(workflows, owner=owner)

    totals = [
        (
            count_workflow_runs_by_status(workflows.pool, scope=scope)[RUNNING],
            count_workflow_runs_by_status_bounded(workflows.pool, scope=scope, cap=9)[RUNNING],
        )
        for scope in (ADMIN, Scope.GLOBAL, Scope.organization(MINE), Scope.organization(uuid4()))
    ]

    assert totals == [(count, (count, True)) for count in (3, 1, 2, 0)]


@pytest.mark.parametrize("status", [None, RUNNING, [RUNNING, WAITING]])
def test_bounded_count_stops_at_the_cap(workflows: Workflows, status: Any):
    for gates in ((), (), ("a",)):
        workflows.enqueue_jobs({"a": []}, gates=gates)
    filter_ = WorkflowRunFilter(ADMIN, status=status)
    total = count_workflow_runs(workflows.pool, filter_)

    at, above = (
        count_workflow_runs_bounded(workflows.pool, filter_, cap=cap) for cap in (total, total - 1)
    )

    assert total == (2 if status == RUNNING else 3)
    assert at == (total, True)
    assert above == (total - 1, False)


@pytest.mark.parametrize("cap", [0, -1, 2**31])
def test_bad_cap_is_refused_before_sql(cap: int):
    for count in (
        lambda: count_workflow_runs_bounded(NO_DATABASE, WorkflowRunFilter(ADMIN), cap=cap),
        lambda: count_workflow_runs_by_status_bounded(NO_DATABASE, scope=ADMIN, cap=cap),
    ):
        with pytest.raises(ValidationError) as refused:
            count()
        assert (refused.value.code, refused.value.field) == ("input.out_of_range", "cap")


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ({"limit": 0}, "job.invalid_pagination"),
        ({"limit": 1_001}, "job.invalid_pagination"),
        ({"after": UUID(int=1), "before": UUID(int=1)}, "job.invalid_pagination"),
        ({"after": "0190"}, "input.wrong_type"),
        ({"before": 1}, "input.wrong_type"),
    ],
)
def test_bad_page_is_refused_before_sql(page: dict[str, Any], code: str):
    with pytest.raises(ValidationError) as refused:
        list_workflow_runs(NO_DATABASE, WorkflowRunFilter(ADMIN), **page)

    assert refused.value.code == code


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("scope", None, "input.wrong_type"),
        ("status", "PENDING", "input.out_of_range"),
        ("status", [3], "input.wrong_type"),
        ("workflow_type", " ", "input.blank"),
        ("workflow_type", "x" * 201, "input.too_long"),
        ("workflow_type_contains", "\0", "input.invalid_characters"),
        ("workflow_type_contains", "", "input.blank"),
        ("workflow_type_contains", 1, "input.wrong_type"),
    ],
)
def test_bad_condition_is_refused(field: str, value: Any, code: str):
    given: dict[str, Any] = {"scope": ADMIN} | {field: value}

    with pytest.raises(ValidationError) as refused:
        WorkflowRunFilter(**given)

    assert (refused.value.code, refused.value.field) == (code, field)


def test_one_status_and_a_sequence_of_it_are_the_same_filter():
    one = WorkflowRunFilter(ADMIN, status=RUNNING)
    sequence = WorkflowRunFilter(ADMIN, status=[RUNNING, RUNNING])

    assert one == sequence
    assert hash(one) == hash(sequence)
    assert one.statuses == (RUNNING,)
