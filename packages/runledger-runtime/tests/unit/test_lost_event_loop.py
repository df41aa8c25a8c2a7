"""An event loop whose own descriptors were closed: what it runs ends, and the next gets another."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from runledger_runtime.event_loop import EventLoop, is_on_lost_loop

from .._loop_descriptors import (
    close_descriptors,
    close_pipe,
    descriptors_of,
    give_descriptors_away,
)

WAIT_SECONDS = 10.0

Lose = Callable[[AbstractEventLoop], None]


class Waiting:
    """A coroutine that waits until it is cancelled, and then cleans up."""

    def __init__(self, loop: EventLoop) -> None:
        """Have it run."""
        self.seen: list[str] = []
        self.goes_on = threading.Event()
        self.cleans_up = threading.Event()
        self._began: Future[AbstractEventLoop] = Future()
        self._ended: Future[bool] = Future()
        loop.call_soon(self._begin)
        self.loop = self._began.result(WAIT_SECONDS)

    def is_cancelled(self) -> bool:
        """Wait until it has ended, and tell whether it was cancelled."""
        return self._ended.result(WAIT_SECONDS)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(lambda task: self._ended.set_result(task.cancelled()))

    async def _run(self) -> None:
        self._began.set_result(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("lost" if is_on_lost_loop() else "cancelled")
            self.cleans_up.set()
            await asyncio.to_thread(self.goes_on.wait, WAIT_SECONDS)
            self.seen.append("cleaned up")


async def lose_and_wait(lose: Lose) -> None:
    lose(asyncio.get_running_loop())
    await asyncio.Event().wait()


async def running_loop() -> AbstractEventLoop:
    return asyncio.get_running_loop()


def wait_until_it_ends(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def wait_until_it_sleeps(thread: threading.Thread | None) -> None:
    assert thread is not None
    status = Path(f"/proc/self/task/{thread.native_id}/stat")
    # It lets other threads run just before it begins to wait.
    while (
        sys._current_frames()[thread.ident or 0].f_code.co_name != "select"
        or status.read_text().rpartition(")")[2].split()[0] != "S"
    ):
        thread.join(0.01)


@pytest.mark.parametrize("lose", [close_descriptors, close_pipe, give_descriptors_away])
@pytest.mark.parametrize("where", ["on the loop", "elsewhere"])
def test_what_runs_on_a_lost_loop_is_cancelled_and_the_next_gets_another(
    lose: Lose, where: str, caplog: pytest.LogCaptureFixture
):
    loop = EventLoop()

    with loop.held():
        waiting = Waiting(loop)
        waiting.goes_on.set()
        thread = loop._thread
        if where == "on the loop":
            with pytest.raises(asyncio.CancelledError):
                loop.run(lose_and_wait(lose), seconds=WAIT_SECONDS)
        else:
            wait_until_it_sleeps(thread)
            lose(waiting.loop)

        assert waiting.is_cancelled()
        assert waiting.seen == ["lost", "cleaned up"]
        wait_until_it_ends(thread)
        assert waiting.loop.is_closed()
        assert loop.run(running_loop()) is not waiting.loop
    # asyncio may have one of its own, of the byte that woke the loop.
    (record,) = [record for record in caplog.records if record.name != "asyncio"]
    assert record.levelname == "CRITICAL"
    assert record.getMessage().startswith("the event loop cannot go on")
    assert len(caplog.records) <= 2


def file_of(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def test_descriptors_that_have_become_somebody_elses_are_left_alone(
    caplog: pytest.LogCaptureFixture,
):
    # The traceback of a record refers to the selector.
    caplog.set_level(logging.CRITICAL + 1)
    loop = EventLoop()

    with loop.held():
        waiting = Waiting(loop)
        waiting.goes_on.set()
        thread, descriptors = loop._thread, descriptors_of(waiting.loop)
        give_descriptors_away(waiting.loop)
        assert waiting.is_cancelled()
        wait_until_it_ends(thread)
    # What nobody refers to any more closes what it has open.
    del waiting, thread
    gc.collect()

    given_away_to = os.stat(os.devnull).st_ino  # noqa: PTH116  # no path
    assert [file_of(descriptor) for descriptor in descriptors] == [given_away_to] * 3
    for descriptor in descriptors:
        os.close(descriptor)


def test_what_comes_before_the_loss_is_noticed_runs_on_another_loop():
    loop = EventLoop()
    ran_on: list[AbstractEventLoop] = []

    async def note() -> None:
        ran_on.append(asyncio.get_running_loop())

    with loop.held():
        waiting = Waiting(loop)
        waiting.goes_on.set()
        close_descriptors(waiting.loop)
        loop.call_soon(lambda: asyncio.get_running_loop().create_task(note()))
        loop.run(asyncio.sleep(0))

        assert len(ran_on) == 1
        assert ran_on[0] is not waiting.loop
        assert waiting.is_cancelled()


def test_loop_that_is_lost_is_not_said_to_be_blocked(caplog: pytest.LogCaptureFixture):
    loop = EventLoop()

    with loop.held():
        waiting = Waiting(loop)
        waiting.goes_on.set()
        thread = loop._thread
        assert thread is not None
        close_descriptors(waiting.loop)
        assert waiting.is_cancelled()
        wait_until_it_ends(thread)
        thread.look(0.0)
        thread.look(100.0)

    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


def test_end_of_the_last_holder_does_not_cancel_once_more_what_cleans_up():
    loop = EventLoop()

    with loop.held():
        waiting = Waiting(loop)
        thread = loop._thread
        close_descriptors(waiting.loop)
        assert waiting.cleans_up.wait(WAIT_SECONDS)
    waiting.goes_on.set()

    assert waiting.is_cancelled()
    assert waiting.seen == ["lost", "cleaned up"]
    wait_until_it_ends(thread)


def test_loop_that_is_lost_once_more_cancels_nothing_twice(caplog: pytest.LogCaptureFixture):
    loop = EventLoop()

    with loop.held():
        waiting = Waiting(loop)
        thread = loop._thread
        close_descriptors(waiting.loop)
        assert waiting.cleans_up.wait(WAIT_SECONDS)
        close_descriptors(waiting.loop)
        waiting.goes_on.set()

        assert waiting.is_cancelled()
        assert waiting.seen == ["lost", "cleaned up"]
        wait_until_it_ends(thread)
    assert len(caplog.records) == 1
