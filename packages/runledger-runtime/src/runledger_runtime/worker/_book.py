"""The leases that this worker holds, by job."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final
from uuid import UUID

from runledger_core import CancelReason, JobLease

from ._execution import Execution

_MOST_ABANDONED: Final = 10_000


class LeaseBook:
    """Every execution from its claim until its outcome is acknowledged."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._executions: dict[UUID, Execution] = {}
        self._cancel_reason: CancelReason | None = None
        # Leases of ours that run out; finding one of them again must not start its job again.
        self._abandoned: deque[JobLease] = deque(maxlen=_MOST_ABANDONED)

    def __len__(self) -> int:
        """How many leases are held."""
        return len(self._executions)

    def add(self, execution: Execution) -> None:
        """Keep the lease of a claimed job alive from now on."""
        with self._lock:
            self._executions[execution.job.id] = execution
            reason = self._cancel_reason
        if reason is not None:
            execution.cancel(reason)

    def close(self, execution: Execution) -> None:
        """Let a lease go: stored, lost, or never to be stored."""
        execution.close()
        with self._lock:
            # A later claim of the same job by this worker has its own entry.
            if self._executions.get(execution.job.id) is execution:
                del self._executions[execution.job.id]

    def abandon(self, execution: Execution) -> None:
        """Let a lease run out: it is not renewed, and its job is not started again by us."""
        with self._lock:
            self._abandoned.append(execution.job.lease)
        self.close(execution)

    def leases(self) -> list[JobLease]:
        """Return every lease that is known here: held, or left to run out."""
        with self._lock:
            held = [execution.job.lease for execution in self._executions.values()]
            return [*held, *self._abandoned]

    def executions(self) -> list[Execution]:
        """Return those that are held now."""
        with self._lock:
            return list(self._executions.values())

    def find(self, job_id: UUID) -> Execution | None:
        """Return the execution of a job, if it is held."""
        with self._lock:
            return self._executions.get(job_id)

    def cancel_all(self, reason: CancelReason) -> None:
        """Tell every handler to stop, those that are yet to start included."""
        with self._lock:
            self._cancel_reason = reason
        for execution in self.executions():
            execution.cancel(reason)
