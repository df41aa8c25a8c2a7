"""One connection through the fault proxy, and where it is cut."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final

from runledger_core import UnavailableError

from ._frontend import QUERY, SYNC, FrontendStream
from .errors import WAIT_TIMEOUT

_CHUNK_BYTES: Final = 65_536
_UPSTREAM_END_SECONDS: Final = 10
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


class CutPoint(StrEnum):
    """Where a connection is cut."""

    BEFORE_FORWARD = "BEFORE_FORWARD"
    """The server never gets the statement, and its transaction is rolled back."""
    AFTER_FORWARD = "AFTER_FORWARD"
    """The server runs the statement, and the client never hears of it."""


class CommitTrap:
    """An armed cut; made by `FaultProxy.cut_at_commit`."""

    def __init__(self, point: CutPoint, statement: re.Pattern[str], occurrence: int) -> None:
        self.point = point
        self._statement = statement
        self._remaining = occurrence
        self._fired = threading.Event()

    @property
    def is_fired(self) -> bool:
        """Whether a connection was cut."""
        return self._fired.is_set()

    def wait(self, timeout_seconds: float = 10.0) -> None:
        """Wait until a connection was cut and the server is done with it.

        Raises:
            UnavailableError: `test_support.wait_timeout`.
        """
        if not self._fired.wait(timeout_seconds):
            raise UnavailableError(WAIT_TIMEOUT, f"no connection was cut in {timeout_seconds} s")

    def takes(self, statement: str) -> bool:
        """Count the statement if it fits; tell whether it is the one to cut at."""
        if self._statement.search(statement) is None:
            return False
        self._remaining -= 1
        return self._remaining == 0

    def fire(self) -> None:
        """Let `wait` return."""
        self._fired.set()


class Link:
    """A client's connection and ours to the server; belongs to the proxy's event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.task = asyncio.current_task()
        self._from_client, self._to_client = reader, writer
        self._stream = FrontendStream()
        self._trap: CommitTrap | None = None
        self._is_cut = False
        self._upstream_ended = asyncio.Event()

    async def forward(
        self,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        *,
        gate: Callable[[], Awaitable[None]],
        traps: list[CommitTrap],
    ) -> None:
        """Forward both directions until both have ended or one of them broke."""
        async with asyncio.TaskGroup() as directions:
            directions.create_task(self._upload(to_server, gate, traps))
            directions.create_task(self._download(from_server, gate))

    def reset(self) -> None:
        """End the client's connection with RST."""
        raw = self._to_client.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._to_client.transport.abort()

    def half_close(self) -> None:
        """End the direction to the client; it may go on sending."""
        self._to_client.write_eof()

    async def _upload(
        self,
        to_server: asyncio.StreamWriter,
        gate: Callable[[], Awaitable[None]],
        traps: list[CommitTrap],
    ) -> None:
        while not self._is_cut and (data := await self._from_client.read(_CHUNK_BYTES)):
            allowed = self._scan(data, traps)
            await gate()
            to_server.write(allowed)
            await to_server.drain()
        # An end of file lets the server finish what it got; a reset could make it drop that.
        to_server.write_eof()
        if self._trap is not None and self._is_cut:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._upstream_ended.wait(), _UPSTREAM_END_SECONDS)
            self.reset()
            self._trap.fire()

    async def _download(
        self, from_server: asyncio.StreamReader, gate: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            while data := await from_server.read(_CHUNK_BYTES):
                await gate()
                # From the trapped statement on, its answer could be among the bytes.
                if self._trap is None:
                    self._to_client.write(data)
                    await self._to_client.drain()
        except OSError:
            if not self._is_cut:
                raise
        finally:
            self._upstream_ended.set()
        if self._trap is None:
            self._to_client.write_eof()

    def _scan(self, data: bytes, traps: list[CommitTrap]) -> bytes:
        allowed: list[bytes] = []
        for message in self._stream.feed(data):
            if self._trap is None and message.statement is not None:
                self._trap = next((one for one in traps if one.takes(message.statement)), None)
                if self._trap is not None:
                    traps.remove(self._trap)
                    self._is_cut = self._trap.point is CutPoint.BEFORE_FORWARD
            if self._is_cut:
                break
            allowed.append(message.raw)
            # An extended statement is committed, at the latest, by the Sync that follows it.
            if self._trap is not None and message.kind in (QUERY, SYNC):
                self._is_cut = True
                break
        return b"".join(allowed)
