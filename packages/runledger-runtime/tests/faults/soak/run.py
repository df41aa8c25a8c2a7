"""One soak from start to account; the test breaks things in between.

Start the load, break something, let everything drain, count::

    with start_soak(jobs=50_000, seconds=60) as soak:
        soak.repeat(soak.kill_a_worker, times=60)
        report = soak.end()
    report.check()
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, upsert_job_definition

from .ledger import Ledger
from .lookout import Lookout, Sightings
from .programs import JOB_TYPE, last_type
from .referee import Account, Referee

LEASE_TTL_SECONDS = 3
REAPER_INTERVAL_SECONDS = 1
# How long a row may be leased without a sign of life, and when that counts again after an outage.
LONGEST_LEASE_SECONDS = LEASE_TTL_SECONDS + REAPER_INTERVAL_SECONDS + 1
GRACE_SECONDS = LEASE_TTL_SECONDS + REAPER_INTERVAL_SECONDS + 3
SETTINGS = {
    "lease_ttl_seconds": LEASE_TTL_SECONDS,
    "reaper_interval_seconds": REAPER_INTERVAL_SECONDS,
    "max_global_concurrency": 32,
    "poll_interval_ms": 250,
}
LOOPS = {"worker": {"worker"}, "reaper": {"reaper", "scheduler"}}
WORKER_THREADS = {"runledger-lease-keeper", "runledger-timekeeper", "runledger-listener"}
PATIENCE_SECONDS = 60
RECOVERY_SECONDS = 10

# A retry after a lost lease waits ten seconds and more; nothing is proved by waiting for it.
MAKE_WAITING_DUE = """
UPDATE runledger.job_queue SET next_run_at = clock_timestamp(), is_ready = true
WHERE status = 'PENDING' AND NOT is_ready
"""
COUNT_OPEN = "SELECT count(*) FROM runledger.job_queue WHERE status IN ('PENDING', 'LEASED')"
COUNT_SUCCEEDED = "SELECT count(*) FROM runledger.job_queue WHERE status = 'SUCCEEDED'"
COUNT_SEEN_WORKERS = """
SELECT count(*) FROM runledger.job_workers
WHERE worker_id = ANY (%s) AND last_seen_at > clock_timestamp() - make_interval(secs => %s)
"""
TERMINATE_ENGINE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'runledger%%'
"""


@dataclass
class Program:
    """A running program and how to start it again."""

    settings: dict[str, Any]
    process: subprocess.Popen[str]
    ledger: Path

    @property
    def name(self) -> str:
        return self.settings["name"]

    @property
    def is_at_work(self) -> bool:
        """Whether it has written anything down."""
        return self.ledger.exists() and self.ledger.stat().st_size > 0

    def ask(self) -> dict[str, Any]:
        """Return what `Supervisor.health` says in that process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("health\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> int:
        """Let it stop by itself and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End it with kill -9, if it still runs, and forget it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Report:
    """What the referee and the lookout found."""

    account: Account
    seen: Sightings
    _: KW_ONLY
    seed: int
    faults: int
    folder: Path
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        account, seen = self.account, self.seen
        return (
            f"{account.jobs} jobs, {account.executions} executions, {self.faults} faults;"
            f" {account.duplicates} duplicates, {account.unknown} unknown enqueues,"
            f" {account.vanished} vanished; longest lease {seen.longest_lease:.2f} s"
            f" in {seen.looks} looks, outages {[round(one, 1) for one in seen.outages]};"
            f" seed {self.seed}, ledgers and logs in {self.folder}"
        )

    def check(self) -> None:
        """Fail if anything is there that must not be."""
        print(self)  # noqa: T201  # pytest shows it with a failure, and with -s
        offences = {kind: (len(all_), all_[:5]) for kind, all_ in self.account.offences.items()}
        assert offences == {}, f"{offences}\n{self}"
        assert self.complaints == [], f"{self.complaints}\n{self}"
        assert self.seen.longest_lease <= LONGEST_LEASE_SECONDS, str(self)
        assert self.seen.longest_ahead <= LEASE_TTL_SECONDS, str(self)


class Soak:
    """The processes of one soak, and what a test may do to them.

    Args:
        dsn: The database, as the lookout and the referee reach it.
        folder: For ledgers and logs.
        client_dsn: As the processes reach it, if that is another way.
        jobs: How many to enqueue at least; producers go on until the test calls `end`.
        seconds: How long they may take for that many.
    """

    def __init__(
        self,
        dsn: str,
        folder: Path,
        *,
        seed: int,
        jobs: int,
        seconds: int,
        producers: int = 1,
        client_dsn: str | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = 0
        # What was acknowledged before this time may be gone, and why is the test's to know.
        self.durable_from = 0.0
        self._dsn, self._client_dsn, self._folder, self._seed = dsn, client_dsn or dsn, folder, seed
        self._ledger = Ledger(folder / "test.ledger")
        self._started = 0
        self._pause = threading.Event()
        self._lookout = Lookout(dsn, grace_seconds=GRACE_SECONDS)
        names = ["worker-1", "worker-2"]
        with connect_pool(dsn, max_size=1) as pool:
            for job_type in (JOB_TYPE, *(last_type(name) for name in names)):
                # Never given up: a job that cannot be run to its end shall show.
                upsert_job_definition(pool, JobDefinitionSpec(job_type, max_attempts=1_000))
            with pool.connection() as connection:
                # Not even a server that loses commits shall lose the schema.
                connection.autocommit = True
                connection.execute("CHECKPOINT")
        self.reaper = self._start("reaper", name="reaper", role="reaper", settings=SETTINGS)
        self.workers = [
            self._start("worker", name=name, role="worker", settings=SETTINGS) for name in names
        ]
        self._producers = [
            self._start(
                "producer",
                name=f"producer-{number}",
                jobs=jobs // producers,
                per_second=jobs / seconds / producers,
                seed=self.chance.randrange(2**32),
            )
            for number in range(1, producers + 1)
        ]
        self._lookout.start()

    def __enter__(self) -> Self:
        # A fault among processes that only just start would prove little.
        with self._waiting("not everybody comes to work") as wait:
            while not all(program.is_at_work for program in (*self._producers, *self.workers)):
                wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lookout.finish()
        for program in (*self._producers, *self.workers, self.reaper):
            program.kill()

    def repeat(self, fault: Callable[[], object], *, times: int, every_seconds: float = 1) -> None:
        """Break something now and then; the load goes on meanwhile."""
        for _ in range(times):
            self._pause.wait(every_seconds)
            fault()
            self.faults += 1

    def kill_a_worker(self) -> None:
        """End one of the workers with kill -9 and start another in its place."""
        worker = self._working_worker()
        worker.kill()
        self.workers[self.workers.index(worker)] = self._start(**worker.settings)

    def freeze_a_worker(self, seconds: float) -> None:
        """Stop one of the workers with SIGSTOP; when it goes on, the other has its jobs."""
        process = self._working_worker().process
        process.send_signal(signal.SIGSTOP)
        self._pause.wait(seconds - 1)
        with psycopg.connect(self._dsn, autocommit=True, application_name="soak") as connection:
            connection.execute(MAKE_WAITING_DUE)
        self._pause.wait(1)
        process.send_signal(signal.SIGCONT)

    def terminate_backends(self) -> None:
        """End every server process of engines, handlers and producers."""
        with psycopg.connect(self._dsn, application_name="soak") as connection:
            connection.execute(TERMINATE_ENGINE)

    def end(self, *, only_connections_broke: bool = False) -> Report:
        """Let everything drain and stop, and count."""
        complaints = [
            f"{producer.name} ended with {code}"
            for producer in self._producers
            if (code := producer.end()) != 0
        ]
        with psycopg.connect(self._dsn, autocommit=True, application_name="soak") as database:
            self._drain(database)
            self._run_last_jobs(database)
            complaints += self._wait_until_well(database)
            for program in (*self.workers, self.reaper):
                if (code := program.end()) != 0:
                    complaints.append(f"{program.name} ended with {code}")
            seen = self._lookout.finish()
            referee = Referee(database, self._folder, durable_from=self.durable_from)
            account = referee.judge(only_connections_broke=only_connections_broke)
        return Report(
            account,
            seen,
            seed=self._seed,
            faults=self.faults,
            folder=self._folder,
            complaints=complaints,
        )

    def _working_worker(self) -> Program:
        """Return one of the workers; one that has just been started first has to do something."""
        with self._waiting("no worker comes to work") as wait:
            while not (working := [one for one in self.workers if one.is_at_work]):
                wait()
        return self.chance.choice(working)

    @contextmanager
    def _waiting(self, complaint: str) -> Iterator[Callable[[], None]]:
        """Give a wait for the next look, which fails when that has gone on for too long."""
        patience = time.monotonic() + PATIENCE_SECONDS

        def wait() -> None:
            assert time.monotonic() < patience, f"{complaint}; seed {self._seed}"
            self._pause.wait(0.02)

        yield wait

    def _start(self, program: str, **settings: Any) -> Program:
        self._started += 1
        path = self._folder / f"{self._started:03}-{settings['name']}"
        told = settings | {
            "program": program,
            "ledger": f"{path}.ledger",
            "dsn": self._client_dsn,
        }
        with path.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "soak.programs", json.dumps(told)],
                cwd=Path(__file__).parent.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return Program({"program": program, **settings}, process, Path(told["ledger"]))

    def _drain(self, database: psycopg.Connection) -> None:
        least, patience = -1, 0.0
        while left := _value(database, COUNT_OPEN):
            if least < 0 or left < least:
                least, patience = left, time.monotonic() + PATIENCE_SECONDS
            assert time.monotonic() < patience, f"{left} jobs do not end; seed {self._seed}"
            database.execute(MAKE_WAITING_DUE)
            self._pause.wait(0.1)

    def _run_last_jobs(self, database: psycopg.Connection) -> None:
        done = _value(database, COUNT_SUCCEEDED)
        for worker in self.workers:
            token = f"last of {worker.name}"
            payload = {"token": token, "milliseconds": 0, "failures": 0}
            job = enqueue_job(database, JobEnqueue(last_type(worker.name), payload))
            self._ledger.write("acknowledged", jobs={token: str(job.id)})
        with self._waiting("a worker runs no more") as wait:
            while _value(database, COUNT_SUCCEEDED) < done + len(self.workers):
                wait()

    def _wait_until_well(self, database: psycopg.Connection) -> list[str]:
        """Return what is still not well after a while; a last fault may only just have hit."""
        patience = time.monotonic() + RECOVERY_SECONDS
        while (complaints := self._examine(database)) and time.monotonic() < patience:
            self._pause.wait(0.2)
        return complaints

    def _examine(self, database: psycopg.Connection) -> list[str]:
        """Return what is not well with the loops and threads of each process."""
        complaints, worker_ids = list[str](), list[str]()
        for program in (*self.workers, self.reaper):
            health = program.ask()
            loops = {loop["name"]: loop for loop in health["loops"]}
            role = program.settings["role"]
            if role == "worker":
                worker_ids.append(health["worker_id"])
                missing = WORKER_THREADS - set(health["threads"])
                complaints += [f"{program.name} has no thread {name}" for name in missing]
            if set(loops) != LOOPS[role] or any(
                loop["state"] != "RUNNING" or loop["consecutive_errors"] or loop["unhealthy_reason"]
                for loop in loops.values()
            ):
                complaints.append(f"{program.name} is not well: {loops}")
        seen = _value(database, COUNT_SEEN_WORKERS, worker_ids, LEASE_TTL_SECONDS)
        if seen != len(worker_ids):
            complaints.append(f"{seen} of {len(worker_ids)} lease keepers gave a sign of life")
        return complaints


def _value(database: psycopg.Connection, query: Any, *parameters: object) -> int:
    row = database.execute(query, parameters).fetchone()
    assert row is not None
    return row[0]
