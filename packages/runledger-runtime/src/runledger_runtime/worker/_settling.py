"""Outcomes on their way into the database: what to send, and what each verdict means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from runledger_core import (
    UNSET,
    JobCompletion,
    JobDeadLetterInfo,
    JobFailure,
    JobFailureKind,
    check_int,
    decode_json,
    type_name,
)
from runledger_core.limits import INT32_MAX
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import (
    FailureEntry,
    FailureOutcome,
    SuccessEntry,
    SuccessOutcome,
    WriteVerdict,
)

from ..backoff import DEFAULT_BACKOFF
from ..dead_letters import DeadLetter, reader_of
from ..registry import JobRegistry
from ..safe_log import safe_logger
from ._book import LeaseBook
from ._execution import Execution, Outcome
from ._observing import Observing

_logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Outcomes of one round, split by how they are stored, in matching order."""

    outcomes: list[Outcome]
    successes: list[SuccessEntry]
    failures: list[FailureEntry]

    @property
    def is_in_workflows(self) -> bool:
        """Whether some of the jobs are workflows', so that steps end with them."""
        return any(o.execution.job.workflow_run_id is not None for o in self.outcomes)

    @property
    def cut_offs(self) -> int:
        """How often the one of them that takes longest to store was cut off before."""
        return max((outcome.execution.cut_offs for outcome in self.outcomes), default=0)

    def cut_off(self) -> None:
        """Have each stored alone from now on; one that was alone gets more time."""
        for outcome in self.outcomes:
            outcome.execution.is_stored_alone = True
            if len(self.outcomes) == 1:
                outcome.execution.cut_offs += 1

    def halves(self, make: Callable[[Sequence[Outcome]], Batch]) -> tuple[Batch, Batch]:
        """Split in two, to find the one that cannot be stored."""
        middle = len(self.outcomes) // 2
        return make(self.outcomes[:middle]), make(self.outcomes[middle:])


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Outcomes that a round has left to be stored."""

    changed: list[Outcome]
    """To be sent again: a success whose progress is invalid is now a failure."""
    busy: list[Outcome]
    """Stored by nobody yet: another transaction held their rows."""


class Settling:
    """Turns outcomes into entries, and verdicts into what happens next."""

    def __init__(
        self,
        registry: JobRegistry,
        book: LeaseBook,
        *,
        on_dead_letter: Callable[[DeadLetter], None],
        observing: Observing | None = None,
    ) -> None:
        """Hold no outcome yet; dead letters and events are handed on once they are stored."""
        self._registry = registry
        self._book = book
        self._on_dead_letter = on_dead_letter
        self._observing = observing

    def begin(self, execution: Execution) -> None:
        """Hold the lease of a claimed job; its handler is about to start."""
        self._book.add(execution)
        if self._observing is not None:
            self._observing.started(execution)

    def let_go(self, execution: Execution) -> None:
        """Let a lease go whose attempt ended without an outcome."""
        self._book.close(execution)
        if self._observing is not None and execution.is_reported:
            self._observing.lost(execution)

    def batch(self, outcomes: Sequence[Outcome]) -> Batch:
        """Return the entries of these outcomes, successes first."""
        ordered = sorted(outcomes, key=lambda outcome: isinstance(outcome.result, JobFailure))
        successes: list[SuccessEntry] = []
        failures: list[FailureEntry] = []
        for outcome in ordered:
            if isinstance(outcome.result, JobCompletion):
                successes.append(SuccessEntry(outcome.execution.job.lease, outcome.result))
            else:
                failures.append(self._failure_entry(outcome, outcome.result))
        return Batch(ordered, successes, failures)

    def settle(
        self, batch: Batch, successes: Sequence[SuccessOutcome], failures: Sequence[FailureOutcome]
    ) -> Unsettled:
        """Close what is stored or pointless, and return the rest."""
        left = Unsettled(changed=[], busy=[])
        for outcome, stored in zip(batch.outcomes, [*successes, *failures], strict=True):
            match stored.verdict:
                case WriteVerdict.STORED | WriteVerdict.REPEATED:
                    self._book.close(outcome.execution)
                    self._tell(outcome, stored)
                case WriteVerdict.BUSY:
                    left.busy.append(outcome)
                case WriteVerdict.INVALID_PROGRESS:
                    failure = JobFailure.terminal(
                        "job.invalid_completion_progress", "progress is beyond its total"
                    )
                    left.changed.append(Outcome(outcome.execution, failure))
                case _:
                    self._lost(outcome, stored.verdict)
        return left

    def give_up(self, outcome: Outcome, error: QueryError) -> None:
        """Let a lease run out: its outcome can never be stored."""
        job = outcome.execution.job
        _logger.error(
            "outcome cannot be stored; the lease runs out",
            extra={"job_id": str(job.id), "job_type": job.job_type, "error_code": error.code},
        )
        self._book.abandon(outcome.execution)
        if self._observing is not None and outcome.execution.is_reported:
            self._observing.unstorable(outcome, error)

    def _tell(self, outcome: Outcome, stored: SuccessOutcome | FailureOutcome) -> None:
        if self._observing is not None and outcome.execution.is_reported:
            # Before the hook, which may take its time.
            self._observing.stored(outcome, stored)
        job, failure = outcome.execution.job, outcome.result
        if isinstance(stored, SuccessOutcome) or not isinstance(failure, JobFailure):
            return
        # The code, not the message: that may hold anything, and is in the job's row.
        _logger.log(
            logging.INFO if stored.dead_letter_reason is None else logging.WARNING,
            "attempt failed",
            extra={
                "job_id": str(job.id),
                "job_type": job.job_type,
                "attempt": job.lease.attempt,
                "failure_code": failure.code,
                "disposition": stored.disposition,
            },
        )
        if stored.dead_letter_reason is None or not outcome.execution.is_reported:
            return
        # A repeat does not say what the row holds; the claim's own checkpoint is as good.
        if stored.checkpoint is UNSET and job.checkpoint_json is not None:
            checkpoint = partial(decode_json, job.checkpoint_json)
        else:
            checkpoint = reader_of(stored.checkpoint)
        info = JobDeadLetterInfo(
            failure,
            stored.dead_letter_reason,
            max_attempts=stored.max_attempts or job.max_attempts,
        )
        self._on_dead_letter(
            DeadLetter(
                job.lease,
                job.job_type,
                organization_id=job.organization_id,
                # Not the claim's: the handler may have changed that.
                payload=partial(decode_json, job.payload_json),
                checkpoint=checkpoint,
                info=info,
            )
        )

    def _failure_entry(self, outcome: Outcome, failure: JobFailure) -> FailureEntry:
        job = outcome.execution.job
        delay = self._registry.retry_delay_override(job.job_type, failure.code)
        if delay is None:
            delay = self._policy_delay_ms(job.job_type, job.lease.attempt)
        return FailureEntry(job.lease, failure, retry_delay_ms=delay, traceback=outcome.traceback)

    def _policy_delay_ms(self, job_type: str, attempt: int) -> int:
        try:
            delay = self._registry.backoff(job_type).delay_ms(attempt)
            return check_int(delay, field="delay_ms", minimum=1, maximum=INT32_MAX)
        except BaseException as error:  # noqa: BLE001  # a policy must not end the pump
            _logger.error(  # noqa: TRY400  # its text may hold anything
                "a backoff policy failed; the default delay is used",
                extra={"job_type": job_type, "attempt": attempt, "error": type_name(error)},
            )
            return DEFAULT_BACKOFF.delay_ms(attempt)

    def _lost(self, outcome: Outcome, verdict: WriteVerdict) -> None:
        job = outcome.execution.job
        is_timeout = (
            isinstance(outcome.result, JobFailure) and outcome.result.kind is JobFailureKind.TIMEOUT
        )
        _logger.warning(
            "outcome refused: the lease was lost",
            extra={
                "job_id": str(job.id),
                "job_type": job.job_type,
                "verdict": verdict,
                "is_timeout": is_timeout,
            },
        )
        self.let_go(outcome.execution)
