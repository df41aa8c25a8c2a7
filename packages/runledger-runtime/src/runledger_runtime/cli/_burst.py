"""`runledger worker --burst`: end when nothing is left to do."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from runledger_core import RunledgerError
from runledger_postgres.lifecycle import has_open_work

from ..supervisor import Supervisor

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25


def stop_when_idle(supervisor: Supervisor, pool: ConnectionPool[Any], job_types: list[str]) -> None:
    """Ask the Supervisor to stop once nothing is due or running here.

    Retries and jobs that are due later are not waited for.
    """

    def look() -> None:
        while not supervisor.is_shutdown_requested:
            time.sleep(_LOOK_SECONDS)
            try:
                if not has_open_work(pool, job_types, worker_id=supervisor.worker_id):
                    supervisor.request_shutdown()
            except RunledgerError as error:
                # The loops say more about a database that is away.
                _logger.warning("cannot tell yet if work is left", extra={"code": error.code})

    threading.Thread(target=look, name="runledger-burst", daemon=True).start()
