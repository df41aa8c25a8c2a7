"""The pump: one thread that stores every outcome that has gathered and claims what fits.

Each round is one transaction in one trip. While a round is in flight more outcomes gather, so
commits are shared under load and a lone job waits for nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from runledger_core import JobFailure
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import ClaimedJob, ClaimRequest, RoundResult, UndecodableJob

from ..config import JobsConfig
from ..dead_letters import DeadLetterHooks
from ..errors import TooManyStuckHandlers
from ..health import LoopHealth
from ..registry import JobRegistry
from ..safe_log import safe_logger
from ..shutdown import StopToken
from ._attempt import SHUT_DOWN
from ._book import LeaseBook
from ._claim_planner import ClaimPlanner
from ._execution import Ending, Execution, ExecutionState, Outcome
from ._link import PumpLink
from ._observing import Observing
from ._refused_claims import RefusedPart
from ._returned_claims import ReturnedClaims
from ._settling import Batch, Settling, Unsettled
from ._sleep import Sleep
from ._slots import HandlerSlots
from ._waiting_outcomes import WaitingOutcomes

_logger = safe_logger(__name__)

# Data, integrity, limits of the program, raised by a trigger: another try would fail as well.
_CLASSES_OF_DATA: Final = frozenset({"22", "23", "54", "P0"})
# Of the run that the job belongs to, or of a trigger that keeps its rows back.
_CODES_OF_RUNS: Final = frozenset({"workflow.internal_state", "db.rows_kept_back"})
# Far less than a commit; a job that runs alone does not wait at all.
_LINGER_SECONDS: Final = 0.0003
_TOO_MANY_STUCK: Final = "too many handlers, or calls of theirs in threads, are stuck"


class Pump:
    """Runs rounds until it is asked to stop and everything it held is stored."""

    def __init__(
        self,
        config: JobsConfig,
        registry: JobRegistry,
        *,
        stop: StopToken,
        book: LeaseBook,
        link: PumpLink,
        sleep: Sleep,
        hooks: DeadLetterHooks,
        observing: Observing | None = None,
        health: LoopHealth,
    ) -> None:
        """Wire the parts; nothing runs yet."""
        self._config = config
        self._registry = registry
        self._job_types = registry.registered_types()
        self._stop = stop
        self._book = book
        self._link = link
        self._sleep = sleep
        self._health = health
        self._hooks = hooks
        self._settling = Settling(registry, book, on_dead_letter=hooks.submit, observing=observing)
        self._waiting = WaitingOutcomes()
        self._returned = ReturnedClaims(link, self._settling)
        health.pauses(self._returned.is_pausing)
        self._slots = HandlerSlots(self.deliver)
        self._wake = threading.Event()
        self._delivered: deque[tuple[Execution, Ending, Outcome | None]] = deque()
        self._running = 0
        # Handlers whose attempts were given up, and calls of theirs in threads, while they go on.
        self._stuck = 0
        self._stuck_calls = registry.event_loop.count_stuck_calls(
            config.handler_grace_seconds, on_change=self._wake.set
        )
        self._claims = ClaimPlanner(
            link.worker_id,
            self._job_types,
            lease_ttl_seconds=config.lease_ttl_seconds,
            poll_interval_seconds=config.poll_interval_ms / 1000,
        )
        stop.add_callback(self.wake)

    @property
    def verdict(self) -> TooManyStuckHandlers | None:
        """Why the worker ended by itself; None if it did not."""
        if not self.is_unhealthy:
            return None
        return TooManyStuckHandlers(self._stuck, self._config.max_stuck_handlers)

    @property
    def is_unhealthy(self) -> bool:
        """Whether so many threads are stuck that the process should be restarted."""
        return self._stuck > self._config.max_stuck_handlers

    def deliver(self, execution: Execution, ending: Ending, outcome: Outcome | None) -> None:
        """Take the end of an execution, from any thread."""
        self._delivered.append((execution, ending, outcome))
        # Setting takes a lock. While it is set the pump has yet to clear it, and then gathers.
        if not self._wake.is_set():
            self._wake.set()

    def wake(self) -> None:
        """Look at the queue now, from any thread."""
        self._sleep.end()
        self._wake.set()

    def run(self) -> None:
        """Run rounds until stopped and drained, or until too many handlers are stuck."""
        try:
            while True:
                self._wake.clear()
                self._gather()
                self._linger()
                if self._is_ending and self._is_drained:
                    return
                self._wake.wait(self._step())
        finally:
            self._sleep.close()
            self._slots.stop()
            self._registry.event_loop.stop_counting(self._stuck_calls)
            self._link.close()
            self._hooks.finish()

    @property
    def _is_ending(self) -> bool:
        return self._stop.is_requested or self.is_unhealthy

    @property
    def _is_drained(self) -> bool:
        return not self._book and not self._link.has_unanswered_claim()

    def _gather(self) -> None:
        if change := self._stuck_calls.take_change():
            self._count_stuck(change)
        while self._delivered:
            execution, ending, outcome = self._delivered.popleft()
            # Either of these two may come first; together they are nothing.
            if ending is Ending.RETURNED_LATE:
                self._count_stuck(-1)
                continue
            self._running -= 1
            if ending is Ending.GIVEN_UP:
                self._count_stuck(1)
            if outcome is None:
                self._settling.let_go(execution)
            elif not self._returned.take(outcome):
                self._waiting.add([outcome])

    def _linger(self) -> None:
        """Let handlers that are about to end share this round's commit."""
        gathered = 0
        while self._running and self._waiting.fresh > gathered:
            gathered = self._waiting.fresh
            time.sleep(_LINGER_SECONDS)
            self._gather()

    def _count_stuck(self, change: int) -> None:
        was_unhealthy = self.is_unhealthy
        self._stuck += change
        self._health.stuck_handlers_changed(self._stuck)
        if self.is_unhealthy and not was_unhealthy:
            _logger.critical(
                "the worker ends: %s",
                _TOO_MANY_STUCK,
                extra={"stuck": self._stuck, "max_stuck_handlers": self._config.max_stuck_handlers},
            )
        self._health.unhealthy(_TOO_MANY_STUCK if self.is_unhealthy else None)

    def _step(self) -> float:
        """Run one round if there is anything to do; return how long to wait for more."""
        if self._link.is_down():
            return self._link.seconds_until_retry()
        # Before busy outcomes are taken: their rows may be held still.
        limit = self._claimable()
        outcomes = self._waiting.take_round()
        alone: list[Outcome] = []
        if outcomes and self._link.is_recovering():
            # What has ended must not wait for a claim that breaks the connection once more.
            limit = 0
        is_due = limit > 0 and self._sleep.is_over()
        try:
            if self._link.has_unknown_claims():
                self._start(*self._link.find_claims(self._book))
            if refused := self._waiting.take_refused():
                self._store_apart(self._settling.batch(refused))
            if outcomes or is_due:
                self._round(outcomes, limit)
            if alone := self._waiting.take_alone():
                self._store_alone(alone)
            # After what has ended: a result that is lost is work done twice.
            self._waiting.add(self._returned.give_back())
        except QueryError as error:
            self._recover(error, [*outcomes, *alone])
            return self._link.seconds_until_retry()
        if not self._waiting.has_refused:
            self._health.passed(backlog=len(self._waiting) + len(self._returned))
        return self._wait_seconds()

    def _store_alone(self, outcomes: Sequence[Outcome]) -> None:
        began = time.monotonic()
        try:
            self._round(outcomes, 0)
        except QueryError:
            self._waiting.rest_alone(time.monotonic() - began)
            raise

    def _claimable(self) -> int:
        if self._is_ending or not self._job_types or self._returned.is_pausing():
            return 0
        # A slot is free once its outcome is in this round; a busy outcome keeps its own.
        used = self._running + self._waiting.kept_slots + len(self._returned)
        free = self._config.max_global_concurrency - used
        # Fewer at once, if so many take longer than a round may.
        most = max(1, self._config.claim_batch_size >> self._link.claim_cut_offs)
        return max(0, min(free, most))

    def _round(self, outcomes: Sequence[Outcome], limit: int) -> None:
        batch = self._settling.batch(outcomes)
        claim = self._claims.request(limit, now=time.monotonic()) if limit > 0 else None
        try:
            result = self._link.round(batch, claim)
        except QueryError as error:
            refused = self._claims.refused
            if outcomes or claim is None or refused.is_full or not _is_of_data(error):
                raise
            self._leave_out(claim, refused.after_refusal(claim), error)
            return
        left = self._settle(batch, result)
        claimed = len(result.claimed) + len(result.undecodable)
        if claim is not None:
            report = self._claims.report(claim, result, now=time.monotonic())
            self._start(result.claimed, result.undecodable)
            self._sleep.after_claim(report)
            self._leave_out(claim, self._claims.refused.after_claim())
        if claimed or len(left.busy) < len(outcomes):
            self._waiting.rested()
        elif outcomes and self._running:
            # Others are about to end: what they bring must not wait for these rows.
            self._waiting.rest()
        elif outcomes:
            self._wait_for_busy()

    def _leave_out(
        self, claim: ClaimRequest, part: RefusedPart | None, error: QueryError | None = None
    ) -> None:
        """Leave out what this part of a claim for one job would change."""
        refused, now = self._claims.refused, time.monotonic()
        if part is not None:
            for job_id in self._link.find_refused(claim, part):
                refused.leave_out(job_id, now)
                _logger.error(
                    "a job cannot be claimed; it is left out for a while",
                    extra={
                        "job_id": str(job_id),
                        "error_code": None if error is None else error.code,
                    },
                )
        self._health.jobs_left_out(refused.left_out(now))

    def _wait_for_busy(self) -> None:
        """Wait for the first row, then let all of them rest: pure skipping would spin."""
        batch = self._settling.batch(self._waiting.choose_busy())
        result = self._link.waiting_round(batch)
        # Only now: if the round fails they still wait, and come again.
        self._waiting.remove_busy(batch.outcomes)
        self._settle(batch, result)
        self._waiting.rest()

    def _settle(self, batch: Batch, result: RoundResult) -> Unsettled:
        """Settle what a round has answered; what it has left waits again."""
        left = self._settling.settle(batch, result.successes, result.failures)
        self._waiting.add(left.changed)
        self._waiting.put_busy(left.busy)
        return left

    def _start(self, claimed: Sequence[ClaimedJob], undecodable: Sequence[UndecodableJob]) -> None:
        for entry in undecodable:
            # Kept, and its lease with it, as the outcome of any other attempt.
            self._waiting.add([self._unentered(entry.job, entry.failure)])
        for job in claimed:
            if self._is_ending:
                self._returned.take(self._unentered(job, SHUT_DOWN))
                continue
            handler = self._registry.get(job.job_type)
            execution = self._link.execution(job)
            self._settling.begin(execution)
            self._running += 1
            if handler is None:
                failure = JobFailure.terminal(
                    "job.handler_not_registered", "no handler is registered for this type"
                )
                execution.end()
                self.deliver(execution, Ending.RETURNED, Outcome(execution, failure))
            else:
                self._slots.start(execution, handler.execute)

    def _unentered(self, job: ClaimedJob, failure: JobFailure) -> Outcome:
        """Hold the lease of a job whose handler is not entered, and return its outcome."""
        execution = self._link.execution(job, is_reported=False)
        execution.end()
        self._book.add(execution)
        return Outcome(execution, failure)

    def _recover(self, error: QueryError, outcomes: Sequence[Outcome]) -> None:
        self._health.failed(error)
        # What was settled before the error is closed; what was not comes again.
        unsettled = [
            outcome
            for outcome in self._waiting.find_missing(outcomes)
            if outcome.execution.state is ExecutionState.ENDED
        ]
        if error.is_transient or not unsettled:
            self._waiting.add(unsettled)
            self._link.lost(error)
            return
        _logger.error("a round was refused", extra={"error_code": error.code})
        self._store_apart(self._settling.batch(unsettled))

    def _store_apart(self, batch: Batch) -> None:
        """Store without claims, halves first, to find the outcome that cannot be stored."""
        try:
            result = self._link.round(batch, None)
        except QueryError as error:
            if error.is_transient:
                self._waiting.add(batch.outcomes)
                self._link.lost(error)
            elif len(batch.outcomes) > 1:
                for half in batch.halves(self._settling.batch):
                    self._store_apart(half)
            else:
                self._replace(batch.outcomes[0], error)
            return
        self._settle(batch, result)

    def _replace(self, outcome: Outcome, error: QueryError) -> None:
        self._health.failed(error)
        if error.code in _CODES_OF_RUNS or not _is_of_data(error):
            # The run's fault, the server's or the role's: stored once that is mended.
            self._waiting.put_refused(outcome, error)
            return
        invalid = JobFailure.terminal("job.invalid_output", "the outcome cannot be stored")
        if outcome.result == invalid:
            self._settling.give_up(outcome, error)
        else:
            self._waiting.add([Outcome(outcome.execution, invalid)])

    def _wait_seconds(self) -> float:
        if self._delivered or (self._is_ending and self._is_drained):
            return 0.0
        waits = [self._config.poll_interval_ms / 1000]
        if (left := self._waiting.seconds_until_next()) is not None:
            waits.append(left)
        if (rest := self._returned.seconds_of_pause()) > 0:
            waits.append(rest)
        if (left := self._returned.seconds_until_next()) is not None:
            waits.append(left)
        if self._claimable() > 0:
            waits.append(self._sleep.seconds_left())
        return min(waits)


def _is_of_data(error: QueryError) -> bool:
    is_of_data = error.sqlstate is None or error.sqlstate[:2] in _CLASSES_OF_DATA
    return is_of_data and not error.is_transient
