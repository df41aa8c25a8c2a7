"""Ctrl-C, or no thread to be had, at any point of a wait: it leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from runledger_core import JsonValue, Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.workflows import _waiting, handles
from runledger_postgres.workflows._listening import Listener
from runledger_postgres.workflows._run_wait import RunWait
from runledger_postgres.workflows._wait_options import WorkflowRunWaitOptions
from runledger_postgres.workflows._waiting import RunWatch

from .conftest import JOB_TYPE, Workflows

# A result that is there is found at once; no test waits so long unless it fails.
SOON = WorkflowRunWaitOptions(timeout=20, poll_interval=20)
NO_THREAD = RuntimeError("can't start new thread")


def ended(workflows: Workflows) -> UUID:
    run = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).result_step("a").build()
    run_id = workflows.enqueue(run)
    workflows.succeed(workflows.claim()["a"], "done")
    return run_id


def result(workflows: Workflows, run_id: UUID) -> JsonValue:
    handle = handles.workflow_run_handle(workflows.pool, Scope.ADMIN, run_id)
    return handle.get_result(SOON).result


def waits(workflows: Workflows) -> dict[UUID, set[RunWait]]:
    """Return who is looked for on the pool."""
    watch = _waiting._watches.get(workflows.pool)
    return {} if watch is None else {run_id: set(those) for run_id, those in watch._waits.items()}


def cut_short(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: BaseException,
    *,
    is_done: bool,
    of: type = RunWatch,
) -> None:
    """Have the next call of a method raise, behind what it does or before; others are as usual."""
    real: Callable[..., Any] = getattr(of, name)
    is_cut = threading.Event()

    def method(*arguments: Any) -> Any:
        if is_cut.is_set():
            return real(*arguments)
        is_cut.set()
        if is_done:
            real(*arguments)
        raise error

    monkeypatch.setattr(of, name, method)


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "joining"])
@pytest.mark.parametrize("is_done", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("name", ["add", "ask", "remove"])
def test_interrupted_wait_is_looked_for_no_longer_and_the_next_is_served(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch, name: str, is_done: bool, is_first: bool
):
    run_id = ended(workflows)
    if not is_first:
        result(workflows, run_id)
    cut_short(monkeypatch, name, KeyboardInterrupt(), is_done=is_done)

    with pytest.raises(KeyboardInterrupt):
        result(workflows, run_id)

    assert waits(workflows) == {}
    assert result(workflows, run_id) == "done"
    assert waits(workflows) == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NO_THREAD], ids=["interrupt", "no thread"])
@pytest.mark.parametrize("is_done", [True, False], ids=["behind", "before"])
def test_watch_whose_start_is_cut_short_is_not_found_by_the_next_wait(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_done: bool
):
    run_id = ended(workflows)
    cut_short(monkeypatch, "start", error, is_done=is_done)

    with pytest.raises(type(error)):
        result(workflows, run_id)

    assert workflows.pool not in _waiting._watches
    assert result(workflows, run_id) == "done"


def test_wait_without_a_thread_for_its_listener_polls_and_the_next_one_tries_again(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
):
    run = WorkflowDagBuilder("test.workflow", {}).job("a", JOB_TYPE, {}).result_step("a").build()
    run_id = workflows.enqueue(run)
    start = Listener.start

    def end_the_run_instead(_: Listener) -> None:
        workflows.succeed(workflows.claim()["a"], "done")
        raise NO_THREAD

    monkeypatch.setattr(Listener, "start", end_the_run_instead)
    handle = handles.workflow_run_handle(workflows.pool, Scope.ADMIN, run_id)

    found = handle.get_result(WorkflowRunWaitOptions(timeout=20, poll_interval=0.5))

    assert found.result == "done"
    watch = _waiting._watches[workflows.pool]
    assert watch._listener is None
    monkeypatch.setattr(Listener, "start", start)
    watch.listen()
    assert watch._listener is not None
    assert watch._listener.is_alive()


def test_second_wait_for_a_run_goes_on_when_the_first_is_interrupted(workflows: Workflows):
    run_id = ended(workflows)
    result(workflows, run_id)
    watch = _waiting._watches[workflows.pool]
    first, second = (RunWait(watch, run_id, 20) for _ in range(2))
    watch.add(first)
    watch.add(second)

    for _ in range(2):
        first.leave()
    left = waits(workflows)
    second.leave()

    assert left == {run_id: {second}}
    assert waits(workflows) == {}
