"""What tests of tasks on threads share."""

import threading

import pytest

from runledger_runtime.shutdown import StopToken


@pytest.fixture
def stop():
    return StopToken()


@pytest.fixture
def release():
    # Lets tasks that ignore the stop end after the test.
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def no_thread_left():
    yield
    # The loops of one test must not be taken for those of the next.
    for thread in threading.enumerate():
        if thread.name in {"runledger-worker", "runledger-scheduler", "runledger-reaper"}:
            thread.join(30)
            assert not thread.is_alive()
