import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from runledger_core import CancelReason, ForbiddenError, JobCancelled, JobStatus
from runledger_postgres.jobs import JobSummary
from runledger_runtime.cli import _demo_summary, demo
from runledger_runtime.cli._demo_catalog import REPORT, Witness, make_demo_catalog
from runledger_runtime.cli._demo_summary import Summary, next_commands
from runledger_runtime.cli._demo_view import Changes, open_view

ID = UUID("0198c1a2-0000-7000-8000-000000000001")
AT = datetime(2030, 1, 1, tzinfo=UTC)
LABELS = {ID: "mail [bold]to[/] ops \x1b[2J"}


def make_job(status: JobStatus, attempt: int = 1, error: str | None = None) -> JobSummary:
    return JobSummary(
        ID,
        "email.send",
        organization_id=None,
        workflow_run_id=None,
        status=status,
        priority=0,
        run_number=1,
        attempt=attempt,
        max_attempts=5,
        stage="queued",
        progress_done=1,
        progress_total=2,
        worker_id=None,
        last_error_code=error,
        next_run_at=AT,
        lease_expires_at=None,
        created_at=AT,
        started_at=None,
        finished_at=None,
        updated_at=AT,
    )


def make_summary(**changes: object) -> Summary:
    numbers: dict[str, object] = {
        "enqueued": 38,
        "succeeded": 34,
        "by_schedule": 2,
        "dead_lettered": 2,
        "canceled": 2,
        "unfinished": 0,
        "attempts": 47,
        "retries": 10,
        "canceled_attempts": 1,
        "repeated_enqueue_agrees": True,
        "handler_was_told": True,
        "workflow_result": {"approved_by": "ops", "variants": 12},
    }
    return Summary(**(numbers | changes))  # type: ignore[arg-type]  # the mistake


def test_each_change_of_a_job_is_told_once():
    changes = Changes({ID: "mail"})

    told = [
        changes.since_last([job])
        for job in (
            make_job(JobStatus.PENDING, 0),
            make_job(JobStatus.LEASED, 1),
            make_job(JobStatus.PENDING, 1, "busy"),
            make_job(JobStatus.PENDING, 1, "busy"),
            make_job(JobStatus.LEASED, 2),
            make_job(JobStatus.SUCCEEDED, 2),
            make_job(JobStatus.SUCCEEDED, 2),
        )
    ]

    assert told == [
        [],
        [],
        ["mail: attempt 1 failed with busy, tried again soon"],
        [],
        [],
        ["mail: succeeded at attempt 2"],
        [],
    ]


@pytest.mark.parametrize("size", [(100, 40), (40, 12), (1, 1)])
def test_live_display_draws_at_any_size_and_takes_texts_literally(size):
    console = Console(force_terminal=True, record=True, width=size[0], height=size[1], markup=False)

    with open_view(console, LABELS) as view:
        view.tell("dead letter \x1b]52;c;x\x07 [red]", at_seconds=1.0)
        view.draw([make_job(JobStatus.LEASED)], at_seconds=1.0)

    text = console.export_text()
    assert "\x1b]52" not in text
    assert size[0] < 100 or "mail [bold]to[/] ops" in text


def test_summary_that_adds_up_has_no_problem():
    assert make_summary().problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"succeeded": 33}, "enqueued is not succeeded + dead letters + canceled"),
        ({"succeeded": 33, "unfinished": 1}, "1 jobs have not ended"),
        ({"attempts": 46}, "attempts are not successes + dead letters + retries + canceled ones"),
        ({"dead_lettered": 3}, "there should be 2 dead letters"),
        ({"canceled": 1}, "there should be 2 canceled jobs"),
        ({"by_schedule": 1}, "the schedule should have fired 2 times"),
        ({"repeated_enqueue_agrees": False}, "a repeated enqueue made other jobs"),
        ({"handler_was_told": False}, "the canceled handler was not told"),
        ({"workflow_result": None}, "the workflow has another result, or none"),
    ],
)
def test_summary_names_what_does_not_add_up(changes, problem):
    assert problem in make_summary(**changes).problems()


def test_commands_are_named_by_path_where_the_shell_finds_none(monkeypatch, tmp_path):
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "runledger").touch()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)

    lines = next_commands(Path("/data/my demo"), None, None)

    assert lines[0] == "  .venv/bin/runledger jobs list --embedded '/data/my demo'"
    assert lines[-1] == "  .venv/bin/runledger-tui --embedded '/data/my demo' --once"


def test_missing_tui_is_told_with_its_pip_command(monkeypatch):
    monkeypatch.setattr(_demo_summary, "_TUI_MODULE", "no_such_module")

    lines = next_commands(Path("/data"), str(ID), str(ID))

    assert any("pip install 'runledger-tui[embedded]'" in line for line in lines)
    assert f"workflows show {ID} --embedded /data" in lines[2]


def test_database_of_ones_own_is_not_printed():
    assert not [line for line in next_commands(None, None, None) if "postgresql" in line]


def test_new_directory_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    directory = demo._fresh_directory()

    assert directory.parent == tmp_path / "runledger"
    assert directory.name.startswith("demo-")
    assert directory.is_dir()


@pytest.mark.parametrize(("uid", "cache"), [(0, "."), (1000, "file/below")])
def test_new_directory_is_temporary_for_root_and_without_a_cache(monkeypatch, tmp_path, uid, cache):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    directory = demo._fresh_directory()

    assert directory.parent == tmp_path
    assert directory.name.startswith("runledger-demo-")


def test_directory_and_url_together_are_wrong_usage(run_cli):
    result = run_cli("demo", "--directory", "x", "--database-url", "y")

    assert result.exit_code == 2
    assert "not both" in result.stderr


class CanceledBeforeItsProgress:
    """The context of a job that is canceled just before the handler reports its progress."""

    cancel_reason = CancelReason.CANCELED

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, seconds: float) -> bool:
        del seconds
        self.waits += 1
        return self.waits > 1

    def progress(self, *_page: int, checkpoint: object) -> None:
        del checkpoint
        raise ForbiddenError("job.lease_owner_mismatch", "the lease is not live")

    def raise_if_cancelled(self) -> None:
        raise JobCancelled(self.cancel_reason)


def test_report_that_is_canceled_before_its_progress_is_still_told():
    witness = Witness()
    registry = make_demo_catalog(witness).to_registry()
    handler = registry.get(REPORT)
    assert handler is not None
    context: Any = CanceledBeforeItsProgress()

    with pytest.raises(JobCancelled):
        handler.execute(context, {"title": "report of the year", "pages": 3})

    assert witness.told_to_stop.is_set()
    assert witness.reason is CancelReason.CANCELED
