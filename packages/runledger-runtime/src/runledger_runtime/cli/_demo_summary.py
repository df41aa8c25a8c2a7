"""The end of the demo: do its numbers add up, and what to look at next."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, Final

from psycopg_pool import ConnectionPool

from runledger_core import CancelReason, JobOutcome, JobStatus, JsonInput, JsonValue
from runledger_postgres import count_jobs_by_status, list_job_attempts

from ._demo_catalog import Witness
from ._demo_script import EXPECTED_CANCELED, EXPECTED_DEAD_LETTERS, LEAST_FIRES, Script
from ._demo_workflow import EXPECTED_RESULT, STEPS
from ._text import json_line

_TUI_MODULE: Final = "runledger_tui"


@dataclass(frozen=True, slots=True)
class Summary:
    """What the database says about the jobs of one run of the demo."""

    enqueued: int
    succeeded: int
    _: KW_ONLY
    by_schedule: int
    dead_lettered: int
    canceled: int
    unfinished: int
    attempts: int
    retries: int
    canceled_attempts: int
    repeated_enqueue_agrees: bool
    handler_was_told: bool
    workflow_result: JsonValue

    def problems(self) -> list[str]:
        """Return what does not add up, in sentences; empty if all is well."""
        checks = {
            f"{self.unfinished} jobs have not ended": self.unfinished == 0,
            "enqueued is not succeeded + dead letters + canceled": self.enqueued
            == self.succeeded + self.dead_lettered + self.canceled + self.unfinished,
            "attempts are not successes + dead letters + retries + canceled ones": self.attempts
            == self.succeeded + self.dead_lettered + self.retries + self.canceled_attempts,
            f"there should be {EXPECTED_DEAD_LETTERS} dead letters": self.dead_lettered
            == EXPECTED_DEAD_LETTERS,
            f"there should be {EXPECTED_CANCELED} canceled jobs": self.canceled
            == EXPECTED_CANCELED,
            f"the schedule should have fired {LEAST_FIRES} times": self.by_schedule >= LEAST_FIRES,
            "a repeated enqueue made other jobs": self.repeated_enqueue_agrees,
            "the canceled handler was not told": self.handler_was_told,
            "the workflow has another result, or none": self.workflow_result == EXPECTED_RESULT,
        }
        return [problem for problem, is_well in checks.items() if not is_well]

    def to_json(self) -> dict[str, JsonInput]:
        """Return the numbers for programs."""
        return {**asdict(self), "problems": self.problems()}


def summarize(pool: ConnectionPool[Any], script: Script, witness: Witness) -> Summary:
    """Count in the database what became of the jobs, apart from what was shown."""
    counts = count_jobs_by_status(pool, scope=script.scope)
    attempts = [
        attempt
        for job_id in script.labels
        for attempt in list_job_attempts(pool, job_id, scope=script.scope)
    ]
    return Summary(
        len(script.labels),
        counts[JobStatus.SUCCEEDED],
        by_schedule=script.fires,
        dead_lettered=counts[JobStatus.DEAD_LETTERED],
        canceled=counts[JobStatus.CANCELED],
        unfinished=counts[JobStatus.PENDING] + counts[JobStatus.LEASED],
        attempts=len(attempts),
        retries=sum(attempt.retry_delay_ms is not None for attempt in attempts),
        canceled_attempts=sum(attempt.outcome is JobOutcome.CANCELED for attempt in attempts),
        repeated_enqueue_agrees=script.repeated_enqueue_agrees,
        handler_was_told=witness.reason is CancelReason.CANCELED,
        workflow_result=script.campaign.result(),
    )


def print_summary(summary: Summary, say: Callable[[str], None]) -> None:
    """Print the numbers and whether they add up."""
    say("")
    say(f"{summary.enqueued:4} jobs enqueued, {summary.by_schedule} of them by a schedule")
    say(f"{summary.succeeded:4} succeeded")
    say(f"{summary.dead_lettered:4} dead letters: a declined card, a webhook out of attempts")
    say(f"{summary.canceled:4} canceled: one waiting, one running, whose handler was told")
    say(
        f"{summary.attempts:4} attempts: {summary.succeeded} successes,"
        f" {summary.retries} failures that were tried again, {summary.dead_lettered} that were"
        f" given up, {summary.canceled_attempts} canceled"
    )
    say(
        f"   1 workflow: {STEPS} steps, one of them an approval; its result is"
        f" {json_line(summary.workflow_result)}"
    )
    if not summary.problems():
        say(
            f"     counted in the database, it adds up: {summary.enqueued} = {summary.succeeded}"
            f" + {summary.dead_lettered} + {summary.canceled}"
        )


def next_commands(
    directory: Path | None, dead_letter_id: str | None, run_id: str | None
) -> list[str]:
    """Return lines that say how to look at what the demo left behind."""
    here = _prefix()
    where = (
        "--database-url ..." if directory is None else f"--embedded {shlex.quote(str(directory))}"
    )
    lines = [f"  {here}runledger jobs list {where}"]
    if dead_letter_id is not None:
        lines.append(f"  {here}runledger jobs show {dead_letter_id} {where}")
    if run_id is not None:
        lines.append(f"  {here}runledger workflows show {run_id} {where}")
    if importlib.util.find_spec(_TUI_MODULE) is None:
        lines.append("  pip install 'runledger-tui[embedded]'   # the view in the terminal, then:")
    lines.append(f"  {here}runledger-tui {where} --once")
    return lines


def _prefix() -> str:
    """Return what to put before our commands so that a shell finds them."""
    if shutil.which("runledger") is not None:
        return ""
    folder = Path(sys.executable).parent
    if not (folder / "runledger").exists():
        return ""
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    return f"{shlex.quote(str(shown))}/"
