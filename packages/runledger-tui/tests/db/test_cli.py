from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runledger_core import JobEnqueue, WorkflowDagBuilder
from runledger_postgres import connect_pool, enqueue_job
from runledger_postgres.embedded import EmbeddedServer
from runledger_postgres.lifecycle import claim_jobs
from runledger_postgres.migrations import migrate
from runledger_postgres.workers import WorkerReport, record_worker
from runledger_postgres.workflows import enqueue_workflow_run
from runledger_test_support import age_worker
from runledger_tui import fetch
from runledger_tui.cli import main

ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")
HOSTILE = "\x1b]52;c;eA==\x07\x1b[2J\r\x7f\x9b\u202e[red]"


@pytest.fixture
def pool(runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
    return runledger_pool


@pytest.fixture
def reader_dsn(runledger_database) -> Iterator[str]:
    """The database for a role that may only read."""
    name, password = f"reader_{secrets.token_hex(4)}", secrets.token_hex(8)
    role = sql.Identifier(name)
    with psycopg.connect(runledger_database.dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password))
        )
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA runledger TO {}").format(role))
        connection.execute(
            sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA runledger TO {}").format(role)
        )
        yield make_conninfo(runledger_database.dsn, user=name, password=password)
        connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def place() -> Iterator[Path]:
    # pytest's tmp_path lies under a folder that only its owner can enter.
    folder = Path(tempfile.mkdtemp(prefix="runledger-tui-"))
    folder.chmod(0o711)
    yield folder
    EmbeddedServer(folder / "server").stop()
    shutil.rmtree(folder)


def report(worker_id: str = "worker-1", **changes) -> WorkerReport:
    values = {"pid": 1, "version": "0.4.0", "job_types": ["test.job"], "concurrency": 4}
    return WorkerReport(worker_id, changes.pop("host", "host-a"), **(values | changes))


def seed(pool) -> None:
    for organization_id in (ORGANIZATION, None, None):
        enqueue_job(pool, JobEnqueue("test.job", {}, organization_id=organization_id))
    claim_jobs(pool, worker_id="worker-1", limit=1, lease_ttl_seconds=60, job_types=["test.job"])
    record_worker(pool, report())


def snapshot(capsys, dsn: str, *arguments: str) -> dict:
    assert main(["--once", "--json", "--database-url", dsn, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def failure(capsys, dsn: str, *arguments: str) -> str:
    assert main(["--once", "--database-url", dsn, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_snapshot_of_an_empty_queue(capsys, runledger_database):
    shown = snapshot(capsys, runledger_database.dsn)

    assert {status: count["count"] for status, count in shown["jobs"].items()} == {
        "PENDING": 0,
        "LEASED": 0,
        "SUCCEEDED": 0,
        "DEAD_LETTERED": 0,
        "CANCELED": 0,
    }
    assert {status: count["count"] for status, count in shown["workflow_runs"].items()} == {
        "RUNNING": 0,
        "WAITING_FOR_EXTERNAL": 0,
        "SUCCEEDED": 0,
        "COMPLETED_WITH_ERRORS": 0,
        "CANCELED": 0,
    }
    assert (shown["oldest_waiting"], shown["workers"]) == ([], [])


def test_snapshot_counts_jobs_waits_and_workers(capsys, pool, runledger_database):
    seed(pool)

    shown = snapshot(capsys, runledger_database.dsn)

    assert shown["jobs"]["PENDING"] == {"count": 2, "is_exact": True}
    assert shown["jobs"]["LEASED"] == {"count": 1, "is_exact": True}
    assert [one["job_type"] for one in shown["oldest_waiting"]] == ["test.job"]
    assert [(one["worker_id"], one["is_live"]) for one in shown["workers"]] == [("worker-1", True)]


def test_snapshot_counts_workflow_runs_of_the_scope(capsys, pool, runledger_database):
    for organization_id in (ORGANIZATION, None):
        builder = WorkflowDagBuilder("test.workflow", {}).external("approval", {})
        if organization_id is not None:
            builder = builder.organization_id(organization_id)
        enqueue_workflow_run(pool, builder.build())

    all_runs = snapshot(capsys, runledger_database.dsn)["workflow_runs"]
    theirs = snapshot(capsys, runledger_database.dsn, "--org", str(ORGANIZATION))["workflow_runs"]

    assert all_runs["WAITING_FOR_EXTERNAL"] == {"count": 2, "is_exact": True}
    assert theirs["WAITING_FOR_EXTERNAL"] == {"count": 1, "is_exact": True}


def test_snapshot_for_people_names_the_same(capsys, pool, runledger_database):
    seed(pool)

    assert main(["--once", "--database-url", runledger_database.dsn]) == 0

    shown = capsys.readouterr().out
    assert "Workers: 1 live, 0 silent" in shown
    assert "test.job" in shown


def test_organization_limits_the_jobs(capsys, pool, runledger_database):
    enqueue_job(pool, JobEnqueue("test.job", {}))

    shown = snapshot(capsys, runledger_database.dsn, "--org", str(ORGANIZATION))

    assert shown["organization_id"] == str(ORGANIZATION)
    assert shown["jobs"]["PENDING"]["count"] == 0
    assert shown["oldest_waiting"] == []


def test_worker_that_is_silent_is_not_live(capsys, pool, runledger_database):
    record_worker(pool, report())
    age_worker(pool, "worker-1", 180)

    (worker,) = snapshot(capsys, runledger_database.dsn)["workers"]

    assert worker["is_live"] is False
    assert worker["seconds_since_seen"] >= 180


def test_role_that_may_only_select_is_enough(capsys, pool, reader_dsn):
    seed(pool)

    assert snapshot(capsys, reader_dsn)["jobs"]["LEASED"]["count"] == 1


def test_role_without_rights_is_told_so(capsys, pool, reader_dsn, runledger_database):
    with psycopg.connect(runledger_database.dsn, autocommit=True) as connection:
        connection.execute("REVOKE ALL ON runledger.job_workers FROM PUBLIC")
        role = conninfo_to_dict(reader_dsn)["user"]
        revoke = sql.SQL("REVOKE ALL ON runledger.job_workers FROM {}")
        connection.execute(revoke.format(sql.Identifier(str(role))))

    assert failure(capsys, reader_dsn) == (
        "runledger-tui: db.permission_denied: the database role may not do this\n"
    )


def test_hostile_text_reaches_no_terminal(pool, runledger_database):
    with pool.connection() as connection:
        connection.execute(
            "INSERT INTO runledger.job_definitions (job_type) VALUES (%s)", [HOSTILE]
        )
    enqueue_job(pool, JobEnqueue(HOSTILE, {}))
    record_worker(pool, report(HOSTILE, host=HOSTILE, version=HOSTILE, job_types=[HOSTILE]))

    for extra in ([], ["--json"]):
        done = subprocess.run(  # our own interpreter
            [sys.executable, "-m", "runledger_tui", "--once", *extra],
            env=os.environ | {"DATABASE_URL": runledger_database.dsn},
            capture_output=True,
            check=True,
        )
        assert set(done.stdout).isdisjoint({*range(10), *range(11, 32), 0x7F})
        text = done.stdout.decode()
        assert set(text).isdisjoint({"\x9b", "\u202e"})
        assert "[red]" in text


def test_terminal_that_knows_no_unicode_gets_question_marks(pool, runledger_database):
    record_worker(pool, report("wörker"))

    done = subprocess.run(  # our own interpreter
        [sys.executable, "-m", "runledger_tui", "--once"],
        env=os.environ | {"DATABASE_URL": runledger_database.dsn, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "w?rker" in done.stdout
    assert done.stderr == ""


def test_reader_that_goes_away_sees_no_traceback(runledger_database):
    process = subprocess.Popen(  # our own interpreter
        [sys.executable, "-m", "runledger_tui", "--once"],
        env=os.environ | {"DATABASE_URL": runledger_database.dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None

    process.stdout.close()

    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait() == 1


def test_database_without_the_schema_is_told_what_to_do(capsys, runledger_unmigrated_database):
    message = failure(capsys, runledger_unmigrated_database.dsn)

    assert message.startswith("runledger-tui: schema.missing_migration_history: ")
    assert "runledger migrate" in message


def test_other_schema_is_refused_unless_the_check_is_skipped(capsys, runledger_database):
    with psycopg.connect(runledger_database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO runledger.runledger_migration_history (version, name, sha256)"
            " VALUES (999912310001, 'future', 'x')"
        )

    assert "schema.migration_unknown" in failure(capsys, runledger_database.dsn)
    assert snapshot(capsys, runledger_database.dsn, "--skip-schema-check")["workers"] == []


def test_locked_table_ends_in_a_timeout(capsys, monkeypatch, runledger_database):
    monkeypatch.setattr(fetch, "_STATEMENT_TIMEOUT", "50ms")
    with psycopg.connect(runledger_database.dsn) as holder:
        holder.execute("LOCK TABLE runledger.job_queue")

        message = failure(capsys, runledger_database.dsn)

    assert "db.statement_timeout" in message


def test_embedded_directory_is_read(capsys, place):
    bin_dir = os.environ.get("RUNLEDGER_TEST_PG_BIN")
    with EmbeddedServer(place / "server", bin_dir=bin_dir, settings={"fsync": "off"}) as server:
        with connect_pool(server.dsn()) as pool:
            migrate(pool)
            record_worker(pool, report())
        capsys.readouterr()

        assert main(["--once", "--json", "--embedded", str(place / "server")]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert [worker["worker_id"] for worker in shown["workers"]] == ["worker-1"]
