"""Adding log lines: those of an attempt, fenced by its lease, and those of anybody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final
from uuid import UUID

from runledger_core import (
    UNSET,
    ErrorCategory,
    JobLease,
    JsonInput,
    Scope,
    Unset,
    check_int,
    check_text,
    check_uuid,
    current_limits,
    encode_json,
    sanitize_text,
)
from runledger_core.limits import INT32_MAX

from .._arguments import check_kind, check_kinds
from .._database import Database
from .._rows import Statement
from .._scope import IN_SCOPE, scope_parameters
from .._session import Bound, run
from ..errors import refusal


@dataclass(frozen=True, slots=True)
class JobLogEntry:
    """One line to add to a job's log.

    Attributes:
        job_id: The job.
        level: Such as `INFO`; free text of at most `Limits.identifier_characters`.
        message: Cut to `Limits.error_message_bytes`, with a mark.
        payload: Values beside the text, kept out of `repr()`; an empty object if UNSET.
        run_number: Run that the line is about; the job's present one if None.
        attempt: Attempt that the line is about; the job's present one, if any, if None.
    """

    job_id: UUID
    level: str
    _: KW_ONLY
    message: str
    payload: JsonInput | Unset = field(default=UNSET, repr=False)
    run_number: int | None = None
    attempt: int | None = None
    payload_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        limits, store = current_limits(), object.__setattr__
        store(self, "job_id", check_uuid(self.job_id, field="job_id"))
        level = check_text(self.level, field="level", max_characters=limits.identifier_characters)
        store(self, "level", level)
        message = check_text(self.message, field="message")
        message = sanitize_text(message, max_bytes=limits.error_message_bytes)
        store(self, "message", message)
        payload: JsonInput = {} if isinstance(self.payload, Unset) else self.payload
        text = encode_json(payload, field="payload", max_bytes=limits.log_payload_bytes)
        store(self, "payload_json", text)
        for name in ("run_number", "attempt"):
            if getattr(self, name) is not None:
                check_int(getattr(self, name), field=name, minimum=1, maximum=INT32_MAX)


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """The id of a new line, or the first entry whose job is not there."""

    id: int | None
    missing_entry: int | None


# claim_number stays 0: a line that the attempt did not write is no sign that it was started. The
# job's row is not locked; a lock would block the heartbeat of the attempt that runs.
INSERT_JOB_LOGS: Final = Statement(
    f"""
    WITH entries AS MATERIALIZED (
        SELECT e.*
        FROM unnest(
            %(job_ids)s::uuid[], %(levels)s::text[], %(messages)s::text[], %(payloads)s::jsonb[],
            %(run_numbers)s::int4[], %(attempts)s::int4[]
        ) WITH ORDINALITY AS e(job_id, level, message, payload, run_number, attempt, entry)
    ), found AS MATERIALIZED (
        SELECT
            e.*, q.id IS NULL AS is_missing, q.run_number AS present_run,
            nullif(q.attempt, 0) AS present_attempt
        FROM entries AS e
        LEFT JOIN runledger.job_queue AS q ON q.id = e.job_id AND {IN_SCOPE}
    ), missing AS (
        SELECT min(f.entry) AS entry FROM found AS f WHERE f.is_missing
    ), logged AS (
        INSERT INTO runledger.job_logs (job_id, run_number, attempt, level, message, payload)
        SELECT
            f.job_id, coalesce(f.run_number, f.present_run),
            coalesce(
                f.attempt,
                CASE
                    WHEN coalesce(f.run_number, f.present_run) = f.present_run
                        THEN f.present_attempt
                END
            ),
            f.level, f.message, f.payload
        FROM found AS f
        WHERE (SELECT m.entry FROM missing AS m) IS NULL
        ORDER BY f.entry
        RETURNING id
    )
    SELECT l.id, m.entry AS missing_entry
    FROM missing AS m
    LEFT JOIN logged AS l ON true
    ORDER BY l.id
    """,
    LoggedRow,
)


@dataclass(frozen=True, slots=True)
class ClaimLoggedRow:
    """The id of the line that a live lease's owner added."""

    id: int


INSERT_CLAIM_LOG: Final = Statement(
    """
    INSERT INTO runledger.job_logs (
        job_id, claim_number, run_number, attempt, level, message, payload
    )
    SELECT
        q.id, q.claim_number, q.run_number, q.attempt, %(level)s::text, %(message)s::text,
        %(payload)s::jsonb
    FROM runledger.job_queue AS q
    WHERE q.id = %(job_id)s::uuid
        AND q.status = 'LEASED'
        AND q.claim_number = %(claim_number)s::int8
        AND q.worker_id = %(worker_id)s::text
        AND q.lease_expires_at > clock_timestamp()
    RETURNING id
    """,
    ClaimLoggedRow,
)


def insert_job_log(
    db: Database,
    job_id: UUID,
    *,
    scope: Scope,
    level: str,
    message: str,
    payload: JsonInput | Unset = UNSET,
    run_number: int | None = None,
    attempt: int | None = None,
) -> int:
    """Add a line to a job's log, whatever its status; handlers use `JobContext.log`.

    Args:
        scope: Whose job it may be.
        level: As in `JobLogEntry`.
        message: As in `JobLogEntry`.
        payload: As in `JobLogEntry`.
        run_number: As in `JobLogEntry`.
        attempt: As in `JobLogEntry`.

    Returns:
        The line's id.

    Raises:
        ValidationError: An `input.*` code that names the argument.
        NotFoundError: `job.not_found` if no job of that id is in scope.

    Transaction: joins the caller's or opens one; takes no lock on the job.
    """
    entry = JobLogEntry(
        job_id,
        level,
        message=message,
        payload=payload,
        run_number=run_number,
        attempt=attempt,
    )
    return insert_job_logs(db, [entry], scope=scope)[0]


def insert_job_logs(db: Database, entries: Sequence[JobLogEntry], *, scope: Scope) -> list[int]:
    """Add lines to the logs of jobs, all or none, in one statement.

    Args:
        entries: Any number; jobs may repeat.
        scope: Whose jobs they may be.

    Returns:
        The lines' ids in input order, ascending; empty for no entries, without SQL.

    Raises:
        NotFoundError: `job.not_found` with the index of the first entry whose job is not in scope.

    Transaction: joins the caller's or opens one; takes no lock on the jobs.
    """
    entries = check_kinds(entries, JobLogEntry, field="entries")
    if not entries:
        return []
    parameters: dict[str, object] = {
        "job_ids": [entry.job_id for entry in entries],
        "levels": [entry.level for entry in entries],
        "messages": [entry.message for entry in entries],
        "payloads": [entry.payload_json for entry in entries],
        "run_numbers": [entry.run_number for entry in entries],
        "attempts": [entry.attempt for entry in entries],
    }
    rows = run(db, Bound(INSERT_JOB_LOGS, parameters | scope_parameters(scope)))
    missing = rows[0].missing_entry
    if missing is not None:
        raise refusal(
            ErrorCategory.NOT_FOUND,
            "job.not_found",
            "no such job in this scope",
            field="job_id",
            entry_index=missing - 1,
        )
    return [row.id for row in rows if row.id is not None]


def insert_claim_log(
    db: Database,
    lease: JobLease,
    *,
    level: str,
    message: str,
    payload: JsonInput | Unset = UNSET,
) -> bool:
    """Add a line to the log of a running attempt; from then on it counts as started.

    Args:
        level: As in `JobLogEntry`.
        message: As in `JobLogEntry`.
        payload: As in `JobLogEntry`.

    Returns:
        False if the lease is no longer live: the line of a dead attempt is dropped.

    Raises:
        ValidationError: An `input.*` code that names the argument.

    Transaction: joins the caller's or opens one; takes no lock on the job.
    """
    check_kind(lease, JobLease, field="lease")
    entry = JobLogEntry(lease.job_id, level, message=message, payload=payload)
    parameters = {
        "job_id": lease.job_id,
        "claim_number": lease.claim_number,
        "worker_id": lease.worker_id,
        "level": entry.level,
        "message": entry.message,
        "payload": entry.payload_json,
    }
    return bool(run(db, Bound(INSERT_CLAIM_LOG, parameters)))
