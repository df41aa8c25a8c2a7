"""Order, bounds and isolation of what observers are told; no database takes part."""

from __future__ import annotations

import logging
import threading
from queue import Empty, SimpleQueue

import pytest

from runledger_runtime.observers import JobLifecycleObserver, _delivery, _lane

from ..._nameless import NamelessError

WAIT_SECONDS = 30.0
TOO_SLOW = "lifecycle observers are too slow; the newest event was dropped"
TOO_LONG = "a lifecycle observer takes too long"
HANGS = "a lifecycle observer hangs too often; it is told nothing of the kind any more"


class Recorder(JobLifecycleObserver):
    """Puts what it is told into a queue, by method and number of the job."""

    def __init__(self):
        self.told = SimpleQueue()

    def on_job_running(self, event):
        self.told.put(("running", event.job.job_id.int))

    def on_job_succeeded(self, event):
        self.told.put(("succeeded", event.job.job_id.int))

    def next(self):
        try:
            return self.told.get(timeout=WAIT_SECONDS)
        except Empty:
            pytest.fail("it was told nothing")


class Held(Recorder):
    """Holds every call of one method until it is released; then it is a Recorder."""

    def __init__(self, method):
        super().__init__()
        self.method = method
        self.began = SimpleQueue()
        self.release = threading.Event()

    def on_job_running(self, event):
        self.hold("running", event)
        super().on_job_running(event)

    def on_job_succeeded(self, event):
        self.hold("succeeded", event)
        super().on_job_succeeded(event)

    def hold(self, method, event):
        if method == self.method:
            self.began.put(event.job.job_id.int)
            assert self.release.wait(WAIT_SECONDS)


@pytest.fixture
def hasty(monkeypatch):
    """Wait for an event a fifth of a second instead of ten."""
    monkeypatch.setattr(_delivery, "OBSERVER_SECONDS", 0.2)


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_end_of_an_attempt_waits_for_its_start(attempt, deliver_to):
    held = Held("running")
    delivery = deliver_to(held)
    one, two = attempt(1), attempt(2)
    delivery.started(one.lease, one.running)
    assert held.began.get(timeout=WAIT_SECONDS) == 1

    delivery.ended(one.succeeded, lease=one.lease)
    delivery.ended(two.succeeded, lease=two.lease)

    # The other attempt, which has no start to wait for, was not held up.
    assert held.next() == ("succeeded", 2)
    held.release.set()
    assert [held.next(), held.next()] == [("running", 1), ("succeeded", 1)]


def test_end_is_told_though_its_start_hangs(attempt, deliver_to, hasty, caplog):
    held = Held("running")
    delivery = deliver_to(held)
    one = attempt(1)
    delivery.started(one.lease, one.running)

    delivery.ended(one.succeeded, lease=one.lease)

    assert held.next() == ("succeeded", 1)
    (record,) = [each for each in caplog.records if each.getMessage() == TOO_LONG]
    assert (record.observer, record.callback) == ("Held", "on_job_running")
    assert record.job_id == str(one.lease.job_id)
    held.release.set()


def test_observers_of_one_event_are_called_at_the_same_time(attempt, deliver_to, hasty):
    # Each waits for all others; those that were called one after the other would wait for ever.
    together = threading.Barrier(5)

    class Meeting(Recorder):
        def on_job_running(self, event):
            together.wait(WAIT_SECONDS)
            hang.wait(WAIT_SECONDS)

    hang = threading.Event()
    observers = [Meeting() for _ in range(5)]
    delivery = deliver_to(*observers)
    one = attempt(1)
    delivery.started(one.lease, one.running)

    # All five hang from here on, and cost one timeout, since it is the event's.
    delivery.ended(one.succeeded, lease=one.lease)

    assert [observer.next() for observer in observers] == [("succeeded", 1)] * 5
    hang.set()


def test_exception_of_an_observer_is_logged_and_nobody_elses(attempt, deliver_to, caplog):
    class Broken(JobLifecycleObserver):
        def on_job_succeeded(self, event):
            raise SystemExit("never shown")

    recorder = Recorder()
    delivery = deliver_to(Broken(), recorder)
    for number in range(1, 21):
        delivery.ended(attempt(number).succeeded)

    told = {recorder.next() for _ in range(20)}

    delivery.finish(WAIT_SECONDS)
    assert told == {("succeeded", number) for number in range(1, 21)}
    failed = [each for each in caplog.records if each.getMessage() == "a lifecycle observer failed"]
    assert len(failed) == 20
    assert (failed[0].observer.endswith("Broken"), failed[0].error) == (True, "SystemExit")
    assert "never shown" not in caplog.text


def test_exception_that_cannot_be_named_ends_no_thread_of_an_observer(attempt, deliver_to, caplog):
    class Broken(JobLifecycleObserver):
        def on_job_succeeded(self, event):
            raise NamelessError

    delivery = deliver_to(Broken())
    delivery.ended(attempt(1).succeeded)
    delivery.finish(WAIT_SECONDS)

    assert messages(caplog) == ["a lifecycle observer failed"]
    assert caplog.records[0].error == "object"


def test_coroutine_that_a_plain_method_returns_is_logged(attempt, deliver_to, caplog):
    async def tell():
        raise AssertionError

    class Sneaky(JobLifecycleObserver):
        def on_job_succeeded(self, event):  # pyright: ignore[reportIncompatibleMethodOverride]  # the point
            return tell()

    delivery = deliver_to(Sneaky())
    delivery.ended(attempt(1).succeeded)
    delivery.finish(WAIT_SECONDS)

    assert messages(caplog) == ["a lifecycle observer returned a coroutine, which nobody awaits"]


def test_cap_drops_the_newest_and_tells(attempt, deliver_to, caplog):
    held = Held("succeeded")
    delivery = deliver_to(held)
    for number in range(1, 65):
        delivery.ended(attempt(number).succeeded)

    delivery.ended(attempt(65).succeeded)

    held.release.set()
    assert {held.next() for _ in range(64)} == {("succeeded", number) for number in range(1, 65)}
    delivery.finish(WAIT_SECONDS)
    assert held.told.empty()
    (record,) = [each for each in caplog.records if each.getMessage() == TOO_SLOW]
    assert (record.levelno, record.dropped) == (logging.WARNING, 1)


def test_one_commit_of_many_attempts_fits(attempt, deliver_to, caplog):
    recorder = Recorder()
    delivery = deliver_to(recorder, burst=1_000)
    for number in range(1, 1_001):
        delivery.ended(attempt(number).succeeded)

    assert {recorder.next()[1] for _ in range(1_000)} == set(range(1, 1_001))
    assert messages(caplog) == []


def test_events_that_are_over_make_room_before_the_next_is_judged(attempt, deliver_to, caplog):
    held = Held("succeeded")
    delivery = deliver_to(held)
    for number in range(1, 65):
        delivery.ended(attempt(number).succeeded)
    held.release.set()
    told = [held.next() for _ in range(64)]
    # The last call returns a moment after it has told.
    delivered = threading.Event()
    while delivery._ends == 64:
        delivered.wait(0.001)

    delivery.ended(attempt(65).succeeded)

    assert held.next() == ("succeeded", 65)
    assert len(told) == 64
    assert messages(caplog) == []


def test_full_house_of_starts_drops_starts_but_no_end(attempt, deliver_to, caplog):
    held = Held("running")
    delivery = deliver_to(held)
    attempts = [attempt(number) for number in range(1, 67)]
    for each in attempts:
        delivery.started(each.lease, each.running)

    # Its start was dropped, so there is nothing to wait for.
    delivery.ended(attempts[65].succeeded, lease=attempts[65].lease)

    assert held.next() == ("succeeded", 66)
    assert messages(caplog) == [TOO_SLOW]
    held.release.set()


def test_dropped_end_leaves_its_start_alone(attempt, deliver_to):
    starts, ends = Held("running"), Held("succeeded")
    delivery = deliver_to(starts, ends)
    attempts = [attempt(number) for number in range(1, 66)]
    one = attempts[64]
    delivery.started(one.lease, one.running)
    for each in attempts:
        delivery.ended(each.succeeded, lease=each.lease)

    starts.release.set()
    ends.release.set()

    delivery.finish(WAIT_SECONDS)
    told = [starts.next() for _ in range(65)]
    assert ("running", 65) in told
    assert ("succeeded", 65) not in told


def test_hanging_observer_is_disabled_and_others_go_on(
    attempt, deliver_to, hasty, caplog, monkeypatch
):
    monkeypatch.setattr(_lane, "_MOST_STUCK", 3)
    held, recorder = Held("succeeded"), Recorder()
    delivery = deliver_to(held, recorder)
    for number in range(1, 5):
        delivery.ended(attempt(number).succeeded)
    while HANGS not in messages(caplog):
        threading.Event().wait(0.01)

    delivery.ended(attempt(5).succeeded)

    assert {recorder.next() for _ in range(5)} == {("succeeded", number) for number in range(1, 6)}
    delivery.finish(WAIT_SECONDS)
    held.release.set()
    assert held.began.qsize() == 4


def test_thread_that_hangs_is_replaced(attempt, deliver_to, hasty, caplog, monkeypatch):
    monkeypatch.setattr(_lane, "_MOST_THREADS", 1)
    release = threading.Event()

    class HeldOnce(Recorder):
        def on_job_succeeded(self, event):
            if event.job.job_id.int == 1:
                assert release.wait(WAIT_SECONDS)
            super().on_job_succeeded(event)

    observer = HeldOnce()
    delivery = deliver_to(observer)
    delivery.ended(attempt(1).succeeded)
    while TOO_LONG not in messages(caplog):
        threading.Event().wait(0.01)

    delivery.ended(attempt(2).succeeded)

    assert observer.next() == ("succeeded", 2)
    # The thread that comes back late ends; the one in its place goes on.
    release.set()
    assert observer.next() == ("succeeded", 1)
    delivery.ended(attempt(3).succeeded)
    assert observer.next() == ("succeeded", 3)


def test_finish_waits_for_what_was_handed_over(attempt, deliver_to):
    held = Held("running")
    delivery = deliver_to(held)
    one = attempt(1)
    delivery.started(one.lease, one.running)
    delivery.ended(one.succeeded, lease=one.lease)
    finished = threading.Thread(target=delivery.finish, args=(WAIT_SECONDS,))
    finished.start()
    assert held.began.get(timeout=WAIT_SECONDS) == 1
    held.release.set()

    finished.join(WAIT_SECONDS)

    assert [held.told.get_nowait(), held.told.get_nowait()] == [("running", 1), ("succeeded", 1)]


def test_finish_gives_up_after_its_time_and_calls_nobody_any_more(attempt, deliver_to, caplog):
    held = Held("running")
    delivery = deliver_to(held)
    one = attempt(1)
    delivery.started(one.lease, one.running)
    assert held.began.get(timeout=WAIT_SECONDS) == 1
    delivery.ended(one.succeeded, lease=one.lease)

    delivery.finish(0)

    held.release.set()
    assert held.next() == ("running", 1)
    delivery.ended(attempt(2).succeeded)
    delivery.finish(WAIT_SECONDS)
    assert held.told.empty()
    assert messages(caplog) == ["lifecycle observers are still running at the stop"]


def test_after_a_stop_what_runs_goes_on_and_nothing_begins(attempt, deliver_to, monkeypatch):
    monkeypatch.setattr(_lane, "_MOST_THREADS", 1)
    held = Held("succeeded")
    delivery = deliver_to(held)
    for number in (1, 2):
        delivery.ended(attempt(number).succeeded)
    assert held.began.get(timeout=WAIT_SECONDS) == 1

    delivery.stop()
    delivery.ended(attempt(3).succeeded)
    held.release.set()

    delivery.finish(WAIT_SECONDS)
    assert held.next() == ("succeeded", 1)
    assert held.told.empty()


def test_events_that_no_observer_wants_start_no_thread(attempt, deliver_to):
    class Indifferent(JobLifecycleObserver):
        def on_job_lease_reaped(self, event):
            raise AssertionError

    before = threading.active_count()
    delivery = deliver_to(Indifferent())
    one = attempt(1)
    delivery.started(one.lease, one.running)
    delivery.ended(one.succeeded, lease=one.lease)

    delivery.finish(0)

    assert threading.active_count() == before


def test_threads_end_with_the_delivery(attempt, deliver_to):
    before = set(threading.enumerate())
    recorder = Recorder()
    delivery = deliver_to(recorder)
    delivery.ended(attempt(1).succeeded)
    recorder.next()
    threads = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in threads) == [
        "runledger-observer-Recorder",
        "runledger-observers",
    ]

    delivery.finish(WAIT_SECONDS)

    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
