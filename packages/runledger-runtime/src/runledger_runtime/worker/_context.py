"""What a handler gets of its attempt: data, and services that end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import psycopg

from runledger_core import (
    UNSET,
    CancelReason,
    JobContext,
    JobProgressUpdate,
    JobStage,
    JobType,
    JsonInput,
    JsonValue,
    StepKey,
    Unset,
    WorkerId,
)
from runledger_postgres.jobs import insert_claim_log
from runledger_postgres.lifecycle import update_job_progress

from ..event_loop import refuse_on_event_loop
from ._execution import Execution, refuse_ended
from ._step_context import StepContext


@cache
def _job_type(name: str) -> JobType:
    # A worker runs the types of its registry, again and again.
    return JobType(name)


class WorkerJobContext(JobContext):
    """The context of an attempt that this worker runs."""

    def __init__(self, execution: Execution) -> None:
        """Take the job's data."""
        job = execution.job
        self._execution = execution
        self.job_id = job.id
        self.job_type = _job_type(job.job_type)
        self.run_number = job.lease.run_number
        self.attempt = job.lease.attempt
        self.max_attempts = job.max_attempts
        self.organization_id = job.organization_id
        self.worker_id = WorkerId(job.lease.worker_id)
        self.checkpoint = None if isinstance(job.checkpoint, Unset) else job.checkpoint
        self.deadline = datetime.now(UTC) + timedelta(seconds=max(1, job.timeout_seconds))
        self.trace_context = job.trace_context
        self.workflow_run_id = job.workflow_run_id
        self._step = (
            None
            if job.workflow_run_id is None
            else StepContext(job.id, execution.pool, refuse=self._refuse)
        )

    @property
    def step_key(self) -> StepKey | None:
        """The key of the step that the job is; see `JobContext.step_key`."""
        return None if self._step is None else self._step.step_key

    @property
    def prerequisite_outputs(self) -> Mapping[str, JsonValue]:
        """What the steps before it gave; see `JobContext.prerequisite_outputs`."""
        step = self._step
        return super().prerequisite_outputs if step is None else step.prerequisite_outputs

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the handler should stop."""
        return self._execution.cancelled

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the handler should stop; None while it should not."""
        return self._execution.cancel_reason

    def remaining(self) -> float:
        """Return the seconds left of this attempt's time, 0 if it is over."""
        return max(0.0, self._execution.deadline_at - time.monotonic())

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the handler should stop; see `JobContext.wait`."""
        refuse_on_event_loop()
        return super().wait(seconds)

    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        *,
        stage: JobStage | None = None,
        checkpoint: JsonInput | Unset = UNSET,
    ) -> None:
        """Store progress through the user's pool; see `JobContext.progress`."""
        self._refuse()
        update = JobProgressUpdate(done=done, total=total, stage=stage, checkpoint=checkpoint)
        update_job_progress(self._execution.pool, self._execution.job.lease, update)

    def log(self, level: str, message: str, /, **fields: JsonInput) -> None:
        """Add a line to the job's log through the user's pool; see `JobContext.log`."""
        self._refuse()
        insert_claim_log(
            self._execution.pool,
            self._execution.job.lease,
            level=level,
            message=message,
            payload=fields,
        )

    @contextmanager
    def connection(self) -> Generator[psycopg.Connection[Any]]:
        """Lend a connection of the user's pool; see `JobContext.connection`."""
        self._refuse()
        with self._execution.lend() as connection:
            yield connection

    def _refuse(self) -> None:
        refuse_on_event_loop()
        refuse_ended(self._execution)
