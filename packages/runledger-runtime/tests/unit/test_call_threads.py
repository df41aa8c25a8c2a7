"""Calls of `asyncio.to_thread`: their threads, and what becomes of a call that never ends."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from runledger_runtime import call_threads
from runledger_runtime.call_threads import StuckCalls
from runledger_runtime.event_loop import EventLoop

WAIT_SECONDS = 5.0
MOST_THREADS = 32


class Calls:
    """Calls that wait behind a door, for coroutines that are cancelled meanwhile."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.door = threading.Event()
        self.started = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def wait_for_the_door(self) -> None:
        self.threads.append(threading.current_thread())
        self.started.release()
        self.door.wait(60)

    def begin(self, number: int, call: Callable[[], object] | None = None) -> None:
        """Have so many coroutines await a call, and return when so many are being run."""
        for _ in range(number):
            self.loop.call_soon(self._await_call, call or self.wait_for_the_door)
        for _ in range(min(number, MOST_THREADS)):
            assert self.started.acquire(timeout=WAIT_SECONDS)

    def _await_call(self, call: Callable[[], object]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(asyncio.to_thread(call)))

    def leave(self) -> None:
        """Cancel the coroutines."""

        async def cancel() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            self._tasks.clear()

        self.loop.run(cancel())

    def count(self, grace_seconds: float = 0) -> StuckCalls:
        return self.loop.count_stuck_calls(grace_seconds, on_change=lambda: None)

    def thread_of_a_call(self) -> threading.Thread:
        """Return the thread that another call gets."""
        return self.loop.run(asyncio.to_thread(threading.current_thread), seconds=WAIT_SECONDS)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    with calls.loop.held():
        yield calls
        calls.door.set()
    for thread in calls.threads:
        thread.join(WAIT_SECONDS)


def test_call_that_goes_on_without_its_coroutine_is_stuck_until_it_returns(calls: Calls):
    stuck = calls.count()
    calls.begin(2)
    calls.leave()

    calls.loop.look()
    assert stuck.take_change() == 2
    calls.loop.look()
    assert stuck.take_change() == 0

    calls.door.set()
    for thread in calls.threads:
        thread.join(WAIT_SECONDS)
    assert stuck.take_change() == -2


def test_call_that_others_end_is_replaced_and_not_counted(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    look_up = calls.wait_for_the_door
    monkeypatch.setattr(call_threads, "_ENDED_BY_OTHERS", [look_up])
    stuck = calls.count()
    calls.begin(MOST_THREADS, look_up)
    calls.leave()

    calls.loop.look()

    assert stuck.take_change() == 0
    assert calls.thread_of_a_call() not in calls.threads
    calls.door.set()
    for thread in calls.threads:
        thread.join(WAIT_SECONDS)
    assert stuck.take_change() == 0


@pytest.mark.parametrize("is_debugged", [False, True])
@pytest.mark.parametrize("name", ["getaddrinfo", "getnameinfo"])
def test_what_asyncio_looks_names_up_with_is_ended_by_others(
    name: str, is_debugged: bool, monkeypatch: pytest.MonkeyPatch
):
    called: list[object] = []

    async def look_up() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(is_debugged)
        monkeypatch.setattr(loop, "run_in_executor", lambda _, call, *_args: called.append(call))
        # What it returns here cannot be awaited.
        with suppress(TypeError):
            await (
                loop.getaddrinfo("a", 1) if name == "getaddrinfo" else loop.getnameinfo(("a", 1))
            )

    asyncio.run(look_up())

    assert [call_threads._is_ended_by_others(each) for each in called] == [True]


def test_stuck_call_that_has_no_hash_is_told_by_its_class(
    calls: Calls, caplog: pytest.LogCaptureFixture
):
    @dataclass
    class Waiter:
        calls: Calls

        def __call__(self) -> None:
            self.calls.wait_for_the_door()

    calls.count()
    calls.begin(1, Waiter(calls))
    calls.leave()

    calls.loop.look()

    assert "Waiter goes on in a thread" in caplog.text


def test_whoever_counts_is_told_of_each_change(calls: Calls):
    told: list[int] = []
    stuck = calls.loop.count_stuck_calls(0, on_change=lambda: told.append(stuck.take_change()))
    calls.begin(1)
    calls.leave()

    calls.loop.look()
    calls.door.set()
    calls.threads[0].join(WAIT_SECONDS)

    assert told == [1, -1]


def test_stuck_calls_take_no_thread_from_others(calls: Calls):
    calls.count()
    calls.begin(MOST_THREADS)
    calls.leave()
    calls.loop.look()

    assert calls.thread_of_a_call() not in calls.threads


def test_call_that_waits_for_a_thread_gets_that_of_a_stuck_one(calls: Calls):
    calls.count()
    calls.begin(MOST_THREADS)
    calls.leave()
    ran = threading.Event()
    calls.loop.call_soon(calls._await_call, ran.set)
    calls.loop.run(asyncio.sleep(0))
    assert not ran.is_set()

    calls.loop.look()

    assert ran.wait(WAIT_SECONDS)


def test_thread_of_a_stuck_call_ends_with_it_since_another_has_its_place(calls: Calls):
    calls.count()
    calls.begin(1)
    calls.leave()
    calls.loop.look()

    calls.door.set()

    calls.threads[0].join(WAIT_SECONDS)
    assert not calls.threads[0].is_alive()


def test_no_more_calls_run_at_once_than_before_beside_stuck_ones(calls: Calls):
    before = threading.enumerate()
    calls.count()
    calls.begin(2)
    calls.leave()
    calls.loop.look()

    calls.begin(MOST_THREADS + 1)
    calls.loop.run(asyncio.sleep(0))

    running = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in running].count("runledger-call") == MOST_THREADS + 2
    calls.door.set()
    assert calls.started.acquire(timeout=WAIT_SECONDS)


def test_call_that_goes_on_for_less_than_the_grace_period_is_not_stuck(calls: Calls):
    stuck = calls.count(grace_seconds=10)
    calls.begin(1)
    calls.leave()
    thread = calls.loop._thread
    assert thread is not None
    now = time.monotonic()

    thread.calls.look(now + 9, [stuck])
    assert stuck.take_change() == 0
    thread.calls.look(now + 11, [stuck])
    assert stuck.take_change() == 1


def test_call_that_is_waited_for_is_never_stuck(calls: Calls):
    stuck = calls.count()
    calls.begin(1)

    calls.loop.look()

    assert stuck.take_change() == 0


def test_call_that_was_cancelled_before_it_ran_is_not_run_and_not_stuck(calls: Calls):
    stuck = calls.count()
    calls.begin(MOST_THREADS + 1)
    calls.leave()

    calls.loop.look()

    assert stuck.take_change() == MOST_THREADS
    calls.thread_of_a_call()
    assert len(calls.threads) == MOST_THREADS


def test_who_counts_no_more_is_told_nothing(calls: Calls):
    stuck, ended = calls.count(), calls.count()
    calls.begin(1)
    calls.leave()

    calls.loop.stop_counting(ended)
    calls.loop.look()

    assert (stuck.take_change(), ended.take_change()) == (1, 0)


def test_thread_that_cannot_be_replaced_yet_is_replaced_later(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls.count()
    calls.begin(MOST_THREADS)
    calls.leave()
    ran = threading.Event()
    calls.loop.call_soon(calls._await_call, ran.set)
    calls.loop.run(asyncio.sleep(0))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        calls.loop.look()
    assert not ran.is_set()

    calls.loop.look()

    assert ran.wait(WAIT_SECONDS)


class CallableObject:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def __call__(self) -> None:
        self.calls.wait_for_the_door()


class Nameless(CallableObject):
    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda calls: calls.wait_for_the_door, f"{__name__}.Calls.wait_for_the_door"),
        (
            lambda calls: functools.partial(Calls.wait_for_the_door, calls),
            f"{__name__}.Calls.wait_for_the_door",
        ),
        (CallableObject, f"{__name__}.CallableObject"),
        (Nameless, "a call"),
    ],
    ids=["method", "partial", "object", "nameless"],
)
def test_stuck_call_is_reported_once_by_the_name_of_what_it_calls(
    calls: Calls, caplog: pytest.LogCaptureFixture, make: Callable[[Calls], Any], name: str
):
    calls.count()
    calls.begin(1, make(calls))
    calls.leave()

    calls.loop.look()
    calls.loop.look()

    assert caplog.messages == [
        f"{name} goes on in a thread though its coroutine was cancelled, and is stuck"
    ]
