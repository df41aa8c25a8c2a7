"""`runledger worker --burst`: end when nothing is left to do."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from runledger_core import RunledgerError
from runledger_postgres.lifecycle import (
    ClaimRequest,
    find_claimable_jobs,
    find_due_jobs,
    has_open_work,
)

from ..safe_log import safe_logger
from ..supervisor import Supervisor
from ..worker import MOST_LEFT_OUT

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = safe_logger(__name__)

EXIT_JOBS_LEFT: Final = 75
_LOOK_SECONDS: Final = 0.25
# Between the end of a job and the call of its hook is a moment that no look can see.
_LOOKS: Final = 2


class Burst:
    """Looks for what is left to do, and ends the Supervisor once there is nothing that it can do.

    Retries and jobs that are due later are not waited for, nor are jobs whose claim the server
    refuses.
    """

    def __init__(
        self, supervisor: Supervisor, pool: ConnectionPool[Any], job_types: list[str]
    ) -> None:
        """Look for nothing yet."""
        self.jobs_left: str | None = None
        """What is due all the same, and why, as a sentence; None if nothing is."""
        self._supervisor = supervisor
        self._pool = pool
        self._job_types = job_types
        self._refused: set[UUID] = set()
        self._left: str | None = None

    def stop_when_idle(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._look, name="runledger-burst", daemon=True).start()

    def _look(self) -> None:
        looks = 0
        while not self._supervisor.is_shutdown_requested:
            time.sleep(_LOOK_SECONDS)
            try:
                looks = looks + 1 if self._is_idle() else 0
            except RunledgerError as error:
                looks = 0
                # The loops say more about a database that is away.
                _logger.warning("cannot tell yet if work is left", extra={"error_code": error.code})
            if looks == _LOOKS:
                self.jobs_left = self._left
                self._supervisor.request_shutdown()

    def _is_idle(self) -> bool:
        # After the look too: what ran during it may have made jobs.
        return not self._is_busy() and not self._has_work() and not self._is_busy()

    def _is_busy(self) -> bool:
        loops = self._supervisor.health().loops
        return any(loop.running_jobs or loop.has_hooks or loop.is_pausing for loop in loops)

    def _has_work(self) -> bool:
        worker_id = self._supervisor.worker_id
        self._left = None
        if not has_open_work(self._pool, self._job_types, worker_id=worker_id):
            return False
        left_out = [job for loop in self._supervisor.health().loops for job in loop.left_out_jobs]
        self._refused.update(left_out)
        # Without types: leases and schedules.
        if not left_out or has_open_work(self._pool, (), worker_id=worker_id):
            return True
        due = self._due_jobs()
        # None: somebody holds the rows.
        if len(left_out) < MOST_LEFT_OUT and not (due and due <= self._refused):
            return True
        self._left = _told(len(due))
        return False

    def _due_jobs(self) -> set[UUID]:
        request = ClaimRequest(
            self._supervisor.worker_id,
            self._job_types,
            limit=MOST_LEFT_OUT,
            window=MOST_LEFT_OUT,
            lease_ttl_seconds=1,
            flip_limit=MOST_LEFT_OUT,
        )
        ready = find_claimable_jobs(self._pool, request)
        return {*ready, *find_due_jobs(self._pool, request)}


def _told(count: int) -> str:
    number = f"{MOST_LEFT_OUT} or more" if count >= MOST_LEFT_OUT else str(count)
    return (
        f"jobs are left that are due: {number}; a trigger or a constraint of the database refuses"
        " their claim, and the log says of which jobs and with which code"
    )
