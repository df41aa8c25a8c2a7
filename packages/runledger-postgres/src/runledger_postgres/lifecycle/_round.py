"""One round of a worker: store what ended, ready what came due, claim what fits, in one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import psycopg

from .._rows import Statement
from .._session import Bound, run_all, transaction
from ..errors import QueryError
from ..workflows import end_and_settle, lock_runs_of_jobs
from ._claim import ClaimRequest, claim_results, claim_statements
from ._claimed import ClaimedJob, UndecodableJob, decode_claim
from ._failure import (
    FAIL_JOBS,
    FailureEntry,
    FailureOutcome,
    failure_outcomes,
    failure_parameters,
)
from ._misses import judge_later
from ._ready import Backlog, ReadyMark
from ._success import (
    COMPLETE_JOBS,
    COMPLETE_JOBS_BEFORE_CLAIM,
    SuccessEntry,
    SuccessOutcome,
    success_outcomes,
    success_parameters,
)
from ._verdict import WriteVerdict

_LOCK_TIMEOUT: Final = "db.lock_timeout"
# Who holds a step's row costs a round that long, and then its run only. An open insert that
# references the row by a foreign key is enough.
_STEP_WAIT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round stored and claimed, and what it saw of the rest of the queue.

    Attributes:
        last_taken: By type, the place of the last job taken, decodable or not.
        backlog: None without a look.
    """

    successes: list[SuccessOutcome]
    failures: list[FailureOutcome]
    _: KW_ONLY
    claimed: list[ClaimedJob] = field(default_factory=list[ClaimedJob])
    undecodable: list[UndecodableJob] = field(default_factory=list[UndecodableJob])
    last_taken: Mapping[str, ReadyMark] = field(default_factory=dict[str, ReadyMark])
    backlog: Backlog | None = None

    @property
    def has_ready(self) -> bool:
        """Whether ready jobs were seen to be left, claimable or held by others."""
        return self.backlog is not None and self.backlog.has_ready

    @property
    def due_in_seconds(self) -> float | None:
        """Until the next waiting job of any type is due, if one was seen."""
        return None if self.backlog is None else self.backlog.due_in_seconds


@dataclass(frozen=True, slots=True)
class _LockedRow:
    id: UUID


WAIT_FOR_JOB: Final = Statement(
    """
    SELECT q.id
    FROM runledger.job_queue AS q
    WHERE q.id = %(job_id)s::uuid
    FOR NO KEY UPDATE
    """,
    _LockedRow,
)


def run_worker_round(
    connection: psycopg.Connection[Any],
    *,
    successes: Sequence[SuccessEntry] = (),
    failures: Sequence[FailureEntry] = (),
    claim: ClaimRequest | None = None,
    in_workflows: bool = False,
) -> RoundResult:
    """Store outcomes and claim jobs in one transaction; in one trip, or two with workflows.

    Args:
        connection: An idle autocommit connection that nobody else uses.
        in_workflows: Whether some of the jobs are workflows'; else such are BUSY.

    Returns:
        A verdict per entry; entries whose rows others hold are BUSY. Claimed rows that cannot be
        decoded come back as failures to store.

    Raises:
        QueryError: Nothing of the round is stored, unless its code is `db.outcome_unknown`.

    Transaction: one of its own. Misses are judged in a second; those that cannot be judged because
        the connection is lost are BUSY.
    """
    try:
        results = _send_outcomes(
            connection, successes, failures, in_workflows=in_workflows, claim=claim
        )
    except QueryError as error:
        if not in_workflows or error.code != _LOCK_TIMEOUT:
            raise
        return _round_around_held_steps(connection, successes, failures, claim)
    result = _outcomes_of(connection, successes, failures, results)
    if claim is None:
        return result
    rows, backlog = claim_results(claim, results)
    claimed, undecodable = decode_claim(rows)
    return replace(
        result,
        claimed=claimed,
        undecodable=undecodable,
        # Rows come best first: the last of its type stays.
        last_taken={row.job_type: row.mark for row in rows},
        backlog=backlog,
    )


def _round_around_held_steps(
    connection: psycopg.Connection[Any],
    successes: Sequence[SuccessEntry],
    failures: Sequence[FailureEntry],
    claim: ClaimRequest | None,
) -> RoundResult:
    """Run a round while somebody holds a row of a step: what is not of its run is stored."""
    # To this one all jobs of workflows are BUSY.
    result = run_worker_round(connection, successes=successes, failures=failures, claim=claim)
    busy = [
        index
        for index, outcome in enumerate((*result.successes, *result.failures))
        if outcome.verdict is WriteVerdict.BUSY
    ]
    entries: list[SuccessEntry | FailureEntry] = [*successes, *failures]
    stored = _store_in_parts(connection, {index: entries[index] for index in busy})
    outcomes = {**dict(enumerate((*result.successes, *result.failures))), **stored}
    return replace(
        result,
        successes=[outcomes[index] for index in range(len(successes))],
        failures=[outcomes[len(successes) + index] for index in range(len(failures))],
    )


def _store_in_parts(
    connection: psycopg.Connection[Any], entries: Mapping[int, SuccessEntry | FailureEntry]
) -> dict[int, Any]:
    """Store outcomes of workflows, halves apart where a row is held; return what was stored."""
    if not entries:
        return {}
    places = list(entries)
    successes = {i: e for i, e in entries.items() if isinstance(e, SuccessEntry)}
    failures = {i: e for i, e in entries.items() if isinstance(e, FailureEntry)}
    try:
        results = _send_outcomes(
            connection, list(successes.values()), list(failures.values()), in_workflows=True
        )
        part = _outcomes_of(connection, list(successes.values()), list(failures.values()), results)
    except QueryError as error:
        # What the round stored is committed: these come again, whatever it is.
        if len(places) == 1 or error.code != _LOCK_TIMEOUT:
            return {}
        halves = (places[: len(places) // 2], places[len(places) // 2 :])
        return {
            place: outcome
            for half in halves
            for place, outcome in _store_in_parts(
                connection, {place: entries[place] for place in half}
            ).items()
        }
    return {
        **dict(zip(successes, part.successes, strict=True)),
        **dict(zip(failures, part.failures, strict=True)),
    }


def run_waiting_round(
    connection: psycopg.Connection[Any],
    *,
    successes: Sequence[SuccessEntry] = (),
    failures: Sequence[FailureEntry] = (),
    wait_ms: int,
    in_workflows: bool = False,
) -> RoundResult:
    """Store outcomes that were all BUSY, waiting for the row of the first one.

    Args:
        connection: As for `run_worker_round`.
        wait_ms: Longest wait in milliseconds; all are BUSY again if the row stays locked.
        in_workflows: As for `run_worker_round`; the first one's run is waited for, too.

    Returns:
        A verdict per entry; nothing is claimed.

    Raises:
        QueryError: As `run_worker_round`.
    """
    leases = [entry.lease for entry in (*successes, *failures)]
    if not leases:
        return RoundResult([], [])
    first = leases[0].job_id
    waiting: list[Bound[Any]] = [Bound(WAIT_FOR_JOB, {"job_id": first})]
    if in_workflows:
        waiting.insert(0, lock_runs_of_jobs([first], waits=True))
    try:
        results = _send_outcomes(
            connection,
            successes,
            failures,
            in_workflows=in_workflows,
            before=waiting,
            wait_ms=wait_ms,
        )
    except QueryError as error:
        if error.code != _LOCK_TIMEOUT:
            raise
        return RoundResult(
            [SuccessOutcome(WriteVerdict.BUSY) for _ in successes],
            [FailureOutcome(WriteVerdict.BUSY) for _ in failures],
        )
    return _outcomes_of(connection, successes, failures, results)


def _send_outcomes(
    connection: psycopg.Connection[Any],
    successes: Sequence[SuccessEntry],
    failures: Sequence[FailureEntry],
    *,
    in_workflows: bool,
    before: Sequence[Bound[Any]] = (),
    claim: ClaimRequest | None = None,
    wait_ms: int | None = None,
) -> list[list[Any]]:
    """Return the rows of the successes, of the failures, and of the claim."""
    # Nothing in between: other statements must not run with the planner's settings of a claim.
    claim_follows = bool(successes) and not failures and not in_workflows and claim is not None
    after = claim_statements(claim, walks_in_order=claim_follows) if claim is not None else []
    ending: list[Bound[Any]] = []
    if successes:
        complete = COMPLETE_JOBS_BEFORE_CLAIM if claim_follows else COMPLETE_JOBS
        ending.append(Bound(complete, success_parameters(successes)))
    if failures:
        ending.append(Bound(FAIL_JOBS, failure_parameters(failures)))
    if in_workflows and ending:
        job_ids = [entry.lease.job_id for entry in (*successes, *failures)]
        wait_ms = _STEP_WAIT_MS if wait_ms is None else wait_ms
        with transaction(connection, lock_timeout_ms=wait_ms) as work:
            ended, followed = end_and_settle(
                work, ending, job_ids, waits=False, before=before, after=after
            )
        results = iter([*ended, *followed])
    else:
        bounds = [*before, *ending, *after]
        rows = run_all(connection, bounds, lock_timeout_ms=wait_ms) if bounds else []
        results = iter(rows[len(before) :])
    stored = next(results) if successes else []
    failed = next(results) if failures else []
    return [stored, failed, *results]


def _outcomes_of(
    connection: psycopg.Connection[Any],
    successes: Sequence[SuccessEntry],
    failures: Sequence[FailureEntry],
    results: Sequence[list[Any]],
) -> RoundResult:
    # The round is committed: an error of judging must not hide what it stored and claimed.
    stored, failed = results[:2]
    return RoundResult(
        success_outcomes(connection, successes, stored, judge=judge_later),
        failure_outcomes(connection, failures, failed, judge=judge_later),
    )
