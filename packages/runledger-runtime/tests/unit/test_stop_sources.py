import threading
from queue import SimpleQueue
from typing import Any

import pytest

from runledger_core import ValidationError
from runledger_runtime.stop_sources import watch


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


def test_an_event_that_raises_delivers_and_its_error_is_raised_at_the_end():
    class Gone(threading.Event):
        """An event of another process, which has gone."""

        def wait(self, timeout: float | None = None) -> bool:
            raise ConnectionResetError

    delivered = SimpleQueue()

    with pytest.raises(ConnectionResetError), watch(Gone(), lambda: delivered.put("stop")):
        assert delivered.get(timeout=10) == "stop"
