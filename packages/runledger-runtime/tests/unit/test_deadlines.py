from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from runledger_runtime.cancel_request import CancelRequest
from runledger_runtime.deadlines import Deadlines

SOON, NEVER = 0.01, 600.0
PATIENCE_SECONDS = 10
ANSWER_SECONDS = 2.0


@pytest.fixture
def deadlines() -> Iterator[Deadlines]:
    deadlines = Deadlines()
    yield deadlines
    deadlines.close()


def test_overdue_block_is_called_back(deadlines: Deadlines):
    called = threading.Event()

    with deadlines.after(SOON, called.set):
        assert called.wait(PATIENCE_SECONDS)


def test_block_that_ended_in_time_is_forgotten(deadlines: Deadlines):
    with deadlines.after(NEVER, lambda: None):
        pass

    assert (deadlines._callbacks, deadlines._heap) == ({}, [])


def test_shorter_deadline_is_noticed_while_a_longer_one_is_waited_for(deadlines: Deadlines):
    called = threading.Event()

    with deadlines.after(NEVER, called.set):
        until_waiting(deadlines)
        with deadlines.after(SOON, called.set):
            assert called.wait(PATIENCE_SECONDS)


def test_callback_that_asks_for_it_is_called_again(deadlines: Deadlines):
    called = threading.Semaphore(0)

    def call() -> float:
        called.release()
        return SOON

    with deadlines.after(SOON, call):
        for _ in range(3):
            assert called.acquire(timeout=PATIENCE_SECONDS)

    assert (deadlines._callbacks, deadlines._heap) == ({}, [])


def test_callback_that_fails_does_not_cost_the_others_their_deadlines(
    deadlines: Deadlines, caplog: pytest.LogCaptureFixture
):
    called = threading.Event()

    def fail() -> None:
        raise LookupError

    with deadlines.after(SOON, fail), deadlines.after(2 * SOON, called.set):
        assert called.wait(PATIENCE_SECONDS)

    assert [record.getMessage() for record in caplog.records] == ["a deadline could not be kept"]


def test_thread_that_was_not_to_be_had_is_tried_again_for_the_next_block(
    deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch
):
    called = threading.Event()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError), deadlines.after(SOON, called.set):
            pass

    with deadlines.after(SOON, called.set):
        assert called.wait(PATIENCE_SECONDS)


class Link:
    """A connection that counts who cancels what runs on it."""

    def __init__(self, status: TransactionStatus) -> None:
        self.info = self
        self.transaction_status = status
        self.cancels = threading.Semaphore(0)

    def cancel_safe(self, *, timeout: float) -> None:
        assert timeout == ANSWER_SECONDS
        self.cancels.release()


def call_until_the_end(request: CancelRequest) -> list[float]:
    """Return the pauses between the calls."""
    pauses: list[float] = []
    while (pause := request.repeat()) is not None:
        pauses.append(pause)
    return pauses


def test_cancel_is_asked_for_a_few_times_before_the_link_is_given_up():
    link: Any = Link(TransactionStatus.ACTIVE)
    given_up: list[bool] = []
    request = CancelRequest(
        link, seconds=ANSWER_SECONDS, give_up=lambda: given_up.append(request.is_sent)
    )

    pauses = call_until_the_end(request)

    assert sum(pauses) == ANSWER_SECONDS
    assert given_up == [True]
    assert not request.is_our_delay
    for _ in pauses:
        assert link.cancels.acquire(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("status", [TransactionStatus.INTRANS, TransactionStatus.IDLE])
def test_server_that_has_answered_everything_is_not_asked(status: TransactionStatus):
    request = CancelRequest(Link(status), seconds=ANSWER_SECONDS, give_up=lambda: None)  # pyright: ignore[reportArgumentType]  # as much of one as is used

    call_until_the_end(request)

    assert (request.is_sent, request.is_our_delay) == (False, True)


def test_nothing_is_asked_for_a_block_that_has_ended():
    given_up: list[bool] = []
    request = CancelRequest(
        Link(TransactionStatus.ACTIVE),  # pyright: ignore[reportArgumentType]  # as much of one as is used
        seconds=ANSWER_SECONDS,
        give_up=lambda: given_up.append(True),
    )

    request.end()

    assert call_until_the_end(request) == []
    assert (request.is_sent, given_up) == (False, [])


def until_waiting(deadlines: Deadlines) -> None:
    """Return as soon as the thread waits for the deadlines that it knows."""
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not vars(deadlines._changed)["_waiters"]:
        assert time.monotonic() < deadline
        pause.wait(0.001)
