"""A TCP proxy in front of PostgreSQL that misbehaves when told to.

One thread runs an event loop; every method returns when its change is in force.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Final, Self, TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runledger_core import UnavailableError

from ._link import CommitTrap, CutPoint, Link
from .errors import PROXY_CLOSED

_Result = TypeVar("_Result")

# END is also how blocks of procedural code end, so it counts only as the whole text.
COMMIT: Final = re.compile(r"(?:^|;)\s*COMMIT\b|^\s*END(?:\s+\w+)?\s*;?\s*$", re.IGNORECASE)


class ProxyMode(StrEnum):
    """What happens to connections and their bytes."""

    PASS = "PASS"  # noqa: S105  # Not a password.
    """Everything is forwarded."""
    REFUSE = "REFUSE"
    """New connections are refused; those that exist go on (`sever` ends them)."""
    RESET = "RESET"
    """New connections are accepted and reset; those that exist are reset at once."""
    BLACKHOLE = "BLACKHOLE"
    """New connections are accepted; nothing is forwarded until the mode changes, then all of it."""
    DELAY = "DELAY"
    """Everything is forwarded after a delay, once in each direction."""


class FaultProxy:
    """A proxy in front of the server of a connection string, for tests of faults.

    Statements are read from the client's messages: plain queries, and extended ones by the text
    that they were prepared with, in a pipeline too. That needs an unencrypted connection, which
    `dsn` asks for; everything else works with TLS as well::

        with FaultProxy(database.dsn) as proxy, connect_pool(proxy.dsn) as pool:
            trap = proxy.cut_at_commit(CutPoint.AFTER_FORWARD)
    """

    def __init__(self, dsn: str) -> None:
        parameters = conninfo_to_dict(dsn)
        self._host = str(parameters.get("hostaddr") or parameters.get("host") or "127.0.0.1")
        self._port = int(parameters.get("port") or 5432)
        self._mode = ProxyMode.PASS
        self._delay_seconds = 0.0
        self._links: set[Link] = set()
        self._traps: list[CommitTrap] = []
        self._is_closed = False
        self._open_gate = asyncio.Event()
        self._socket = _bound_socket(0)
        self._server: asyncio.Server | None = None
        self.port: int = self._socket.getsockname()[1]
        self.dsn: str = make_conninfo(
            dsn,
            host="127.0.0.1",
            hostaddr="127.0.0.1",
            port=self.port,
            sslmode="disable",
            gssencmode="disable",
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="runledger-fault-proxy", daemon=True
        )
        self._thread.start()
        self._call(self._apply(ProxyMode.PASS, 0.0))

    @property
    def mode(self) -> ProxyMode:
        """The present mode."""
        return self._mode

    def set_mode(self, mode: ProxyMode, *, delay_seconds: float = 0.1) -> None:
        """Change what happens to connections.

        Args:
            mode: From now on.
            delay_seconds: Of `ProxyMode.DELAY`, 0 or more.

        Raises:
            UnavailableError: `test_support.proxy_closed`.
        """
        self._call(self._apply(mode, delay_seconds))

    def sever(self) -> None:
        """Reset every present connection; the server sees an end of file.

        Raises:
            UnavailableError: `test_support.proxy_closed`.
        """
        self._call(self._sever())

    def half_close(self) -> None:
        """End the direction from the server to the client on every present connection.

        Raises:
            UnavailableError: `test_support.proxy_closed`.
        """
        self._call(self._half_close())

    def cut_at_commit(
        self,
        point: CutPoint,
        *,
        statement: re.Pattern[str] = COMMIT,
        occurrence: int = 1,
    ) -> CommitTrap:
        """Cut the connection that next commits, once.

        The client's connection is reset when the server is done with its own end: what the server
        decided can be read as soon as the client has its error. Messages that the client sent
        behind the statement, before the next Sync, reach the server as well.

        Args:
            point: Whether the server gets the statement.
            statement: Cut at another statement than COMMIT or END; searched in its text.
            occurrence: Which one, counted over all connections, from 1.

        Raises:
            UnavailableError: `test_support.proxy_closed`.
        """
        trap = CommitTrap(point, statement, occurrence)
        self._call(self._arm(trap))
        return trap

    def close(self) -> None:
        """End every connection and the thread; nothing if already done."""
        if self._is_closed:
            return
        self._call(self._shut_down())
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Coroutine[object, object, _Result]) -> _Result:
        if self._is_closed:
            work.close()
            raise UnavailableError(PROXY_CLOSED, "the proxy is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _apply(self, mode: ProxyMode, delay_seconds: float) -> None:
        self._mode, self._delay_seconds = mode, delay_seconds
        if mode is ProxyMode.BLACKHOLE:
            self._open_gate.clear()
        else:
            self._open_gate.set()
        if mode is ProxyMode.REFUSE and self._server is not None:
            self._server.close()
            self._server = None
            # Bound without listening: connections are refused, and nobody else gets the port.
            self._socket = _bound_socket(self.port)
        elif mode is not ProxyMode.REFUSE and self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._socket)
        if mode is ProxyMode.RESET:
            await self._sever()

    async def _sever(self) -> None:
        tasks = [link.task for link in self._links if link.task is not None]
        for link in self._links:
            link.reset()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _half_close(self) -> None:
        for link in self._links:
            link.half_close()

    async def _arm(self, trap: CommitTrap) -> None:
        self._traps.append(trap)

    async def _shut_down(self) -> None:
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
        await self._sever()
        await self._loop.shutdown_default_executor()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        if self._mode is ProxyMode.RESET:
            link.reset()
            return
        self._links.add(link)
        try:
            await self._serve_link(link)
        except* OSError:
            # The server is gone or the client reset us: what one side sees, the other shall see.
            link.reset()
        except* asyncio.CancelledError:
            # Our own: severed or closing.
            pass
        finally:
            self._links.discard(link)
            writer.close()

    async def _serve_link(self, link: Link) -> None:
        await self._pass()
        from_server, to_server = await self._connect()
        try:
            await link.forward(from_server, to_server, gate=self._pass, traps=self._traps)
        finally:
            to_server.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pass(self) -> None:
        await self._open_gate.wait()
        if self._mode is ProxyMode.DELAY:
            await asyncio.sleep(self._delay_seconds)


__all__ = ["COMMIT", "CommitTrap", "CutPoint", "FaultProxy", "ProxyMode"]


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
