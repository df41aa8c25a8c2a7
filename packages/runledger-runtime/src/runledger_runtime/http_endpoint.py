"""A small HTTP server that costs little, whoever its clients are."""

from __future__ import annotations

import errno
import io
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, TypeAlias

from runledger_core import UnavailableError

from .safe_log import safe_logger

REQUEST_BYTES: Final = 16_384
"""The longest request, headers included, that is read."""
REQUEST_SECONDS: Final = 5.0
"""How long a client has to send its request, and again to take the answer."""
MOST_CONNECTIONS: Final = 32
"""How many connections are open at once; one more ends the oldest."""

_logger = safe_logger(__name__)

# Then the connection stays in the queue, and `accept` fails again at once.
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BACK_OFF_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent for a path."""

    status: HTTPStatus
    content_type: str
    body: bytes


Respond: TypeAlias = Callable[[str], Answer]
"""Returns the answer for a path, from any thread."""


class HttpEndpoint:
    """Answer GET and HEAD on one port, on daemon threads, one per connection."""

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        """Listen from now on.

        Args:
            port: 0 chooses a free one.

        Raises:
            UnavailableError: `health.port_unavailable`.
        """
        try:
            self._server = _Server(host, port, respond)
        except OSError as error:
            raise UnavailableError(
                "health.port_unavailable",
                f"cannot listen on port {port} of {host}: {_reason(error)}",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="runledger-health", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            self._server.server_close()
            raise

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Listen no longer; who is being answered still is."""
        if self._thread.is_alive():
            self._server.is_closing.set()
            # Wakes the thread, which would look for the request only now and then.
            _shut_down(self._server.socket)
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    # Two processes on one port would take turns in answering for each other.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Lock()
        # In the order in which they came.
        self._open: dict[socket.socket, None] = {}
        self.is_closing = threading.Event()
        self._is_short = False
        super().__init__((host, port), partial(_Handler, respond))

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the host's name.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().get_request()
        except OSError as error:
            if error.errno in _SHORTAGES:
                self._back_off(error)
            raise
        self._is_short = False
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                _shut_down(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _back_off(self, error: OSError) -> None:
        if not self._is_short:
            self._is_short = True
            _logger.warning(
                "no HTTP request is answered: %s; find what keeps so many open, or raise the"
                " limit of the process",
                _reason(error),
            )
        self.is_closing.wait(_BACK_OFF_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address
        error = sys.exception()
        # Clients that went away, or were sent away, are none of ours.
        if not isinstance(error, OSError):
            _logger.error("an HTTP request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server_version = "runledger"
    sys_version = ""

    def __init__(self, respond: Respond, *arguments: Any) -> None:
        # The base's handles the whole request.
        self._respond = respond
        super().__init__(*arguments)

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_RequestBytes(self.connection))

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base
        del format, args

    def _answer(self, *, has_body: bool) -> None:
        answer = self._respond(self.path.partition("?")[0])
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if has_body:
            self.wfile.write(answer.body)


class _RequestBytes(io.RawIOBase):
    """What a client sends: so much and no more, in its time and no longer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ends_at = time.monotonic() + REQUEST_SECONDS
        self._left = REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0 or self._left <= 0:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the request is too long")
        self._connection.settimeout(seconds)
        view = memoryview(buffer)[: self._left]
        count = self._connection.recv_into(view)
        self._left -= count
        return count


def _shut_down(connection: socket.socket) -> None:
    # The thread that waits for it sees an end.
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        _logger.debug("a connection had ended by itself")


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has it"
    if error.errno == errno.EACCES:
        return "it is not permitted"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or type(error).__name__
