"""What comes after a deadline: handlers are told, and have a moment to end."""

import threading
import time

import pytest

from runledger_runtime import task_group
from runledger_runtime.errors import LoopExit, ShutdownTimeoutAfterTaskError, ShutdownTimeoutError
from runledger_runtime.health import LoopState
from runledger_runtime.task_group import TaskGroup

from ._ending import wait_until_ended

LONG = 60.0


@pytest.fixture
def group(stop):
    return TaskGroup(stop)


@pytest.fixture
def aborted(stop):
    event = threading.Event()
    stop.add_abort_callback(event.set)
    return event


@pytest.fixture
def unwinding(aborted):
    """A task that ends once the stop is aborted, and no sooner."""

    def run():
        aborted.wait(LONG)
        return LoopExit.SHUTDOWN

    return run


@pytest.fixture
def stuck(release):
    """A task that ends after the test."""

    def run():
        release.wait(LONG)
        return LoopExit.SHUTDOWN

    return run


def call_shutdown(group):
    group.shutdown_with_timeout(0.05)


def call_run(group):
    event = threading.Event()
    event.set()
    group.run_until_shutdown(event, 0.05)


def test_a_stop_in_time_aborts_nothing(group, stop):
    def cooperate():
        stop.wait(LONG)
        return LoopExit.SHUTDOWN

    group.spawn("worker", cooperate)

    group.shutdown_with_timeout(LONG)

    assert not stop.is_aborted


@pytest.mark.parametrize("call", [call_shutdown, call_run])
def test_a_task_that_minds_the_abort_ends_before_the_error_is_raised(group, stop, unwinding, call):
    group.spawn("worker", unwinding)

    with pytest.raises(ShutdownTimeoutError) as caught:
        call(group)

    assert stop.is_aborted
    assert caught.value.tasks == ("worker",)
    assert group.states == {"worker": LoopState.STOPPED}
    assert group.is_settled


def test_a_zero_timeout_aborts_and_leaves_no_moment(group, stop, stuck, monkeypatch):
    monkeypatch.setattr(task_group, "_UNWIND_SECONDS", LONG)
    group.spawn("worker", stuck)

    with pytest.raises(ShutdownTimeoutError):
        group.shutdown_with_timeout(0)

    assert stop.is_aborted
    assert group.states == {"worker": LoopState.ABANDONED}


def test_the_moment_is_no_longer_than_the_stop_had(group, stuck, monkeypatch):
    monkeypatch.setattr(task_group, "_UNWIND_SECONDS", LONG)
    group.spawn("worker", stuck)
    began_at = time.monotonic()

    with pytest.raises(ShutdownTimeoutError):
        group.shutdown_with_timeout(0.05)

    assert time.monotonic() - began_at < LONG / 2


def test_a_failure_after_the_abort_is_only_logged(group, aborted, caplog):
    def fail_at_last():
        aborted.wait(LONG)
        raise LookupError

    group.spawn("worker", fail_at_last)

    with pytest.raises(ShutdownTimeoutError) as caught:
        group.shutdown_with_timeout(0.05)

    assert not isinstance(caught.value, ShutdownTimeoutAfterTaskError)
    assert [record.loop for record in caplog.records] == ["worker"]
    assert group.states == {"worker": LoopState.FAILED}
    assert group.is_settled


def test_a_failure_before_the_abort_is_the_source_of_the_error(group, unwinding):
    def fail():
        raise ZeroDivisionError

    group.spawn("worker", unwinding)
    group.spawn("reaper", fail)
    wait_until_ended(group, "reaper")

    with pytest.raises(ShutdownTimeoutAfterTaskError) as caught:
        group.shutdown_with_timeout(0.05)

    assert caught.value.source.code == "supervisor.task_failed"
    assert caught.value.tasks == ("worker",)
    assert group.states == {"worker": LoopState.STOPPED, "reaper": LoopState.FAILED}
