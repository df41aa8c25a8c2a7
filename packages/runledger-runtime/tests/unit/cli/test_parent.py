"""Real signals and bytes to a real process: how many signals a worker counts."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

PROGRAM = """
import os
import threading
from runledger_runtime.cli._end import ProcessEnd
from runledger_runtime.cli._parent import Parent

parent, is_over = Parent(), threading.Event()

def say(text):
    os.write(1, f"{text}\\n".encode())

def end():
    say("gone")
    is_over.set()

with ProcessEnd(60, is_ours=False).signals(parent) as signals:
    say("early")
    while signals._early < int(os.environ["EARLY"]):
        is_over.wait(0.01)
    with signals.delivered_to(lambda: say("stop")):
        parent.listen(end)
        say("ready")
        # A signal that comes just before a wait is handled after it, as a Supervisor knows.
        while not is_over.wait(0.1):
            pass
"""


class Worker:
    def __init__(self, *, early: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"EARLY": str(early)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def tell(self, count: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"!" * count)
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def end(self) -> str:
        """Leave it alone; return what it said since, without the end of the parent."""
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return output.decode().replace("gone\n", "")


@pytest.fixture
def start() -> Iterator:
    workers: list[Worker] = []

    def start_worker(**options: int) -> Worker:
        workers.append(Worker(**options))
        assert workers[-1].said() == "early"
        return workers[-1]

    yield start_worker
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


def test_signal_to_the_worker_alone_counts_once(start):
    worker = start()
    assert worker.said() == "ready"
    worker.signal()
    assert worker.said() == "stop"

    worker.signal()
    worker.signal(signal.SIGINT)

    assert worker.end() == ""


def test_second_signal_counts_when_the_parent_has_told_of_it(start):
    worker = start()
    assert worker.said() == "ready"
    worker.signal()
    assert worker.said() == "stop"

    worker.tell(2)

    assert worker.end() == "stop\n"


def test_signals_that_come_as_one_count_as_many_as_the_parent_told_of(start):
    worker = start()
    assert worker.said() == "ready"

    worker.signal(signal.SIGSTOP)
    worker.signal()
    worker.signal()
    worker.tell(2)
    worker.signal(signal.SIGCONT)

    assert [worker.said(), worker.said()] == ["stop", "stop"]
    assert worker.end() == ""


def test_signal_from_before_the_worker_listens_is_the_first_of_two(start):
    worker = start(early=1)
    worker.tell(2)

    worker.signal()

    assert sorted(worker.said() for _ in range(3)) == ["ready", "stop", "stop"]
    assert worker.end() == ""
