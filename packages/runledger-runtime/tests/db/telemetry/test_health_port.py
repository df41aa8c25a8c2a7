"""`runledger worker --health-port`, and the server beside a Supervisor, over a real database."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue
from runledger_postgres.jobs import enqueue_job
from runledger_runtime import JobCatalog
from runledger_runtime.health_server import HealthServer
from runledger_test_support import FaultProxy, ProxyMode

APP = """
import time
from runledger_runtime.catalog import JobCatalog

catalog = JobCatalog()

@catalog.job("quick")
def quick(context, payload):
    pass

@catalog.job("slow")
def slow(context, payload):
    print("slow began", flush=True)
    time.sleep(payload["seconds"])
"""
COMMAND = "from runledger_runtime.cli import main; main()"
WITHOUT_PROMETHEUS = "import sys; sys.modules['prometheus_client'] = None; " + COMMAND

Start = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    """Return a port that is free, as is the next."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.fixture
def start_worker(runledger_database, tmp_path) -> Iterator[Start]:
    (tmp_path / "shop.py").write_text(APP)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, command: str = COMMAND) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # our own interpreter and text
            [sys.executable, "-c", command, "worker", "--app", "shop:catalog", *arguments],
            cwd=tmp_path,
            env=os.environ | {"DATABASE_URL": runledger_database.dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def wait_until_started(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert any("end it with Ctrl-C or SIGTERM" in line for line in process.stderr)


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def problems(port: int, path: str = "/ready") -> tuple[int, list[Any]]:
    status, body = get(port, path)
    return status, json.loads(body)["problems"]


def test_worker_becomes_ready_and_tells_its_figures(start_worker, runledger_pool, eventually):
    port = free_port()
    process = start_worker("--health-port", str(port))
    wait_until_started(process)

    eventually(lambda: get(port, "/ready")[0] == 200)
    enqueue_job(runledger_pool, JobEnqueue("quick", {}))

    assert get(port, "/live") == (200, '{"status": "live", "problems": []}\n')
    counted = 'runledger_attempts_total{job_type="quick",outcome="succeeded"} 1.0'
    eventually(lambda: counted in get(port, "/metrics")[1])
    assert "runledger_queue_readable 1.0" in get(port, "/metrics")[1]


def test_draining_worker_is_live_but_not_ready(start_worker, runledger_pool, eventually):
    port = free_port()
    process = start_worker("--health-port", str(port))
    wait_until_started(process)
    eventually(lambda: get(port, "/ready")[0] == 200)
    enqueue_job(runledger_pool, JobEnqueue("slow", {"seconds": 5}))
    assert process.stdout is not None
    assert process.stdout.readline() == "slow began\n"

    process.terminate()

    eventually(lambda: get(port, "/ready")[0] == 503)
    status, found = problems(port)
    assert (status, found[0]) == (503, {"problem": "stopping"})
    assert get(port, "/live")[0] == 200
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_port_in_use_is_told_before_the_worker_starts(start_worker, runledger_pool):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = start_worker("--health-port", str(port))
        _, stderr = process.communicate(timeout=30)

    assert process.returncode == 1
    assert f"cannot listen on port {port} of 127.0.0.1: another process has it" in stderr
    assert "health.port_unavailable" in stderr
    assert "Traceback" not in stderr
    assert "end it with" not in stderr


def test_without_the_extra_metrics_say_what_to_install(start_worker, eventually):
    port = free_port()
    process = start_worker("--health-port", str(port), command=WITHOUT_PROMETHEUS)
    wait_until_started(process)

    assert get(port, "/metrics") == (
        404,
        "no metrics here: pip install 'runledger-runtime[prometheus]'\n",
    )
    eventually(lambda: get(port, "/ready")[0] == 200)


def test_idle_and_hostile_clients_do_not_keep_the_worker_from_working_or_ending(
    start_worker, runledger_pool, eventually
):
    port = free_port()
    process = start_worker("--health-port", str(port))
    wait_until_started(process)
    clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
    for client in clients[::2]:
        # The oldest have been cut off already.
        with suppress(OSError):
            client.sendall(b"GET /live HTTP/1.1\r\nX: " + b"x" * 1_000_000)

    enqueue_job(runledger_pool, JobEnqueue("quick", {}))
    counted = 'runledger_attempts_total{job_type="quick",outcome="succeeded"} 1.0'
    eventually(lambda: counted in get(port, "/metrics")[1])
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 0
    assert stderr.endswith("worker stopped\n")
    assert "Traceback" not in stderr
    for client in clients:
        client.close()


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_other_ports_are_wrong_usage(start_worker, port):
    process = start_worker("--health-port", port)
    _, stderr = process.communicate(timeout=30)

    assert process.returncode == 2
    assert "--health-port" in stderr


def test_processes_listen_on_ports_that_follow(start_worker, eventually):
    port = free_port()
    process = start_worker("--processes", "2", "--health-port", str(port))

    def is_ready(number: int) -> bool:
        with suppress(OSError):
            return get(port + number, "/ready")[0] == 200
        return False

    eventually(lambda: is_ready(0) and is_ready(1))
    process.terminate()
    process.communicate(timeout=30)

    assert process.returncode == 0


def test_supervisor_is_not_ready_while_its_database_is_away(
    runledger_database, start_supervisor, eventually
):
    catalog = JobCatalog()

    @catalog.job("test.plain")
    def plain(context, payload) -> None:
        del context, payload

    with (
        FaultProxy(runledger_database.dsn) as proxy,
        ConnectionPool(proxy.dsn, min_size=0, max_size=2, open=True) as pool,
    ):
        supervisor = start_supervisor(catalog, pool=pool, schedule_poll_interval_seconds=1)
        with HealthServer(supervisor, port=0) as server:
            eventually(lambda: get(server.port, "/ready")[0] == 200)

            proxy.set_mode(ProxyMode.REFUSE)
            proxy.sever()
            eventually(lambda: len(problems(server.port)[1]) == 3)
            status, found = problems(server.port)

            assert status == 503
            assert [problem["loop"] for problem in found] == ["worker", "scheduler", "reaper"]
            assert {problem["problem"] for problem in found} == {"the last pass failed"}
            assert runledger_database.name not in str(found)
            assert get(server.port, "/live")[0] == 200

            proxy.set_mode(ProxyMode.PASS)
            eventually(lambda: get(server.port, "/ready")[0] == 200)
            supervisor.shutdown_with_timeout(30)
