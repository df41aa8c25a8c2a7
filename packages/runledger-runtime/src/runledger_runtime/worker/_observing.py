"""What observers are told of the attempts of one worker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from runledger_core import CancelReason, JobFailure, JobFailureKind
from runledger_postgres.errors import QueryError
from runledger_postgres.lifecycle import FailureOutcome, SuccessOutcome

from ..observers import (
    JobCompletionPersistenceOperation,
    JobCompletionPersistFailedEvent,
    JobFailedEvent,
    JobLeaseLostEvent,
    JobLifecycleObservers,
    JobRunningEvent,
    JobSucceededEvent,
    LifecycleDelivery,
    ObservedJob,
    disposition_of,
)
from ._attempt import SHUT_DOWN
from ._execution import Execution, Outcome

# The start of an attempt and its end have ten seconds each.
_FINISH_SECONDS: Final = 20.0
_LEASE_LOST_CODE: Final = "job.lease_owner_mismatch"


class Observing:
    """Makes events of what the pump does; made only where there are observers."""

    def __init__(self, observers: JobLifecycleObservers, *, concurrency: int) -> None:
        """Start nothing before the first event.

        Args:
            concurrency: How many handlers run at once, and so how many may end in one commit.
        """
        self._delivery = LifecycleDelivery(observers, burst=concurrency)

    def started(self, execution: Execution) -> None:
        """Tell that an attempt was claimed."""
        self._delivery.started(execution.job.lease, JobRunningEvent(_observed(execution)))

    def stored(self, outcome: Outcome, stored: SuccessOutcome | FailureOutcome) -> None:
        """Tell that an outcome is in the database."""
        execution, result = outcome.execution, outcome.result
        if isinstance(stored, SuccessOutcome):
            event = JobSucceededEvent(
                _observed(execution),
                _duration(execution),
                stored.progress_done,
                stored.progress_total,
            )
        elif isinstance(result, JobFailure):
            event = JobFailedEvent(
                _observed(execution, max_attempts=stored.max_attempts),
                _duration(execution),
                result,
                disposition_of(
                    stored.dead_letter_reason, stored.retry_delay_ms, stored.next_run_at
                ),
            )
        else:
            return
        self._delivery.ended(event, lease=execution.job.lease)

    def lost(self, execution: Execution) -> None:
        """Tell that an attempt ended whose outcome no longer counts."""
        match execution.cancel_reason:
            case CancelReason.CANCELED:
                code, message = _LEASE_LOST_CODE, "the job was canceled"
            case CancelReason.SHUTDOWN:
                code, message = SHUT_DOWN.code, SHUT_DOWN.message
            case _:
                code, message = _LEASE_LOST_CODE, "the lease was lost"
        failure = JobFailure(JobFailureKind.LEASE_EXPIRED, code, message)
        event = JobLeaseLostEvent(_observed(execution), _duration(execution), failure)
        self._delivery.ended(event, lease=execution.job.lease)

    def unstorable(self, outcome: Outcome, error: QueryError) -> None:
        """Tell that an outcome can never be stored."""
        is_failure = isinstance(outcome.result, JobFailure)
        event = JobCompletionPersistFailedEvent(
            _observed(outcome.execution),
            _duration(outcome.execution),
            JobCompletionPersistenceOperation.FAILURE
            if is_failure
            else JobCompletionPersistenceOperation.SUCCESS,
            str(error),
        )
        self._delivery.ended(event, lease=outcome.execution.job.lease)

    def hurry(self) -> None:
        """Let `finish` wait for a moment only: the process is about to end."""
        self._delivery.hurry()

    def finish(self) -> None:
        """Wait for the events that were handed over, twenty seconds at most."""
        self._delivery.finish(_FINISH_SECONDS)


def _observed(execution: Execution, *, max_attempts: int | None = None) -> ObservedJob:
    job = execution.job
    return ObservedJob(
        job.id,
        job.job_type,
        organization_id=job.organization_id,
        run_number=job.lease.run_number,
        attempt=job.lease.attempt,
        max_attempts=max_attempts or job.max_attempts,
        worker_id=job.lease.worker_id,
    )


def _duration(execution: Execution) -> timedelta:
    ended_at = execution.ended_at
    return timedelta(
        seconds=(time.monotonic() if ended_at is None else ended_at) - execution.started_at
    )
