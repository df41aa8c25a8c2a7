from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from queue import SimpleQueue
from socketserver import TCPServer
from typing import Any

import pytest

from runledger_core import UnavailableError
from runledger_runtime import http_endpoint
from runledger_runtime.http_endpoint import Answer, HttpEndpoint

from .._descriptors import no_descriptor_to_be_had

TIMEOUT = 30


@pytest.fixture
def endpoint() -> Iterator[HttpEndpoint]:
    def respond(path: str) -> Answer:
        if path == "/broken":
            raise LookupError(path)
        return Answer(HTTPStatus.OK, "text/plain", path.encode())

    endpoint = HttpEndpoint("127.0.0.1", 0, respond)
    yield endpoint
    endpoint.close()


def connect(endpoint: HttpEndpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", endpoint.port), timeout=TIMEOUT)


def get(endpoint: HttpEndpoint, path: str = "/live", *, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=TIMEOUT)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "process_request" in thread.name]


def everything(client: socket.socket) -> bytes:
    received = b""
    # What the server had not read is no orderly end.
    with suppress(ConnectionError):
        while piece := client.recv(65_536):
            received += piece
    return received


def test_query_is_no_part_of_the_path(endpoint):
    assert get(endpoint, "/live?verbose=1") == (200, b"/live")


def test_head_has_no_body(endpoint):
    assert get(endpoint, method="HEAD") == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_other_methods_are_refused(endpoint, method):
    assert get(endpoint, method=method)[0] == HTTPStatus.NOT_IMPLEMENTED


def test_answer_does_not_name_the_interpreter(endpoint):
    with connect(endpoint) as client:
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        answer = everything(client)

    assert b"Server: runledger" in answer
    assert b"Python" not in answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"GET /live HTTP/9.9\r\n\r\n",
        b"GET /live HTTP/1.0\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        pytest.param(b"x" * 1_000_000, id="a line of a megabyte"),
        pytest.param(b"GET /live HTTP/1.1\r\nX: " + b"x" * 1_000_000, id="a header of a megabyte"),
        pytest.param(
            b"GET /live HTTP/1.1\r\n" + b"X: xxxxxxxx\r\n" * 80_000, id="headers of a megabyte"
        ),
    ],
)
def test_malformed_request_ends_its_connection_and_nothing_else(endpoint, request_bytes):
    with connect(endpoint) as client:
        # It may be cut off while sending.
        with suppress(OSError):
            client.sendall(request_bytes)
            client.shutdown(socket.SHUT_WR)
        everything(client)

    assert get(endpoint) == (200, b"/live")


def test_request_that_is_too_long_is_not_answered(endpoint):
    # Neither too many headers for the standard library, nor one that is too long for it.
    headers = b"X: " + b"x" * 60_000 + b"\r\n"
    with connect(endpoint) as client:
        with suppress(ConnectionError):
            client.sendall(b"GET /live HTTP/1.1\r\n" + headers * 50 + b"\r\n")

        assert everything(client) == b""


def test_error_while_answering_ends_that_connection_only(endpoint, caplog):
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        get(endpoint, "/broken")

    assert get(endpoint) == (200, b"/live")
    assert [record.message for record in caplog.records] == ["an HTTP request failed"]


def test_probe_is_answered_while_two_hundred_connections_are_idle(endpoint, monkeypatch):
    # None of them ends by itself.
    monkeypatch.setattr(http_endpoint, "REQUEST_SECONDS", 10_000)
    ends_at = time.monotonic() + TIMEOUT
    with ExitStack() as clients:
        for _ in range(200):
            clients.enter_context(connect(endpoint))

        assert get(endpoint) == (200, b"/live")
        # The threads of those that were cut off end soon.
        while len(handler_threads()) > http_endpoint.MOST_CONNECTIONS:
            assert time.monotonic() < ends_at
            time.sleep(0.01)


def test_oldest_of_too_many_connections_is_ended(endpoint, monkeypatch):
    monkeypatch.setattr(http_endpoint, "REQUEST_SECONDS", 10_000)
    with ExitStack() as clients:
        oldest = clients.enter_context(connect(endpoint))
        for _ in range(http_endpoint.MOST_CONNECTIONS):
            clients.enter_context(connect(endpoint))

        assert everything(oldest) == b""


def test_silent_client_is_cut_off(monkeypatch):
    monkeypatch.setattr(http_endpoint, "REQUEST_SECONDS", 0.1)
    endpoint = HttpEndpoint("127.0.0.1", 0, lambda _: Answer(HTTPStatus.OK, "text/plain", b""))

    with connect(endpoint) as client:
        assert everything(client) == b""

    endpoint.close()


def test_client_that_sends_a_byte_now_and_then_is_cut_off(monkeypatch):
    monkeypatch.setattr(http_endpoint, "REQUEST_SECONDS", 0.5)
    endpoint = HttpEndpoint("127.0.0.1", 0, lambda _: Answer(HTTPStatus.OK, "text/plain", b""))
    pause = threading.Event()
    ends_at = time.monotonic() + TIMEOUT

    with connect(endpoint) as client, suppress(ConnectionError):
        while time.monotonic() < ends_at:
            client.sendall(b"x")
            pause.wait(0.05)

    assert time.monotonic() < ends_at
    endpoint.close()


def test_client_that_takes_no_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(http_endpoint, "REQUEST_SECONDS", 0.2)
    body = b"x" * 50_000_000
    endpoint = HttpEndpoint("127.0.0.1", 0, lambda _: Answer(HTTPStatus.OK, "text/plain", body))

    with connect(endpoint) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.recv(1)
        for handler in handler_threads():
            handler.join(TIMEOUT)
        assert not handler_threads()

    endpoint.close()


@contextmanager
def client_without_a_descriptor(endpoint: HttpEndpoint) -> Iterator[socket.socket]:
    """Connect a client that cannot be accepted, since the process can open no more files."""
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        with no_descriptor_to_be_had():
            client.connect(("127.0.0.1", endpoint.port))
            yield client


@pytest.fixture
def accepts(monkeypatch) -> SimpleQueue[float]:
    """When the endpoint tried to accept a connection."""
    tried_at: SimpleQueue[float] = SimpleQueue()
    accept = TCPServer.get_request

    def note(server: TCPServer) -> Any:
        tried_at.put(time.monotonic())
        return accept(server)

    monkeypatch.setattr(TCPServer, "get_request", note)
    return tried_at


def test_endpoint_without_descriptors_waits_a_moment_before_it_tries_again(
    endpoint, accepts, caplog
):
    with client_without_a_descriptor(endpoint):
        first, second, third = (accepts.get(timeout=TIMEOUT) for _ in range(3))

    assert second - first >= 0.1
    assert third - second >= 0.1
    (message,) = caplog.messages
    assert message.startswith("no HTTP request is answered: Too many open files")


def test_client_that_waited_for_a_descriptor_is_answered_when_there_is_one(endpoint, accepts):
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        with no_descriptor_to_be_had():
            client.connect(("127.0.0.1", endpoint.port))
            accepts.get(timeout=TIMEOUT)
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")

        assert everything(client).endswith(b"/live")


def test_endpoint_that_waits_for_descriptors_is_closed_at_once(monkeypatch, endpoint, accepts):
    monkeypatch.setattr(http_endpoint, "_BACK_OFF_SECONDS", 8)
    with client_without_a_descriptor(endpoint):
        accepts.get(timeout=TIMEOUT)
        began_at = time.monotonic()

        endpoint.close()

    assert time.monotonic() - began_at < 4


def test_port_in_use_is_refused_by_name(endpoint):
    with pytest.raises(UnavailableError) as caught:
        HttpEndpoint("127.0.0.1", endpoint.port, lambda _: Answer(HTTPStatus.OK, "", b""))

    assert caught.value.code == "health.port_unavailable"
    assert caught.value.client_message == (
        f"cannot listen on port {endpoint.port} of 127.0.0.1: another process has it"
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_address_of_another_machine_is_refused(host):
    with pytest.raises(UnavailableError, match="this machine has no such address"):
        HttpEndpoint(host, 0, lambda _: Answer(HTTPStatus.OK, "", b""))


def test_closed_endpoint_frees_its_port(endpoint):
    port = endpoint.port
    get(endpoint)
    endpoint.close()

    again = HttpEndpoint("127.0.0.1", port, lambda _: Answer(HTTPStatus.OK, "", b""))

    assert again.port == port
    again.close()


OPEN_ENDPOINT = """
import socket
import threading
import time
from http import HTTPStatus
from runledger_runtime import http_endpoint
from runledger_runtime.http_endpoint import Answer, HttpEndpoint

http_endpoint.REQUEST_SECONDS = 10_000
endpoint = HttpEndpoint("127.0.0.1", 0, lambda _: Answer(HTTPStatus.OK, "", b""))
idle = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(20)]
# Each has been accepted, and is waited for by a thread.
while threading.active_count() < 22:
    time.sleep(0.01)
print("ending", flush=True)
"""


def test_open_connections_do_not_keep_the_process_from_ending():
    ended = subprocess.run(
        [sys.executable, "-c", OPEN_ENDPOINT],
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == ("ending\n", "")
