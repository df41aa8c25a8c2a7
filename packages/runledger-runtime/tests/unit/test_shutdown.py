import signal
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from runledger_core import ValidationError
from runledger_runtime import shutdown
from runledger_runtime.errors import ShutdownAbortedError, SignalsUnavailableError
from runledger_runtime.shutdown import StopToken, watch


def test_a_new_token_asks_nobody_to_stop():
    token = StopToken()

    assert not token.is_requested
    assert token.reason is None
    assert token.requested_at is None
    assert token.wait(0) is False


def test_only_the_first_request_counts():
    token = StopToken()
    before = time.monotonic()

    token.request("first")
    requested_at = token.requested_at
    token.request("second")

    assert token.is_requested
    assert token.reason == "first"
    assert requested_at is not None
    assert before <= requested_at <= time.monotonic()
    assert token.requested_at == requested_at
    assert token.wait(0) is True


def test_a_request_wakes_those_who_wait():
    token = StopToken()
    answers = SimpleQueue()
    thread = threading.Thread(target=lambda: answers.put(token.wait(None)))
    thread.start()

    token.request()

    assert answers.get(timeout=10) is True
    thread.join()


def test_callbacks_are_called_once_and_see_the_request():
    token = StopToken()
    seen = []
    token.add_callback(lambda: seen.append(token.is_requested))

    token.request()
    token.request()

    assert seen == [True]


def test_a_late_callback_is_called_at_once():
    token = StopToken()
    token.request()
    seen = []

    token.add_callback(lambda: seen.append("called"))

    assert seen == ["called"]


def test_a_callback_that_fails_does_not_stop_the_others(caplog):
    token = StopToken()
    seen = []
    token.add_callback(lambda: 1 / 0)
    token.add_callback(lambda: seen.append("called"))

    token.request()

    assert seen == ["called"]
    assert "a stop callback failed" in caplog.text


def test_callbacks_added_while_others_request_are_called_exactly_once():
    for _ in range(50):
        token = StopToken()
        calls: SimpleQueue[int] = SimpleQueue()
        requester = threading.Thread(target=token.request)
        requester.start()
        for number in range(20):
            token.add_callback(partial(calls.put, number))
        requester.join()

        assert sorted(calls.get(timeout=10) for _ in range(20)) == list(range(20))
        assert calls.empty()


def test_an_event_delivers_once_it_is_set():
    event = threading.Event()
    delivered = SimpleQueue()

    with watch(event, lambda: delivered.put("stop")):
        assert delivered.empty()
        event.set()

        assert delivered.get(timeout=10) == "stop"


def test_the_thread_that_watches_an_event_ends_with_its_context():
    event = threading.Event()
    before = set(threading.enumerate())
    with watch(event, lambda: None):
        (watcher,) = set(threading.enumerate()) - before

    watcher.join(10)

    assert not watcher.is_alive()


def test_a_blocking_function_delivers_when_it_returns():
    gate = threading.Event()
    delivered = SimpleQueue()

    with watch(gate.wait, lambda: delivered.put("stop")):
        assert delivered.empty()
        gate.set()

        assert delivered.get(timeout=10) == "stop"


def test_the_error_of_a_blocking_function_is_raised_at_the_end():
    delivered = SimpleQueue()

    with pytest.raises(ZeroDivisionError), watch(lambda: 1 / 0, lambda: delivered.put("stop")):
        assert delivered.get(timeout=10) == "stop"


def test_something_else_is_no_stop_source():
    nonsense: Any = 5

    with pytest.raises(ValidationError) as caught:
        watch(nonsense, lambda: None)

    assert caught.value.code == "input.wrong_type"
    assert caught.value.field == "stop"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_delivered_and_their_handlers_put_back(number):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    delivered = []

    with watch(None, lambda: delivered.append("stop")):
        signal.raise_signal(number)
        signal.raise_signal(number)

    assert delivered == ["stop", "stop"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_handlers_are_put_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(ZeroDivisionError), watch(None, lambda: None):
        raise ZeroDivisionError

    assert signal.getsignal(signal.SIGTERM) is before


def test_signals_are_refused_outside_the_main_thread():
    errors = SimpleQueue()

    def enter():
        try:
            with watch(None, lambda: None):
                pass
        except SignalsUnavailableError as error:
            errors.put(error)

    thread = threading.Thread(target=enter)
    thread.start()

    assert errors.get(timeout=10).code == "supervisor.signals_unavailable"
    thread.join()


def test_after_an_abort_a_signal_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    delivered = []
    try:
        with (
            pytest.raises(ShutdownAbortedError),
            watch(None, lambda: delivered.append("stop")),
        ):
            raise ShutdownAbortedError(["worker"])

        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

        assert delivered == []
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_long_after_an_abort_a_signal_does_what_it_did_before(monkeypatch):
    monkeypatch.setattr(shutdown, "_DEAF_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ShutdownAbortedError), watch(None, lambda: None):
        raise ShutdownAbortedError(["worker"])

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is before
