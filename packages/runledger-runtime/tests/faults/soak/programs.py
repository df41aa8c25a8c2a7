"""The processes of a soak: `python -m soak.programs` and one JSON object of settings."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from runledger_core import JobEnqueue, JobFailure, UnavailableError
from runledger_postgres import connect_pool, enqueue_jobs
from runledger_runtime import JobRegistry, JobsConfig, Supervisor

from .ledger import Ledger

JOB_TYPE = "soak.work"
AGAIN = "soak.again"


def produce(
    ledger: Ledger, *, dsn: str, name: str, jobs: int, per_second: float, seed: int
) -> None:
    """Enqueue until standard input ends, at least so many, and write down what is known of each.

    A third of the calls is keyed. An enqueue with an unknown outcome is repeated if it has a key,
    and never otherwise; one that was refused stored nothing and is always repeated.
    """
    chance = random.Random(seed)
    is_over = _at_end_of_input()
    began_at, first = time.monotonic(), 0
    with connect_pool(dsn, max_size=1, timeout_seconds=2) as pool:
        while first < jobs or not is_over.is_set():
            # Once all are there, a few more keep coming for as long as things break.
            last = first + (chance.randint(1, 30) if first < jobs else 1)
            tokens = [f"{name}-{number}" for number in range(first, last)]
            is_keyed = chance.random() < 1 / 3
            requests = [_request(token, chance, is_keyed=is_keyed) for token in tokens]
            while True:
                try:
                    ids = [str(job.id) for job in enqueue_jobs(pool, requests)]
                except UnavailableError as error:
                    if error.code != "db.outcome_unknown" or is_keyed:
                        # Nothing tells when the database is back; trying at once would spin.
                        time.sleep(0.05)
                        continue
                    ledger.write("unknown", tokens=tokens)
                else:
                    ledger.write("acknowledged", jobs=dict(zip(tokens, ids, strict=True)))
                break
            first = last
            due_at = began_at + first / per_second
            is_over.wait(max(0.0, due_at - time.monotonic()) if first < jobs else 0.1)


def _request(token: str, chance: random.Random, *, is_keyed: bool) -> JobEnqueue:
    # Most are short, some outlive several beats of the lease, a few the whole of it.
    milliseconds = chance.choices([0, 5, 1_200, 3_500], [60, 37, 2, 1])[0]
    failures = chance.choices([0, 1, 2], [90, 8, 2])[0]
    return JobEnqueue(
        JOB_TYPE,
        {"token": token, "milliseconds": milliseconds, "failures": failures},
        idempotency_key=token if is_keyed else None,
    )


def run_engine(ledger: Ledger, *, dsn: str, name: str, role: str, settings: dict[str, Any]) -> None:
    """Run a worker or a reaper until standard input ends; each line there asks for its health."""

    def work(context: Any, payload: Any) -> None:
        lease = context._execution.job.lease
        run = {"job": str(lease.job_id), "claim": lease.claim_number, "by": lease.worker_id}
        ledger.write("began", **run)
        if context.wait(payload["milliseconds"] / 1000):
            ledger.write("left", **run)
            context.raise_if_cancelled()
        if context.attempt <= payload["failures"]:
            ledger.write("failed", **run)
            raise JobFailure.retryable(AGAIN, "as asked for")
        ledger.write("ended", **run)

    registry = JobRegistry()
    for job_type in (JOB_TYPE, last_type(name)):
        registry.register_function(job_type, work)
        registry.register_retry_delay_override(job_type, AGAIN, 50)
    with connect_pool(dsn, max_size=2) as pool:
        builder = Supervisor.builder(pool, JobsConfig(name, **settings)).with_registry(registry)
        # The scheduler sits with the reaper: neither of them runs handlers.
        if role == "worker":
            builder.disable_scheduler().disable_reaper()
        else:
            builder.disable_worker()
        supervisor = builder.build()
        supervisor.run_until_shutdown(lambda: _read_input(lambda: _answer(supervisor)), timeout=20)


def last_type(name: str) -> str:
    """Return the type of jobs that only the worker of this name runs."""
    return f"soak.last.{name}"


def _answer(supervisor: Supervisor) -> None:
    health = {
        "worker_id": supervisor.worker_id,
        "loops": [asdict(loop) for loop in supervisor.health().loops],
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }
    print(json.dumps(health, default=str), flush=True)  # noqa: T201  # the answer


def _at_end_of_input() -> threading.Event:
    is_over = threading.Event()

    def wait() -> None:
        _read_input(lambda: None)
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    return is_over


def _read_input(on_line: Callable[[], object]) -> None:
    """Do something for each line of standard input; return at its end."""
    # Unbuffered: a thread that waits in a buffered read holds a lock that the exit needs.
    with os.fdopen(os.dup(0), "rb", buffering=0) as lines:
        while lines.readline():
            on_line()


PROGRAMS: dict[str, Callable[..., None]] = {
    "producer": produce,
    "worker": run_engine,
    "reaper": run_engine,
}


def main() -> None:
    """Run one program."""
    settings = json.loads(sys.argv[1])
    program = PROGRAMS[settings.pop("program")]
    program(Ledger(settings.pop("ledger")), **settings)


if __name__ == "__main__":
    main()
