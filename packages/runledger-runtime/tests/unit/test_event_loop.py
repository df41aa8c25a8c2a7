"""The thread of an event loop: what runs on it, what ends with it, and what blocks it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable

import pytest

from runledger_core import ValidationError
from runledger_runtime.event_loop import EventLoop, refuse_on_event_loop

from .._descriptors import no_descriptor_to_be_had

WAIT_SECONDS = 30.0
NAME = "runledger-event-loop"


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


async def name_of_thread() -> str:
    return threading.current_thread().name


async def never() -> None:
    await asyncio.Event().wait()


def test_nothing_is_started_until_it_is_needed():
    with EventLoop().held():
        assert loop_threads() == []


def test_coroutine_runs_on_the_loops_own_daemon_thread():
    loop = EventLoop()

    with loop.held():
        assert loop.run(name_of_thread()) == NAME
        (thread,) = loop_threads()
        assert thread.daemon
        assert loop.run(name_of_thread()) == NAME
        assert loop_threads() == [thread]

    assert not thread.is_alive()


def test_loop_that_is_needed_again_is_a_fresh_one():
    loop = EventLoop()
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    loop.run(note())
    loop.run(note())

    assert loops[0] is not loops[1]
    assert loops[0].is_closed()


def test_inner_holder_does_not_end_the_loop_of_the_outer():
    loop = EventLoop()
    with loop.held():
        loop.run(name_of_thread())
        before = loop_threads()
        with loop.held():
            pass
        loop.run(name_of_thread())

        assert loop_threads() == before


def test_what_a_coroutine_raises_reaches_the_caller():
    async def fail() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        EventLoop().run(fail())


def test_coroutine_has_the_callers_context_variables_and_keeps_its_own():
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("callers")

    async def change() -> str:
        before = variable.get()
        variable.set("coroutines")
        return before

    assert EventLoop().run(change()) == "callers"
    assert variable.get() == "callers"


def test_coroutine_that_overruns_its_time_is_cancelled():
    ended: list[str] = []

    async def wait() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(TimeoutError):
        EventLoop().run(wait(), seconds=0.05)

    assert ended == ["cancelled"]


def test_task_that_was_left_behind_is_cancelled_with_the_loop():
    ended: list[str] = []
    left: list[asyncio.Task[None]] = []

    async def child() -> None:
        try:
            await never()
        finally:
            ended.append("child")

    async def leave() -> None:
        left.append(asyncio.create_task(child()))
        await asyncio.sleep(0)

    EventLoop().run(leave())

    assert ended == ["child"]


def test_async_generator_that_was_left_behind_is_closed_with_the_loop():
    ended: list[str] = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    kept = []

    async def leave() -> None:
        generator = numbers()
        kept.append(generator)
        await anext(generator)

    EventLoop().run(leave())

    assert ended == ["generator"]


def test_exit_of_a_task_that_was_left_behind_ends_nothing_else(
    caplog: pytest.LogCaptureFixture,
):
    loop = EventLoop()

    async def leave() -> None:
        raise SystemExit(3)

    with loop.held():
        with pytest.raises(SystemExit):
            loop.run(leave())

        assert loop.run(name_of_thread()) == NAME
    assert caplog.messages == ["a task tried to end the event loop"]


def test_task_that_swallows_its_cancellation_does_not_hold_the_last_holder():
    release: list[Callable[[], object]] = []
    ended = threading.Event()

    async def stubborn() -> None:
        door = asyncio.Event()
        loop = asyncio.get_running_loop()
        release.append(lambda: loop.call_soon_threadsafe(door.set))
        while not door.is_set():
            try:
                await door.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async def leave() -> None:
        kept.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)

    kept: list[asyncio.Task[None]] = []
    loop = EventLoop()
    with loop.held():
        loop.run(leave())
        (thread,) = loop_threads()

    assert thread.is_alive()
    release[0]()
    assert ended.wait(WAIT_SECONDS)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_blocking_call_is_refused_on_the_loop_and_nowhere_else():
    async def call() -> None:
        refuse_on_event_loop()

    with pytest.raises(ValidationError) as refused:
        EventLoop().run(call())

    assert refused.value.code == "job.blocks_event_loop"
    # A `def` handler may run a loop of its own: that one it may block.
    asyncio.run(call())
    refuse_on_event_loop()


def test_calls_in_threads_run_on_daemon_threads_at_once():
    together = threading.Barrier(8)

    def call() -> bool:
        together.wait(WAIT_SECONDS)
        return threading.current_thread().daemon

    async def calls() -> list[bool]:
        return await asyncio.gather(*[asyncio.to_thread(call) for _ in range(8)])

    assert EventLoop().run(calls()) == [True] * 8


def test_more_calls_than_threads_all_run():
    async def calls() -> list[int]:
        return await asyncio.gather(*[asyncio.to_thread(abs, -number) for number in range(200)])

    assert EventLoop().run(calls()) == list(range(200))


def test_what_a_call_in_a_thread_raises_is_raised_where_it_is_awaited():
    def fail() -> None:
        raise LookupError("in a thread")

    async def call() -> None:
        await asyncio.to_thread(fail)

    with pytest.raises(LookupError, match="in a thread"):
        EventLoop().run(call())


def test_threads_of_calls_end_with_the_loop():
    threads: list[threading.Thread] = []

    async def call() -> None:
        await asyncio.to_thread(lambda: threads.append(threading.current_thread()))

    EventLoop().run(call())

    threads[0].join(WAIT_SECONDS)
    assert not threads[0].is_alive()


def test_loop_that_gets_no_descriptor_is_an_error_and_leaves_nothing_half_made():
    loop = EventLoop()

    with no_descriptor_to_be_had(), pytest.raises(OSError, match="Too many open files"):
        loop.call_soon(lambda: None)

    assert loop.run(name_of_thread()) == NAME


def test_loop_that_gets_no_thread_is_closed(monkeypatch: pytest.MonkeyPatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[asyncio.AbstractEventLoop] = []
    new_event_loop = asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(new_event_loop()) or made[0])
    monkeypatch.setattr(threading.Thread, "start", refuse)

    with pytest.raises(RuntimeError):
        EventLoop().call_soon(lambda: None)

    assert made[0].is_closed()


def test_blocked_loop_is_reported_once_with_its_stack(caplog: pytest.LogCaptureFixture):
    loop = EventLoop()
    release, blocked = threading.Event(), threading.Event()

    def wait_for_the_disk() -> None:
        blocked.set()
        release.wait(WAIT_SECONDS)

    with loop.held():
        loop.call_soon(wait_for_the_disk)
        assert blocked.wait(WAIT_SECONDS)
        thread = loop._thread
        assert thread is not None
        now = time.monotonic()
        thread.look(now)
        thread.look(now + 0.9)
        assert caplog.messages == []

        thread.look(now + 1.1)
        thread.look(now + 1.4)

        (message,) = caplog.messages
        release.set()
    assert message.startswith("a coroutine blocks the event loop")
    assert "in wait_for_the_disk" in message


def test_loop_that_answers_is_not_reported(caplog: pytest.LogCaptureFixture):
    loop = EventLoop()

    with loop.held():
        loop.run(name_of_thread())
        thread = loop._thread
        assert thread is not None
        thread.look(0.0)
        # The answer is on the loop before this.
        loop.run(name_of_thread())
        thread.look(100.0)
        loop.run(name_of_thread())
        thread.look(200.0)

    assert caplog.messages == []
