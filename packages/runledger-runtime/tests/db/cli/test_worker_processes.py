import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runledger_core import JobEnqueue, JobStatus, Scope
from runledger_postgres.jobs import enqueue_job, enqueue_jobs, get_job
from runledger_postgres.workers import list_workers
from runledger_runtime.cli._processes import WorkerProcesses

APP = """
import atexit
import os
import subprocess
import time
from pathlib import Path
from runledger_core import JobEnqueue, JobFailure
from runledger_postgres import enqueue_job
from runledger_runtime.catalog import JobCatalog

catalog = JobCatalog()

@catalog.job("pid")
def pid(context, payload):
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

@catalog.job("meet")
def meet(context, payload):
    pid(context, payload)
    # The other job has to run in the other process.
    while len(set(open("pids").read().split())) < 2:
        context.raise_if_cancelled()
        context.wait(0.02)

@catalog.job("crash", max_attempts=1)
def crash(context, payload):
    os._exit(9)

@catalog.job("stdin")
def read_stdin(context, payload):
    subprocess.run(["cat"], timeout=20, check=True)
    pid(context, payload)

class Order:
    job_type = "order"

    def execute(self, context, payload):
        raise JobFailure.terminal("order.refused", "refused")

    def on_dead_letter(self, context, payload, info):
        time.sleep(1)
        with context.connection() as connection:
            enqueue_job(connection, JobEnqueue("pid", {}))

catalog.job("order", Order())

@catalog.job("slow")
def slow(context, payload):
    pid(context, payload)
    time.sleep(payload["seconds"])

def wait_to_go():
    while not Path("go").exists():
        time.sleep(0.01)

@catalog.job("hold")
def hold(context, payload):
    pid(context, payload)
    while not Path("go").exists():
        context.raise_if_cancelled()
        context.wait(0.01)

def leave():
    Path("leaving").touch()
    wait_to_go()
    Path("left").touch()

@catalog.job("leave")
def leave_later(context, payload):
    atexit.register(leave)
    pid(context, payload)
"""

Start = Callable[..., "subprocess.Popen[str]"]


class Parent:
    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.lines: list[str] = []

    def until(self, pattern: str, *, times: int = 1) -> None:
        assert self.process.stderr is not None
        seen = 0
        for line in self.process.stderr:
            self.lines.append(line)
            seen += bool(re.search(pattern, line))
            if seen == times:
                return
        pytest.fail(f"never said {pattern}: {self.lines}")

    def end(self, *, seconds: float = 30) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=seconds)
        return self.process.returncode, "".join(self.lines) + stderr

    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def children(self) -> list[int]:
        file = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in file.read_text().split()]


@pytest.fixture
def start(runledger_database, tmp_path) -> Iterator[Callable[..., Parent]]:
    (tmp_path / "shop.py").write_text(APP)
    parents: list[Parent] = []

    def start_parent(*arguments: str, processes: int = 2) -> Parent:
        command = [sys.executable, "-m", "runledger_runtime.cli", "worker", "--app", "shop:catalog"]
        process = subprocess.Popen(
            [*command, "--processes", str(processes), *arguments],
            cwd=tmp_path,
            env=os.environ | {"DATABASE_URL": runledger_database.dsn},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        parent = Parent(process, tmp_path)
        parents.append(parent)
        return parent

    yield start_parent
    for parent in parents:
        with suppress(ProcessLookupError):
            parent.process.kill()
        parent.process.communicate()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


READY = "end it with Ctrl-C or SIGTERM"


def test_processes_share_the_work_and_stop_together(start, runledger_pool):
    parent = start("--concurrency", "1")
    parent.until(READY, times=2)
    enqueue_jobs(runledger_pool, [JobEnqueue("meet", {})] * 2)
    until(lambda: len(parent.pids()) == 2)
    children = parent.children()

    parent.process.send_signal(signal.SIGTERM)
    code, stderr = parent.end()

    assert code == 0
    assert set(parent.pids()) == set(children)
    assert stderr.count("worker stopped") == 2
    assert list_workers(runledger_pool) == []


def test_process_that_dies_is_started_again(start, runledger_pool):
    parent = start()
    parent.until(READY, times=2)
    before = set(parent.children())

    os.kill(min(before), signal.SIGKILL)
    parent.until("was ended by SIGKILL; another starts in 1 s")
    parent.until(READY)
    after = set(parent.children())
    parent.process.terminate()

    assert parent.end()[0] == 0
    assert len(after) == 2
    assert len(after & before) == 1


def test_pause_before_a_restart_grows_while_a_process_keeps_dying(start, runledger_pool):
    parent = start("--concurrency", "1", processes=2)
    parent.until(READY, times=2)
    (survivor, victim) = sorted(parent.children())
    os.kill(victim, signal.SIGKILL)
    parent.until("another starts in 1 s")
    parent.until(READY)
    (victim,) = set(parent.children()) - {survivor}
    os.kill(victim, signal.SIGKILL)

    parent.until("another starts in 2 s")
    parent.process.terminate()

    assert parent.end()[0] == 0


def test_second_signal_ends_running_handlers_with_code_70(start, runledger_pool):
    parent = start("--concurrency", "1")
    parent.until(READY, times=2)
    job = enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 600}))
    until(parent.pids)

    parent.process.send_signal(signal.SIGINT)
    parent.until("worker stopped")
    parent.process.send_signal(signal.SIGINT)

    assert parent.end()[0] == 70
    stored = get_job(runledger_pool, job.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.status is JobStatus.LEASED


@pytest.fixture
def holding(start, runledger_pool) -> Iterator[Parent]:
    """A parent of three workers, two of which hold a job each until the file `go` exists."""
    parent = start("--concurrency", "1", "--shutdown-timeout", "600", processes=3)
    parent.until(READY, times=3)
    enqueue_jobs(runledger_pool, [JobEnqueue("hold", {})] * 2)
    until(lambda: len(parent.pids()) == 2)
    yield parent
    (parent.folder / "go").touch()


def statuses(pool) -> list[tuple[str, int]]:
    with pool.connection() as connection:
        sql = "SELECT status::text, attempt FROM runledger.job_queue"
        return connection.execute(sql).fetchall()


def signal_each(pids: Sequence[int]) -> None:
    """Send SIGTERM to each process of a service, as a service manager does."""
    for pid in pids:
        # A worker may have ended already: by what its parent has passed on.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("order", [1, -1])
def test_signal_to_each_process_of_a_service_is_one_stop(holding, runledger_pool, order):
    signal_each([holding.process.pid, *holding.pids()][::order])
    # The third worker hears of it by the parent only, and so the others have heard by then, too.
    holding.until("worker stopped")
    (holding.folder / "go").touch()
    code, stderr = holding.end()

    assert code == 0
    assert stderr.count("worker stopped") == 3
    assert statuses(runledger_pool) == [("SUCCEEDED", 1)] * 2


def test_second_signal_to_each_process_of_a_service_aborts_the_stop(holding, runledger_pool):
    service = [holding.process.pid, *holding.pids()]
    signal_each(service)
    holding.until("worker stopped")

    signal_each(service)
    code, stderr = holding.end()

    assert code == 70
    assert stderr.count("error: supervisor.shutdown_aborted: ") == 2
    assert statuses(runledger_pool) == [("PENDING", 0)] * 2


def test_second_signal_to_one_worker_does_not_interrupt_its_exit(start, runledger_pool):
    parent = start()
    parent.until(READY, times=2)
    enqueue_job(runledger_pool, JobEnqueue("leave", {}))
    until(parent.pids)
    (worker,) = parent.pids()
    os.kill(worker, signal.SIGTERM)
    until((parent.folder / "leaving").exists)

    os.kill(worker, signal.SIGTERM)
    (parent.folder / "go").touch()
    parent.until("another starts in 1 s")

    assert (parent.folder / "left").exists()
    assert "ended with code 0" in parent.lines[-1]


def test_workers_stop_when_their_parent_is_killed(start, runledger_pool):
    parent = start()
    parent.until(READY, times=2)
    until(lambda: len(list_workers(runledger_pool)) == 2)

    parent.process.kill()

    until(lambda: list_workers(runledger_pool) == [])


@pytest.mark.parametrize("processes", [1, 3])
def test_burst_ends_when_nothing_is_due(start, runledger_pool, processes):
    assert start("--burst", processes=1).end()[0] == 0
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    enqueue_jobs(runledger_pool, [JobEnqueue("pid", {}) for _ in range(30)])
    later = enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 600}, next_run_at=tomorrow))

    parent = start("--burst", processes=processes)

    assert parent.end()[0] == 0
    assert len(parent.pids()) == 30
    stored = get_job(runledger_pool, later.id, scope=Scope.ADMIN)
    assert stored is not None
    assert stored.status is JobStatus.PENDING


def test_burst_waits_for_dead_letter_hooks_and_does_what_they_enqueue(start, runledger_pool):
    assert start("--burst", processes=1).end()[0] == 0
    enqueue_job(runledger_pool, JobEnqueue("order", {}))

    parent = start("--burst", processes=1)

    assert parent.end()[0] == 0
    assert len(parent.pids()) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_burst_ends_with_code_75_though_jobs_are_left_whose_claim_is_refused(
    start, runledger_pool, refuse_updates, processes
):
    assert start("--burst", processes=1).end()[0] == 0
    refuse_updates("job_queue", "NEW.status = 'LEASED' AND NEW.job_type = 'slow'")
    enqueue_jobs(runledger_pool, [JobEnqueue("slow", {}), JobEnqueue("pid", {})] * 3)

    parent = start("--burst", processes=processes)
    code, stderr = parent.end(seconds=15)

    assert code == 75
    assert len(parent.pids()) == 3
    assert stderr.count("warning: jobs are left that are due: 3; a trigger or") == processes


@pytest.mark.parametrize(
    ("number", "end"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGTERM, "ended with code 70")],
)
def test_burst_ends_with_code_70_though_a_worker_that_left_its_job_was_replaced(
    start, runledger_pool, number, end
):
    assert start("--burst", processes=1).end()[0] == 0
    enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 600}))
    parent = start("--burst", "--shutdown-timeout", "0.1")
    until(parent.pids)
    (worker,) = parent.pids()

    os.kill(worker, number)

    parent.until(f"{end}; another starts in 1 s")
    assert parent.end()[0] == 70
    assert statuses(runledger_pool) == [("LEASED", 1)]


def test_program_that_a_handler_runs_finds_stdin_empty(start, runledger_pool):
    parent = start()
    parent.until(READY, times=2)

    enqueue_job(runledger_pool, JobEnqueue("stdin", {}))

    until(parent.pids)


def test_stop_before_the_processes_have_begun_is_no_failure(start):
    parent = start()
    until(lambda: len(parent.children()) == 2)

    parent.process.send_signal(signal.SIGTERM)

    assert parent.end()[0] == 0


def test_process_that_the_system_has_no_room_for_is_tried_again(monkeypatch, capfd):
    popen, tries = subprocess.Popen, []

    def refuse_once(*arguments, **options):
        tries.append(arguments)
        if len(tries) == 2:
            raise BlockingIOError
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", refuse_once)
    monkeypatch.setattr("runledger_runtime.cli._processes._FIRST_PAUSE_SECONDS", 0.01)
    workers = WorkerProcesses(
        1,
        lambda number: ["--help"] if len(tries) else ["no-such-command"],
        environment={},
        shutdown_timeout=1,
        restarts_success=False,
    )

    assert workers.run() == 0
    assert len(tries) == 3
    assert "worker process 1 could not start (BlockingIOError)" in capfd.readouterr().err


def test_death_of_a_process_is_seen_though_the_system_was_told_to_forget_it(monkeypatch, capfd):
    monkeypatch.setattr("runledger_runtime.cli._processes._FIRST_PAUSE_SECONDS", 0.01)
    arguments = iter([["no-such-command"], ["--help"]])
    workers = WorkerProcesses(
        1,
        lambda number: next(arguments),
        environment={},
        shutdown_timeout=1,
        restarts_success=False,
    )
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert workers.run() == 0
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, previous)

    assert "worker process 1 ended with code 2" in capfd.readouterr().err


def test_taken_port_of_one_process_is_refused_before_any_starts(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code, stderr = start("--health-port", str(port)).end()

    assert code == 1
    assert stderr.startswith(f"error: health.port_unavailable: cannot listen on port {port} of")
    assert READY not in stderr
