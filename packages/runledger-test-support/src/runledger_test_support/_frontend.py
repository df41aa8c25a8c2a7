"""What a PostgreSQL client says: its messages, and which statement each of them runs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LENGTH: Final = struct.Struct("!i")
_REQUEST: Final = struct.Struct("!ii")
_CODE_AT: Final = 8
_SSL_REQUEST: Final = 80_877_103
_GSS_REQUEST: Final = 80_877_104
_TLS_HANDSHAKE: Final = 0x16

QUERY: Final = b"Q"
SYNC: Final = b"S"
_PARSE, _BIND, _EXECUTE, _CLOSE = b"P", b"B", b"E", b"C"


@dataclass(frozen=True, slots=True)
class FrontendMessage:
    """One message as it came, and the SQL that it makes the server run, if any."""

    kind: bytes
    raw: bytes
    statement: str | None


class FrontendStream:
    """Splits the bytes of one client into messages.

    Prepared statements and portals are followed, so that an Execute is known by the text of its
    Parse, however long ago that was. Encrypted bytes come through as messages without a kind.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_started = False
        self._is_opaque = False
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def feed(self, data: bytes) -> Iterator[FrontendMessage]:
        """Yield the messages that are complete by now; the rest waits for more bytes."""
        self._rest += data
        while self._rest:
            if self._is_opaque or (not self._is_started and self._rest[0] == _TLS_HANDSHAKE):
                self._is_opaque = True
                size = len(self._rest)
            elif (size := self._message_size()) > len(self._rest):
                return
            elif size < _LENGTH.size:
                # No PostgreSQL client talks like this; let the server refuse it.
                self._is_opaque = True
                size = len(self._rest)
            raw, self._rest = self._rest[:size], self._rest[size:]
            yield self._read(raw)

    def _message_size(self) -> int:
        # Before the start-up message there is no type byte.
        at = 1 if self._is_started else 0
        if len(self._rest) < at + (_LENGTH.size if self._is_started else _CODE_AT):
            return len(self._rest) + 1
        size: int = _LENGTH.unpack_from(self._rest, at)[0]
        return at + size

    def _read(self, raw: bytes) -> FrontendMessage:
        if self._is_opaque:
            return FrontendMessage(b"", raw, None)
        if not self._is_started:
            code: int = _REQUEST.unpack_from(raw)[1]
            self._is_started = code not in (_SSL_REQUEST, _GSS_REQUEST)
            return FrontendMessage(b"", raw, None)
        kind = raw[:1]
        return FrontendMessage(kind, raw, self._statement(kind, raw[1 + _LENGTH.size :]))

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        if kind == QUERY:
            return _text(body.split(b"\0", 1)[0])
        if kind == _PARSE:
            name, text = body.split(b"\0", 2)[:2]
            self._statements[name] = _text(text)
        elif kind == _BIND:
            portal, name = body.split(b"\0", 2)[:2]
            self._portals[portal] = self._statements.get(name, "")
        elif kind == _EXECUTE:
            return self._portals.get(body.split(b"\0", 1)[0])
        elif kind == _CLOSE:
            known = self._statements if body[:1] == b"S" else self._portals
            known.pop(body[1:].split(b"\0", 1)[0], None)
        return None


def _text(encoded: bytes) -> str:
    return encoded.decode(errors="replace")
