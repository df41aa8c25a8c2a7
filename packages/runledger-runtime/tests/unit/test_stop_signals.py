import signal
import threading
from queue import SimpleQueue

import pytest

from runledger_runtime import stop_signals
from runledger_runtime.errors import ShutdownAbortedError, SignalsUnavailableError
from runledger_runtime.stop_signals import StopSignals
from runledger_runtime.stop_sources import watch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_delivered_and_their_handlers_put_back(number):
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    delivered = []

    with watch(None, lambda: delivered.append("stop")):
        signal.raise_signal(number)
        signal.raise_signal(number)

    assert delivered == ["stop", "stop"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_signals_from_before_are_delivered_once_somebody_watches():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    delivered = []

    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        with watch(signals, lambda: delivered.append("stop")):
            on_entering = len(delivered)
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert on_entering == 2
    assert len(delivered) == 3
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
    monkeypatch.setattr(stop_signals, "_DEAF_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ShutdownAbortedError), watch(None, lambda: None):
        raise ShutdownAbortedError(["worker"])

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is before
