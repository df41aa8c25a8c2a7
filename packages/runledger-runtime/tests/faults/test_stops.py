"""Signals to real workers at random moments: nothing is lost, a clean stop leaves no lease."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from _faults import Outside, define, eventually

from runledger_core import JobEnqueue
from runledger_postgres import connect_pool, enqueue_jobs
from runledger_test_support import TemporaryDatabase

APP: Final = """
import os, time
from runledger_runtime import JobCatalog

catalog = JobCatalog()
runs = os.open("runs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

@catalog.job("stops.work")
def work(context, payload):
    time.sleep(payload["milliseconds"] / 1000)
    # One write, as several processes share the file.
    os.write(runs, f"{context.job_id}\\n".encode())
"""
COMMAND: Final = "from runledger_runtime.cli import main; main()"
AT_ONCE: Final = 4
MOST_WAITING: Final = 500
LEASED: Final = """
SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED' AND worker_id LIKE %s
"""
WAITING: Final = "SELECT count(*) FROM runledger.job_queue WHERE status <> 'SUCCEEDED'"
IDS: Final = "SELECT id::text FROM runledger.job_queue WHERE status = 'SUCCEEDED'"


class Fleet:
    """Workers of one catalog that are started and signalled."""

    def __init__(self, database: TemporaryDatabase, folder: Path) -> None:
        self._database = database
        self._folder = folder
        (folder / "stops.py").write_text(APP)

    @contextmanager
    def worker(self, name: str, *, concurrency: int = 4) -> Iterator[subprocess.Popen[str]]:
        arguments = ["--app", "stops:catalog", "--log-level", "warning"]
        arguments += ["--concurrency", str(concurrency)]
        process = subprocess.Popen(  # our own interpreter and text
            [sys.executable, "-c", COMMAND, "worker", *arguments],
            cwd=self._folder,
            env=os.environ
            | {
                "DATABASE_URL": self._database.dsn,
                "JOBS_DIRECT_DATABASE_URL": self._database.direct_dsn,
                "JOBS_WORKER_ID": name,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def runs(self) -> Counter[str]:
        """Return how often a handler of each job came to its end."""
        return Counter((self._folder / "runs").read_text().split())


@pytest.fixture
def fleet(runledger_database: TemporaryDatabase, tmp_path: Path) -> Fleet:
    return Fleet(runledger_database, tmp_path)


@pytest.fixture
def outside(runledger_database: TemporaryDatabase) -> Outside:
    return Outside(runledger_database.connect_directly(autocommit=True))


@contextmanager
def producing(database: TemporaryDatabase, *, seed: int) -> Iterator[None]:
    """Enqueue batches for as long as the block lasts, so that there is always something to lose."""
    chance, is_over = random.Random(seed), threading.Event()

    def produce() -> None:
        outside = Outside(database.connect_directly(autocommit=True))
        with connect_pool(database.direct_dsn, max_size=1) as pool:
            while not is_over.wait(chance.uniform(0.0, 0.1)):
                batch = [
                    JobEnqueue("stops.work", {"milliseconds": chance.randint(0, 40)})
                    for _ in range(chance.randint(1, 20))
                ]
                # No more than the last worker can run out in a while.
                if outside.value(WAITING) < MOST_WAITING:
                    enqueue_jobs(pool, batch)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(30)


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert any("end it with Ctrl-C or SIGTERM" in line for line in process.stderr)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=40)
    return process.returncode, stderr


def run_out(fleet: Fleet, outside: Outside) -> None:
    """Have one more worker run whatever is left, and check that every job ran once."""
    with fleet.worker("stop-last", concurrency=32) as process:
        eventually(lambda: outside.value(WAITING) == 0, seen=lambda: outside.value(WAITING))
        process.terminate()
        assert end_of(process)[0] == 0
    assert fleet.runs() == Counter(outside.column(IDS))


@pytest.mark.timeout(1_800)
def test_signals_at_random_moments_lose_nothing_and_leave_no_lease(
    fleet: Fleet,
    outside: Outside,
    runledger_database: TemporaryDatabase,
    scaled: Callable[..., int],
    seed: int,
) -> None:
    chance = random.Random(seed)
    define(outside.connection, "stops.work")
    plans = [
        (f"stop-{number}", chance.choice([signal.SIGTERM, signal.SIGINT]), chance.uniform(0.0, 1.0))
        for number in range(scaled(ci=10, full=200))
    ]

    def stop(plan: tuple[str, signal.Signals, float]) -> tuple[int, str]:
        name, number, seconds = plan
        with fleet.worker(name) as process:
            wait_until_ready(process)
            threading.Event().wait(seconds)
            process.send_signal(number)
            return end_of(process)

    with producing(runledger_database, seed=seed), ThreadPoolExecutor(AT_ONCE) as executor:
        ends = list(executor.map(stop, plans))

    assert {code for code, _ in ends} == {0}
    assert all(stderr.endswith("worker stopped\n") for _, stderr in ends)
    assert outside.value(LEASED, "stop-%") == 0
    assert outside.value("SELECT count(*) FROM runledger.job_workers") == 0
    run_out(fleet, outside)


@pytest.mark.timeout(1_800)
def test_signal_in_the_first_two_seconds_is_honoured_and_leaves_no_lease(
    fleet: Fleet,
    outside: Outside,
    runledger_database: TemporaryDatabase,
    scaled: Callable[..., int],
    seed: int,
) -> None:
    chance = random.Random(seed)
    define(outside.connection, "stops.work")
    plans = [
        (f"start-{number}", chance.uniform(0.0, 2.0)) for number in range(scaled(ci=10, full=200))
    ]

    def stop(plan: tuple[str, float]) -> tuple[int, str]:
        name, seconds = plan
        with fleet.worker(name) as process:
            threading.Event().wait(seconds)
            process.terminate()
            return end_of(process)

    with producing(runledger_database, seed=seed), ThreadPoolExecutor(AT_ONCE) as executor:
        ends = list(executor.map(stop, plans))

    # Before our handlers are there, while modules are imported, a signal ends the process itself.
    assert {code for code, _ in ends} <= {0, -signal.SIGTERM}
    assert not any("Traceback" in stderr or "error" in stderr for _, stderr in ends)
    assert outside.value(LEASED, "start-%") == 0
    run_out(fleet, outside)
