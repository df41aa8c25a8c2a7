from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from runledger_core import JobStatus, Scope, WorkflowRunStatus
from runledger_postgres.admin import BoundedCount, WaitingJob
from runledger_postgres.workers import WorkerRecord, WorkerState
from runledger_tui.fetch import Snapshot
from runledger_tui.snapshot import render_json, render_text

ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")
JOB = UUID("01900000-0000-7000-8000-000000000002")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

WORKER = WorkerRecord(
    "worker-1",
    "host-a",
    pid=41,
    version="0.4.0",
    job_types=["test.a", "test.b"],
    concurrency=32,
    state=WorkerState.RUNNING,
    started_at=NOON,
    last_seen_at=NOON,
    seconds_since_seen=3.25,
)
SNAPSHOT = Snapshot(
    NOON,
    Scope.ADMIN,
    counts={
        JobStatus.PENDING: BoundedCount(100_000, is_exact=False),
        JobStatus.LEASED: BoundedCount(3, is_exact=True),
        JobStatus.SUCCEEDED: BoundedCount(12, is_exact=True),
        JobStatus.DEAD_LETTERED: BoundedCount(1, is_exact=True),
        JobStatus.CANCELED: BoundedCount(0, is_exact=True),
    },
    runs={
        WorkflowRunStatus.RUNNING: BoundedCount(2, is_exact=True),
        WorkflowRunStatus.WAITING_FOR_EXTERNAL: BoundedCount(1, is_exact=True),
        WorkflowRunStatus.SUCCEEDED: BoundedCount(100_000, is_exact=False),
        WorkflowRunStatus.COMPLETED_WITH_ERRORS: BoundedCount(0, is_exact=True),
        WorkflowRunStatus.CANCELED: BoundedCount(0, is_exact=True),
    },
    oldest_waiting=[
        WaitingJob("test.a", JOB, due_at=NOON, waiting_seconds=12.5),
        WaitingJob("test.b", JOB, due_at=NOON, waiting_seconds=4_000.0),
    ],
    workers=[
        WORKER,
        replace(WORKER, worker_id="worker-2", seconds_since_seen=121.0),
        replace(WORKER, worker_id="worker-3", state=WorkerState.DRAINING),
    ],
)
NO_RUNS = dict.fromkeys(WorkflowRunStatus, BoundedCount(0, is_exact=True))
EMPTY = replace(SNAPSHOT, runs=NO_RUNS, oldest_waiting=[], workers=[])
HOSTILE = "\x1b]52;c;eA==\x07\x1b[2J\r\n\x7f\x9b\u202e[bold red]x[/] :smile: [link=http://x]"


def lines_of(snapshot: Snapshot) -> list[str]:
    lines = render_text(snapshot, io.StringIO()).splitlines()
    # How wide columns are is rich's business, rules included.
    words = [" ".join(line.replace("─", " ").split()) for line in lines]
    return [line for line in words if line]


def test_people_see_counts_waits_and_workers():
    assert lines_of(SNAPSHOT) == [
        "Runledger, all organizations, 2026-01-01 12:00:00 UTC",
        "Jobs",
        "Status Count",
        "PENDING 100,000+",
        "LEASED 3",
        "SUCCEEDED 12",
        "DEAD_LETTERED 1",
        "CANCELED 0",
        "Workflow runs",
        "Status Count",
        "RUNNING 2",
        "WAITING_FOR_EXTERNAL 1",
        "SUCCEEDED 100,000+",
        "COMPLETED_WITH_ERRORS 0",
        "CANCELED 0",
        "Oldest waiting job of each type",
        "Job type Waiting Job",
        "test.b 1 h 6 min 01900000-0000-7000-8000-000000000002",
        "test.a 12 s 01900000-0000-7000-8000-000000000002",
        "Workers: 2 live, 1 silent",
        "Worker Process State Seen Slots Job types",
        "worker-1 host-a:41 RUNNING 3 s ago 32 test.a, test.b",
        "worker-2 host-a:41 silent (RUNNING) 2 min 1 s ago 32 test.a, test.b",
        "worker-3 host-a:41 DRAINING 3 s ago 32 test.a, test.b",
    ]


def test_empty_queue_is_said_in_words():
    lines = lines_of(EMPTY)

    assert "There are no workflow runs." in lines
    assert "No job is due and waiting." in lines
    assert "No worker reports." in lines


def test_scope_is_named():
    assert lines_of(replace(EMPTY, scope=Scope.organization(ORGANIZATION)))[0] == (
        f"Runledger, organization {ORGANIZATION}, 2026-01-01 12:00:00 UTC"
    )


def test_colours_are_for_terminals_only():
    assert "\x1b" not in render_text(SNAPSHOT, io.StringIO())


def test_scripts_get_one_json_object():
    shown = json.loads(render_json(replace(SNAPSHOT, scope=Scope.organization(ORGANIZATION))))

    assert list(shown) == [
        "taken_at",
        "organization_id",
        "jobs",
        "workflow_runs",
        "oldest_waiting",
        "workers",
    ]
    assert shown["taken_at"] == "2026-01-01T12:00:00+00:00"
    assert shown["organization_id"] == str(ORGANIZATION)
    assert shown["jobs"]["PENDING"] == {"count": 100_000, "is_exact": False}
    assert list(shown["jobs"]) == ["PENDING", "LEASED", "SUCCEEDED", "DEAD_LETTERED", "CANCELED"]
    assert list(shown["workflow_runs"]) == [status.value for status in WorkflowRunStatus]
    assert shown["workflow_runs"]["SUCCEEDED"] == {"count": 100_000, "is_exact": False}
    assert shown["oldest_waiting"][0] == {
        "job_type": "test.a",
        "job_id": str(JOB),
        "due_at": "2026-01-01T12:00:00+00:00",
        "waiting_seconds": 12.5,
    }
    assert [worker["is_live"] for worker in shown["workers"]] == [True, False, True]
    assert shown["workers"][0]["job_types"] == ["test.a", "test.b"]


def test_json_of_all_organizations_names_none():
    assert json.loads(render_json(EMPTY))["organization_id"] is None


@pytest.mark.parametrize("render", [render_json, lambda shot: render_text(shot, io.StringIO())])
def test_hostile_text_stays_text(render):
    worker = replace(WORKER, worker_id=HOSTILE, host=HOSTILE, version=HOSTILE, job_types=[HOSTILE])
    waiting = WaitingJob(HOSTILE, JOB, due_at=NOON, waiting_seconds=1.0)

    shown = render(replace(SNAPSHOT, oldest_waiting=[waiting], workers=[worker]))

    assert set(shown).isdisjoint([*map(chr, range(10)), *map(chr, range(11, 32)), "\x7f"])
    assert set(shown).isdisjoint([*map(chr, range(0x80, 0xA0)), "\u202e", "\U0001f604"])
    assert "[bold" in shown


def test_marks_are_the_same_in_json_and_in_text():
    waiting = WaitingJob("a\x1bb", JOB, due_at=NOON, waiting_seconds=1.0)
    snapshot = replace(SNAPSHOT, oldest_waiting=[waiting])

    assert json.loads(render_json(snapshot))["oldest_waiting"][0]["job_type"] == "a␛b"
    assert "a␛b" in render_text(snapshot, io.StringIO())
