"""The process of `runledger worker` ends in time, whatever its handlers have left behind."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runledger_core import JobEnqueue
from runledger_postgres.jobs import enqueue_job, enqueue_jobs
from runledger_postgres.workers import list_workers

APP = """
import asyncio
import atexit
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from runledger_runtime.catalog import JobCatalog

catalog = JobCatalog()
kept = []

def began():
    Path("began").touch()

@catalog.job("thread")
def thread(context, payload):
    threading.Thread(target=time.sleep, args=(60,), name="mail", daemon=False).start()
    began()

@catalog.job("executor")
async def executor(context, payload):
    asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), time.sleep, 60)
    began()

@catalog.job("process")
def process(context, payload):
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), name="mill")
    child.start()
    Path("child").write_text(str(child.pid))
    began()

@catalog.job("atexit")
def function_at_exit(context, payload):
    atexit.register(time.sleep, 60)
    began()

class Closed:
    def __del__(self):
        time.sleep(60)

@catalog.job("object")
def object_that_hangs(context, payload):
    kept.append(Closed())
    began()

@catalog.job("goodbye")
def goodbye(context, payload):
    file = open("open", "w")
    file.write("written")
    kept.append(file)
    atexit.register(lambda: Path("atexit").write_text("called"))
    began()

@catalog.job("stuck", timeout_seconds=1)
def stuck(context, payload):
    with ThreadPoolExecutor(1) as executor:
        executor.submit(time.sleep, 60).result()

@catalog.job("holds")
def holds_what_the_stop_needs(context, payload):
    with context.cancelled._cond:
        began()
        time.sleep(60)

@catalog.job("fails")
def fails(context, payload):
    began()
    raise ValueError
"""
COMMAND = [sys.executable, "-m", "runledger_runtime.cli", "worker", "--app", "shop:catalog"]
READY = "end it with Ctrl-C or SIGTERM"
# What the promise allows, and some for a machine that is busy.
END_SECONDS = 2 + 1


class Worker:
    """A worker whose stderr is a pipe; it is read by nobody but `until_ready` and `said`."""

    def __init__(self, folder: Path, dsn: str, *options: str, is_full: bool = False) -> None:
        self.folder = folder
        self._reading, self._writing = os.pipe()
        if is_full:
            self.fill()
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            cwd=folder,
            env=os.environ | {"DATABASE_URL": dsn},
            stderr=self._writing,
        )
        self._text = ""

    def until_said(self, text: str, *, times: int = 1) -> None:
        while self._text.count(text) < times:
            ready, _, _ = select.select([self._reading], [], [], 30)
            assert ready, f"never said {text}: {self._text}"
            self._text += os.read(self._reading, 65536).decode()

    def fill(self) -> None:
        # The worker's end is the same open file: it blocks again before the worker writes.
        os.set_blocking(self._writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self._writing, bytes(4096))
        with suppress(BlockingIOError):
            while True:
                os.write(self._writing, bytes(1))
        os.set_blocking(self._writing, True)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def said(self) -> str:
        os.set_blocking(self._reading, False)
        with suppress(BlockingIOError):
            while text := os.read(self._reading, 65536):
                self._text += text.decode()
        return self._text

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._reading)
        os.close(self._writing)


@pytest.fixture
def start(runledger_database, tmp_path) -> Iterator:
    (tmp_path / "shop.py").write_text(APP)
    workers: list[Worker] = []

    def start_worker(*options: str, is_full: bool = False) -> Worker:
        worker = Worker(tmp_path, runledger_database.dsn, *options, is_full=is_full)
        workers.append(worker)
        return worker

    yield start_worker
    for worker in workers:
        worker.close()
    if (child := tmp_path / "child").exists():
        with suppress(ProcessLookupError):
            os.kill(int(child.read_text()), signal.SIGKILL)


@pytest.fixture
def run_job(start, runledger_pool, eventually):
    """Have a worker run one job that leaves something behind."""

    def run(job_type: str, *options: str) -> Worker:
        worker = start(*options)
        worker.until_said(READY)
        enqueue_job(runledger_pool, JobEnqueue(job_type, {}))
        eventually((worker.folder / "began").exists)
        return worker

    return run


@pytest.mark.parametrize(
    ("left", "name"),
    [
        ("thread", "the thread mail"),
        ("executor", "threads of an executor"),
        ("process", "the process mill"),
        ("atexit", "functions at the exit"),
    ],
)
def test_process_does_not_wait_for_what_a_handler_left_behind(run_job, left, name):
    worker = run_job(left)

    worker.process.terminate()

    assert worker.wait(END_SECONDS) == 0
    assert "worker stopped\nwarning: not waited for: " in worker.said()
    assert name in worker.said()


def test_process_whose_objects_hang_at_its_exit_is_ended_by_the_system(run_job):
    worker = run_job("object", "--shutdown-timeout", "0.2")

    worker.process.terminate()

    assert worker.wait(0.2 + END_SECONDS) == -signal.SIGALRM


def test_command_inside_of_another_program_ends_with_a_code_and_not_the_program(
    runledger_database, tmp_path
):
    (tmp_path / "shop.py").write_text(APP)
    program = (
        "import time\n"
        "from click.testing import CliRunner\n"
        "from runledger_runtime.cli.worker import command\n"
        "print(CliRunner().invoke(command, ['--app', 'shop:catalog', '--burst']).exit_code)\n"
        "time.sleep(3)\n"
        "print('goes on')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"DATABASE_URL": runledger_database.dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ended.stdout, ended.returncode) == ("0\ngoes on\n", 0)


def test_functions_at_exit_are_called_and_open_files_written(run_job):
    worker = run_job("goodbye")

    worker.process.terminate()

    assert worker.wait(END_SECONDS) == 0
    assert (worker.folder / "atexit").read_text() == "called"
    assert (worker.folder / "open").read_text() == "written"
    assert worker.said().endswith("worker stopped\n")


def test_worker_with_too_many_stuck_handlers_ends_though_they_hang_in_executors(
    start, runledger_pool
):
    worker = start()
    worker.until_said(READY)
    # More than the eight that may be.
    enqueue_jobs(runledger_pool, [JobEnqueue("stuck", {}) for _ in range(9)])
    worker.until_said("error: supervisor.task_exited_unexpectedly: ")

    assert worker.wait(END_SECONDS) == 1


STOPS = pytest.mark.parametrize(
    ("timeout", "signals"),
    [("0.2", [signal.SIGTERM]), ("600", [signal.SIGTERM, signal.SIGINT])],
)


@STOPS
def test_process_ends_though_its_main_thread_waits_for_a_handler(run_job, timeout, signals):
    worker = run_job("holds", "--shutdown-timeout", timeout)

    for number in signals:
        worker.process.send_signal(number)

    # A second signal leaves a second to handlers.
    assert worker.wait(1 + END_SECONDS) == 70


@STOPS
def test_worker_ends_though_its_log_waits_for_a_pipe_that_nobody_reads(
    start, runledger_pool, eventually, timeout, signals
):
    worker = start("--shutdown-timeout", timeout)
    worker.until_said(READY)
    worker.fill()
    enqueue_job(runledger_pool, JobEnqueue("fails", {}))
    # Logged after it is stored.
    eventually(lambda: is_stored(runledger_pool))

    for number in signals:
        worker.process.send_signal(number)

    assert worker.wait(1 + END_SECONDS) == 70


def is_stored(pool) -> bool:
    with pool.connection() as connection:
        sql = "SELECT count(*) FROM runledger.job_attempts WHERE finished_at IS NOT NULL"
        return connection.execute(sql).fetchone() == (1,)


def test_worker_that_begins_with_a_full_pipe_runs_and_ends(start, runledger_pool, eventually):
    worker = start(is_full=True)
    eventually(lambda: list_workers(runledger_pool) != [])
    enqueue_job(runledger_pool, JobEnqueue("goodbye", {}))
    eventually((worker.folder / "began").exists)

    worker.process.terminate()

    assert worker.wait(1 + END_SECONDS) == 0


def test_parent_of_processes_ends_though_it_waits_for_a_pipe_that_nobody_reads(start, eventually):
    worker = start("--processes", "2")
    worker.until_said(READY, times=2)
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children")
    worker.fill()
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    eventually(lambda: len(children.read_text().split()) == 1)

    worker.process.terminate()

    assert worker.wait(2 + END_SECONDS) == 0
