"""The link of a loop that makes one pass after the other: its connection, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg_pool import ConnectionPool

from runledger_core import RunledgerError
from runledger_postgres.direct import Connection
from runledger_postgres.errors import classify_query_error

from .backoff import Outage
from .engine import EngineConnections, KeptConnection
from .errors import LoopExit, RuntimeLoopExit
from .failure_log import failure_fields
from .health import LoopHealth
from .safe_log import SafeLogger
from .shortage import ConnectionShortage
from .shutdown import StopToken

ResultT = TypeVar("ResultT")

_PASS_SECONDS: Final = 30.0


class LoopLink:
    """Runs passes on a connection of the loop's own; a failing database is waited for."""

    def __init__(
        self,
        # Any: a pool is taken whatever its connection class and row type.
        pool: ConnectionPool[Any],
        name: str,
        *,
        health: LoopHealth,
        logger: SafeLogger,
    ) -> None:
        """Open nothing yet.

        Args:
            name: Of the loop, and of its connection.
            health: Where failures are reported.
            logger: Where outages begin and end.
        """
        self._shortage = ConnectionShortage([name], health)
        self._connections = EngineConnections(pool, shortage=self._shortage)
        self._name = name
        self._health = health
        self._logger = logger
        self._outage = Outage()
        self._connection = KeptConnection(self._connections, name)

    def run(
        self,
        stop: StopToken,
        work: Callable[[Connection], ResultT],
        then: Callable[[ResultT], float],
    ) -> RuntimeLoopExit:
        """Make passes until asked to stop.

        Args:
            work: What a pass does in the database; it is given up after 30 seconds.
            then: What follows from its result; returns the seconds until the next pass.

        Returns:
            SHUTDOWN, or `TooFewConnections` if the server has had no room for the connection for
            the first minute.
        """
        while not stop.is_requested:
            seconds = self._pass(work, then)
            verdict = self._shortage.verdict
            if verdict is not None and not stop.is_requested:
                return verdict
            stop.wait(seconds)
        return LoopExit.SHUTDOWN

    def aside(self, work: Callable[[Connection], object]) -> None:
        """Do something beside the passes; if it fails, the next pass has a fresh connection."""
        try:
            self._on_connection(work)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._connections.close()

    def _pass(
        self, work: Callable[[Connection], ResultT], then: Callable[[ResultT], float]
    ) -> float:
        try:
            result = self._on_connection(work)
        except Exception as error:  # noqa: BLE001  # `configure` and callables of the user's, too
            return self._failed(error)
        failures = self._outage.ended()
        if failures:
            self._logger.info(f"the {self._name} goes on", extra={"failures": failures})  # noqa: G004  # its name
        return then(result)

    def _on_connection(self, work: Callable[[Connection], ResultT]) -> ResultT:
        with self._connection.use(_PASS_SECONDS) as connection:
            return work(connection)

    def _failed(self, error: Exception) -> float:
        is_of_driver = isinstance(error, psycopg.Error)
        self._health.failed(classify_query_error(error) if is_of_driver else error)
        # Whatever state it is in, a fresh one is better.
        self._connection.close()
        step = self._outage.failed()
        if step.is_worth_logging:
            self._logger.warning(
                f"the {self._name} waits for the database",  # noqa: G004  # its name
                extra=failure_fields(error) | {"failures": step.failures},
                exc_info=None if isinstance(error, (psycopg.Error, RunledgerError)) else error,
            )
        return step.delay_seconds
