"""A full disk: nothing is lost, little is logged, and work goes on when there is room again."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from _faults import SUCCEEDED, Outside, define, eventually, passes, supervised
from psycopg import sql

from runledger_core import JobCompletion, JobEnqueue
from runledger_postgres import connect_pool, enqueue_job, enqueue_jobs
from runledger_postgres.errors import QueryError
from runledger_test_support import DatabaseServer, TemporaryDatabase
from runledger_test_support.databases import temporary_database
from runledger_test_support.server import ServerOrigin

DISK_BYTES = 64 << 20
JOBS = 4


@pytest.fixture
def small_disk(runledger_server: DatabaseServer) -> Iterator[Path]:
    """A file system of its own, with room for a database, that the server may use."""
    if runledger_server.origin is not ServerOrigin.BINARIES or os.geteuid() != 0:
        pytest.skip("a disk to fill needs root and a server of this machine")
    with psycopg.connect(runledger_server.admin_dsn) as admin:
        (data,) = admin.execute("SHOW data_directory").fetchone() or ("",)
    owner = Path(data).stat()
    with tempfile.TemporaryDirectory(prefix="runledger-disk-") as name:
        Path(name).chmod(0o755)
        disk = Path(name) / "disk"
        disk.mkdir()
        options = f"size={DISK_BYTES},mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        command = ["mount", "-t", "tmpfs", "-o", options, "runledger-disk", str(disk)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"no disk to fill: {mounted.stderr.strip()}")
        try:
            yield disk
        finally:
            command = ["umount", str(disk)]
            subprocess.run(command, check=True)


@pytest.fixture
def database(
    runledger_server: DatabaseServer, runledger_template: str, small_disk: Path
) -> Iterator[TemporaryDatabase]:
    """A database whose tables are on the small disk; the server's log of writes is elsewhere."""
    space = sql.Identifier(f"small_disk_{os.getpid()}")
    place = small_disk / "space"
    place.mkdir(mode=0o700)
    os.chown(place, small_disk.stat().st_uid, small_disk.stat().st_gid)
    with psycopg.connect(runledger_server.admin_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(space, str(place)))
        try:
            with temporary_database(runledger_server, template=runledger_template) as made:
                move = sql.SQL("ALTER DATABASE {} SET TABLESPACE {}")
                admin.execute(move.format(sql.Identifier(made.name), space))
                yield made
        finally:
            admin.execute(sql.SQL("DROP TABLESPACE {}").format(space))


def fill(disk: Path) -> Path:
    """Take what is left of the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    return ballast


def incompressible(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode()


@pytest.mark.soak
def test_full_disk_is_waited_for_and_nothing_is_lost(
    database: TemporaryDatabase, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = Outside(database.connect(autocommit=True))
    began, end = threading.Semaphore(0), threading.Event()
    outputs = [incompressible(150_000) for _ in range(JOBS)]
    runs: list[int] = []

    def produce(_context: Any, payload: Any) -> JobCompletion:
        runs.append(payload["n"])
        began.release()
        end.wait(60)
        return JobCompletion(output=outputs[payload["n"]])

    handlers = {"jobs.large": produce, "jobs.small": lambda *_: None}
    with (
        connect_pool(database.dsn) as pool,
        supervised(pool, handlers, lease_ttl_seconds=30) as running,
    ):
        define(pool, *handlers)
        enqueue_jobs(pool, [JobEnqueue("jobs.large", {"n": n}) for n in range(JOBS)])
        for _ in range(JOBS):
            assert began.acquire(timeout=30)

        ballast = fill(small_disk)
        caplog.set_level(logging.INFO, "runledger_runtime")
        end.set()
        eventually(lambda: running.health().loops[0].consecutive_errors > 3)
        with pytest.raises(QueryError) as refused:
            enqueue_job(pool, JobEnqueue("jobs.small", incompressible(200_000)))
        health = running.health()
        logged = len(caplog.records)
        kept = outside.value("SELECT count(*) FROM runledger.job_queue WHERE status = 'LEASED'")
        ballast.unlink()

        eventually(lambda: outside.value(SUCCEEDED) == JOBS)
        enqueue_job(pool, JobEnqueue("jobs.small", incompressible(200_000)))
        eventually(lambda: outside.value(SUCCEEDED) == JOBS + 1)
        eventually(lambda: all(passes(running).values()))

    assert (refused.value.code, refused.value.sqlstate) == ("db.out_of_resources", "53100")
    assert refused.value.is_transient
    assert str(health.loops[0].last_error).startswith("db.out_of_resources: ")
    assert kept == JOBS
    assert logged <= 4, [record.getMessage() for record in caplog.records]
    assert sorted(runs) == list(range(JOBS))
    stored = outside.column(
        "SELECT output #>> '{}' FROM runledger.job_queue WHERE job_type = 'jobs.large'"
        " ORDER BY payload -> 'n'"
    )
    assert stored == outputs
    assert outside.value("SELECT max(attempt) FROM runledger.job_queue") == 1
