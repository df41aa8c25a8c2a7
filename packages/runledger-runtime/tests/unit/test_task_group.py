import math
import threading
import time
from queue import SimpleQueue

import pytest

from runledger_core import ValidationError
from runledger_runtime.errors import (
    InvalidConfig,
    InvalidJobsConfigError,
    JobsConfigError,
    LoopExit,
    ShutdownTimeoutAfterTaskError,
    ShutdownTimeoutError,
    ShutdownTimeoutTooLargeError,
    SupervisorError,
    TaskExitedUnexpectedlyError,
    TaskFailedError,
    TooFewConnections,
    TooFewConnectionsError,
    TooManyStuckHandlers,
)
from runledger_runtime.health import LoopState
from runledger_runtime.task_group import TaskGroup

from ._ending import wait_until_ended

pytestmark = pytest.mark.usefixtures("no_thread_left")

LONG = 60.0


@pytest.fixture
def group(stop, release):
    return TaskGroup(stop)


@pytest.fixture
def cooperative(stop):
    def run():
        stop.wait(LONG)
        return LoopExit.SHUTDOWN

    return run


@pytest.fixture
def stuck(release):
    def run():
        release.wait(LONG)
        return LoopExit.SHUTDOWN

    return run


def failing():
    raise ZeroDivisionError


def completing():
    return LoopExit.COMPLETED


def test_threads_are_named_daemons(group, stuck):
    group.spawn("worker", stuck)

    (thread,) = [each for each in threading.enumerate() if each.name == "runledger-worker"]
    assert thread.daemon
    assert group.names == ["worker"]


def test_join_of_no_tasks_returns(group):
    group.join()
    group.shutdown()
    group.shutdown_with_timeout(0)


def test_join_waits_for_all_tasks(group, stop, cooperative):
    group.spawn("worker", cooperative)
    group.spawn("reaper", cooperative)
    stop.request()

    group.join()

    assert group.states == {"worker": LoopState.STOPPED, "reaper": LoopState.STOPPED}
    assert group.is_settled


def test_a_task_that_returns_shutdown_before_the_request_is_no_failure(group, cooperative):
    group.spawn("reaper", lambda: LoopExit.SHUTDOWN)
    wait_until_ended(group, "reaper")
    group.spawn("worker", cooperative)

    group.shutdown()


def test_a_task_that_ends_early_stops_the_others_and_is_named(group, stop, cooperative):
    group.spawn("worker", cooperative)
    group.spawn("reaper", completing)

    with pytest.raises(TaskExitedUnexpectedlyError) as caught:
        group.join()

    assert caught.value.task == "reaper"
    assert caught.value.code == "supervisor.task_exited_unexpectedly"
    assert stop.reason == "the reaper loop failed"
    assert group.states == {"worker": LoopState.STOPPED, "reaper": LoopState.FAILED}


def test_a_task_that_ended_early_is_reported_after_a_later_request(group, stop, cooperative):
    group.spawn("worker", cooperative)
    group.spawn("reaper", completing)
    wait_until_ended(group, "reaper")

    with pytest.raises(TaskExitedUnexpectedlyError):
        group.shutdown()


def test_a_request_takes_all_tasks_that_have_ended_and_waits_for_the_rest(group, cooperative):
    group.spawn("worker", cooperative)
    group.spawn("scheduler", completing)
    wait_until_ended(group, "scheduler")
    group.spawn("reaper", failing)
    wait_until_ended(group, "reaper")

    with pytest.raises(TaskExitedUnexpectedlyError) as caught:
        group.shutdown()

    assert caught.value.task == "scheduler"
    assert group.states == {
        "worker": LoopState.STOPPED,
        "scheduler": LoopState.FAILED,
        "reaper": LoopState.FAILED,
    }
    assert group.is_settled


def test_several_threads_may_wait_and_stop_at_once(group, stop, cooperative):
    group.spawn("worker", cooperative)
    ended = SimpleQueue()

    def call(wait):
        wait()
        ended.put(wait)

    waits = [
        group.join,
        group.join,
        lambda: group.run_until_shutdown(threading.Event(), LONG),
        lambda: group.shutdown_with_timeout(LONG),
        group.shutdown,
        stop.request,
    ]
    for wait in waits:
        threading.Thread(target=call, args=(wait,), daemon=True).start()

    assert {ended.get(timeout=10) for _ in waits} == set(waits)
    assert group.states == {"worker": LoopState.STOPPED}


def test_completion_in_a_race_with_the_request_is_an_error(group, stop):
    def complete_late():
        stop.wait(LONG)
        return LoopExit.COMPLETED

    group.spawn("reaper", complete_late)

    with pytest.raises(TaskExitedUnexpectedlyError):
        group.shutdown()


def test_an_exception_after_the_request_is_an_error(group, stop):
    def fail_late():
        stop.wait(LONG)
        raise ZeroDivisionError

    group.spawn("reaper", fail_late)

    with pytest.raises(TaskFailedError) as caught:
        group.shutdown()

    assert caught.value.code == "supervisor.task_failed"
    assert caught.value.task == "reaper"
    assert isinstance(caught.value.source, ZeroDivisionError)
    assert caught.value.__cause__ is caught.value.source


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_of_every_kind_are_reported(group, kind):
    def leave():
        raise kind

    group.spawn("reaper", leave)

    with pytest.raises(TaskFailedError):
        group.join()


def test_the_refused_setting_of_a_task_is_kept(group):
    refused = JobsConfigError("config.zero_poll_interval", "no", field="poll_interval_ms")
    group.spawn("worker", lambda: InvalidConfig(refused))

    with pytest.raises(InvalidJobsConfigError) as caught:
        group.join()

    assert caught.value.source is refused
    assert caught.value.task == "worker"
    assert caught.value.field == "poll_interval_ms"


def test_too_many_stuck_handlers_are_why_the_loop_ended(group):
    group.spawn("worker", lambda: TooManyStuckHandlers(9, 8))

    with pytest.raises(TaskExitedUnexpectedlyError, match=r"asked to: 9 handlers.* 8 may"):
        group.join()


def test_too_few_connections_name_the_number_needed(group):
    group.spawn("worker", lambda: TooFewConnections(4, ("listener", "sleep marks")))

    with pytest.raises(
        TooFewConnectionsError, match=r"needs 4 .*: listener, sleep marks"
    ) as caught:
        group.join()

    assert (caught.value.needed, caught.value.missing) == (4, ("listener", "sleep marks"))


def test_the_first_failure_is_raised_and_later_ones_are_logged(group, stop, caplog):
    def fail_late():
        stop.wait(LONG)
        raise LookupError

    group.spawn("worker", fail_late)
    group.spawn("reaper", failing)

    with pytest.raises(TaskFailedError) as caught:
        group.join()

    assert caught.value.task == "reaper"
    assert [record.loop for record in caplog.records] == ["reaper", "worker"]


def test_a_failure_is_raised_once(group):
    group.spawn("reaper", failing)
    with pytest.raises(TaskFailedError):
        group.join()

    group.join()

    assert group.is_settled


def test_a_failure_asks_the_others_to_stop_though_nobody_waits(group, stop):
    group.spawn("reaper", failing)

    assert stop.wait(10)
    wait_until_ended(group, "reaper")
    assert not group.is_settled


def test_repeated_requests_are_harmless(group, stop, cooperative):
    group.spawn("worker", cooperative)
    stop.request()
    stop.request()

    group.shutdown()
    group.shutdown()
    group.shutdown_with_timeout(1)


def test_a_cooperative_task_ends_inside_the_limit(group, cooperative):
    group.spawn("worker", cooperative)

    group.shutdown_with_timeout(LONG)

    assert group.is_settled


def test_a_missed_deadline_abandons_the_stuck_task_and_names_it(group, cooperative, stuck):
    group.spawn("worker", stuck)
    group.spawn("reaper", cooperative)

    with pytest.raises(ShutdownTimeoutError) as caught:
        group.shutdown_with_timeout(0.05)

    assert caught.value.code == "supervisor.shutdown_timeout"
    assert caught.value.tasks == ("worker",)
    assert caught.value.timeout_seconds == 0.05
    assert group.states == {"worker": LoopState.ABANDONED, "reaper": LoopState.STOPPED}


def test_nobody_waits_for_an_abandoned_task_again(group, release, stuck):
    group.spawn("worker", stuck)
    with pytest.raises(ShutdownTimeoutError):
        group.shutdown_with_timeout(0)

    group.join()

    assert group.is_settled
    assert group.states == {"worker": LoopState.ABANDONED}


def test_the_end_of_an_abandoned_task_is_only_logged(group, release, caplog):
    def fail_at_last():
        release.wait(LONG)
        raise ZeroDivisionError

    group.spawn("worker", fail_at_last)
    with pytest.raises(ShutdownTimeoutError):
        group.shutdown_with_timeout(0)
    (thread,) = [each for each in threading.enumerate() if each.name == "runledger-worker"]

    release.set()
    thread.join(10)

    group.join()
    assert group.states == {"worker": LoopState.ABANDONED}
    assert [record.loop for record in caplog.records] == ["worker"]


def test_a_zero_timeout_does_not_wait_even_for_cooperative_tasks(group, stop):
    def answer_slowly():
        stop.wait(LONG)
        asked.wait(LONG)
        return LoopExit.SHUTDOWN

    asked = threading.Event()
    group.spawn("worker", answer_slowly)

    with pytest.raises(ShutdownTimeoutError) as caught:
        group.shutdown_with_timeout(0)

    asked.set()
    assert caught.value.tasks == ("worker",)
    assert stop.is_requested


def test_a_zero_timeout_is_enough_for_tasks_that_have_ended(group, stop, cooperative):
    group.spawn("worker", cooperative)
    stop.request()
    wait_until_ended(group, "worker")

    group.shutdown_with_timeout(0)


def test_an_early_failure_and_a_slow_rest_are_one_error(group, stuck):
    group.spawn("worker", stuck)
    group.spawn("reaper", failing)
    wait_until_ended(group, "reaper")

    with pytest.raises(ShutdownTimeoutAfterTaskError) as caught:
        group.shutdown_with_timeout(0.05)

    assert caught.value.code == "supervisor.shutdown_timeout_after_task_error"
    assert caught.value.tasks == ("worker",)
    assert isinstance(caught.value.source, TaskFailedError)
    assert caught.value.source.task == "reaper"
    assert caught.value.__cause__ is caught.value.source
    assert group.is_settled


def call_shutdown(group, timeout):
    group.shutdown_with_timeout(timeout)


def call_run(group, timeout):
    group.run_until_shutdown(threading.Event(), timeout)


@pytest.mark.parametrize("call", [call_shutdown, call_run])
@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, threading.TIMEOUT_MAX + 1e6])
def test_a_timeout_too_large_is_refused_before_anything_stops(group, stop, stuck, call, timeout):
    group.spawn("worker", stuck)

    with pytest.raises(ShutdownTimeoutTooLargeError) as caught:
        call(group, timeout)

    assert caught.value.code == "supervisor.shutdown_timeout_too_large"
    assert not stop.is_requested
    assert group.states == {"worker": LoopState.RUNNING}


def test_the_longest_timeout_is_waited_for(group, cooperative):
    group.spawn("worker", cooperative)

    group.shutdown_with_timeout(threading.TIMEOUT_MAX)


@pytest.mark.parametrize("call", [call_shutdown, call_run])
@pytest.mark.parametrize(
    ("timeout", "code"),
    [
        (-1, "input.out_of_range"),
        (math.nan, "input.out_of_range"),
        (-math.inf, "input.out_of_range"),
        (-(10**400), "input.out_of_range"),
        (None, "input.wrong_type"),
        ("30", "input.wrong_type"),
        (True, "input.wrong_type"),
    ],
)
def test_a_timeout_that_is_none_is_refused(group, stop, call, timeout, code):
    with pytest.raises(ValidationError) as caught:
        call(group, timeout)

    assert caught.value.code == code
    assert caught.value.field == "timeout"
    assert not stop.is_requested


def run_in_thread(group, source, timeout=LONG):
    errors = []

    def run():
        try:
            group.run_until_shutdown(source, timeout)
        except Exception as error:  # noqa: BLE001  # looked at by the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


class Gate:
    """A blocking function that tells when it is waited for."""

    def __init__(self):
        self.is_waited_for = threading.Event()
        self.open = threading.Event()

    def __call__(self):
        self.is_waited_for.set()
        self.open.wait(LONG)


def test_the_source_stops_the_tasks(group, stop, cooperative):
    gate = Gate()
    group.spawn("worker", cooperative)
    thread, errors = run_in_thread(group, gate)
    assert gate.is_waited_for.wait(10)
    assert not stop.is_requested

    gate.open.set()
    thread.join(10)

    assert not thread.is_alive()
    assert errors == []
    assert stop.is_requested
    assert group.states == {"worker": LoopState.STOPPED}


def test_without_tasks_the_source_is_waited_for(group):
    gate = Gate()
    thread, errors = run_in_thread(group, gate)
    assert gate.is_waited_for.wait(10)
    thread.join(0.05)
    assert thread.is_alive()

    gate.open.set()
    thread.join(10)

    assert not thread.is_alive()
    assert errors == []


def test_an_event_that_is_set_already_stops_at_once(group, cooperative):
    event = threading.Event()
    event.set()
    group.spawn("worker", cooperative)

    group.run_until_shutdown(event, LONG)


def test_a_request_before_the_run_is_honoured(group, stop, cooperative):
    group.spawn("worker", cooperative)
    stop.request()

    group.run_until_shutdown(threading.Event(), LONG)


def test_a_request_during_the_run_needs_no_source(group, stop, cooperative):
    gate = Gate()
    group.spawn("worker", cooperative)
    thread, errors = run_in_thread(group, gate)
    assert gate.is_waited_for.wait(10)

    stop.request()
    thread.join(10)

    assert not thread.is_alive()
    assert errors == []
    gate.open.set()


def test_a_request_starts_the_deadline_though_the_source_is_silent(group, stop, stuck):
    group.spawn("worker", stuck)
    stop.request()

    with pytest.raises(ShutdownTimeoutError):
        group.run_until_shutdown(threading.Event(), 0.05)


class Clock:
    """Stands still until it is set, and counts how often it is read."""

    def __init__(self):
        self.now = 0.0
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return self.now

    def wait_until_read_by(self, thread):
        # A read that had begun before the last change may be the first of two.
        enough = self.reads + 2
        while thread.is_alive() and self.reads < enough:
            thread.join(0.01)


def test_the_budget_begins_with_the_stop_and_not_with_the_run(group, stuck, release, monkeypatch):
    clock, gate = Clock(), Gate()
    monkeypatch.setattr(time, "monotonic", clock)
    group.spawn("worker", stuck)
    thread, errors = run_in_thread(group, gate)
    assert gate.is_waited_for.wait(10)

    clock.now += 2 * LONG
    gate.open.set()
    clock.wait_until_read_by(thread)
    clock.now += 0.9 * LONG
    clock.wait_until_read_by(thread)
    release.set()
    thread.join(10)

    assert errors == []
    assert group.states == {"worker": LoopState.STOPPED}


def test_a_failure_ends_the_run_with_the_original_error(group, cooperative):
    group.spawn("worker", cooperative)
    group.spawn("reaper", failing)
    began = time.monotonic()

    with pytest.raises(TaskFailedError) as caught:
        group.run_until_shutdown(threading.Event(), LONG)

    assert caught.value.task == "reaper"
    assert time.monotonic() - began < 5


def test_a_failure_and_a_slow_rest_end_the_run_with_both(group, stuck):
    group.spawn("worker", stuck)
    group.spawn("reaper", failing)

    with pytest.raises(ShutdownTimeoutAfterTaskError) as caught:
        group.run_until_shutdown(threading.Event(), 0.05)

    assert isinstance(caught.value.source, TaskFailedError)


def test_tasks_that_all_ended_well_end_the_run(group):
    group.spawn("reaper", lambda: LoopExit.SHUTDOWN)

    group.run_until_shutdown(threading.Event(), LONG)


def test_the_error_of_the_source_is_raised_after_the_drain(group, stop, cooperative):
    def source():
        raise LookupError("the source broke")

    group.spawn("worker", cooperative)

    with pytest.raises(LookupError, match="the source broke"):
        group.run_until_shutdown(source, LONG)

    assert group.states == {"worker": LoopState.STOPPED}


def test_a_thread_that_cannot_start_is_a_failure(group, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(TaskFailedError) as caught:
        group.spawn("worker", failing)

    assert isinstance(caught.value, SupervisorError)
    assert group.states == {"worker": LoopState.FAILED}
