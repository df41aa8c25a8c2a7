from __future__ import annotations

import gc
import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

from runledger_core import RunledgerError, ValidationError
from runledger_runtime.health import LoopHealth, LoopState, SupervisorHealth
from runledger_runtime.health_server import HealthServer
from runledger_runtime.http_endpoint import Answer

INSTALL = b"no metrics here: pip install 'runledger-runtime[prometheus]'\n"


class FakeSupervisor:
    """Tells the health that a test wants."""

    def __init__(self) -> None:
        self.loops = {name: LoopHealth(name) for name in ("worker", "reaper")}
        self.states = dict.fromkeys(self.loops, LoopState.RUNNING)
        self.is_stopping = False

    def health(self) -> SupervisorHealth:
        return SupervisorHealth(
            tuple(loop.status(self.states[name]) for name, loop in self.loops.items()),
            self.is_stopping,
        )


@pytest.fixture
def supervisor() -> Any:
    supervisor = FakeSupervisor()
    for loop in supervisor.loops.values():
        loop.passed()
    return supervisor


@pytest.fixture
def server(supervisor: Any) -> Iterator[HealthServer]:
    with HealthServer(supervisor, port=0) as server:
        yield server


def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def ask(server: HealthServer, path: str) -> tuple[int, str, list[Any]]:
    status, body = get(server, path)
    answer = json.loads(body)
    assert list(answer) == ["status", "problems"]
    return status, answer["status"], answer["problems"]


def test_process_whose_loops_pass_is_live_and_ready(server):
    assert ask(server, "/live") == (200, "live", [])
    assert ask(server, "/ready") == (200, "ready", [])


def test_process_without_a_supervisor_yet_is_live_but_not_ready(supervisor):
    with HealthServer(None, port=0) as server:
        assert ask(server, "/live") == (200, "live", [])
        assert ask(server, "/ready") == (503, "not ready", [{"problem": "starting"}])

        server.watch(supervisor)

        assert ask(server, "/ready") == (200, "ready", [])


def test_dropped_supervisor_is_not_kept_alive_and_neither_live_nor_ready():
    supervisor: Any = FakeSupervisor()
    with HealthServer(supervisor, port=0) as server:
        del supervisor
        gc.collect()

        gone = [{"problem": "the supervisor is gone"}]
        assert ask(server, "/live") == (503, "not live", gone)
        assert ask(server, "/ready") == (503, "not ready", gone)


@pytest.mark.parametrize("state", [LoopState.FAILED, LoopState.ABANDONED])
def test_loop_that_ended_badly_is_named(server, supervisor, state):
    supervisor.states["reaper"] = state

    problems = [{"loop": "reaper", "problem": f"the loop is {state.lower()}"}]
    assert ask(server, "/live") == (503, "not live", problems)
    assert ask(server, "/ready") == (503, "not ready", problems)


def test_unhealthy_loop_is_named_with_its_reason(server, supervisor):
    supervisor.loops["worker"].unhealthy("too many handlers ignore their cancel token")

    problems = [{"loop": "worker", "problem": "too many handlers ignore their cancel token"}]
    assert ask(server, "/live") == (503, "not live", problems)
    assert ask(server, "/ready") == (503, "not ready", problems)


def test_draining_process_is_live_but_not_ready(server, supervisor):
    supervisor.is_stopping = True
    supervisor.states["reaper"] = LoopState.STOPPED

    assert ask(server, "/live") == (200, "live", [])
    assert ask(server, "/ready") == (
        503,
        "not ready",
        [{"problem": "stopping"}, {"loop": "reaper", "problem": "the loop is stopped"}],
    )


def test_loop_that_has_not_passed_yet_is_not_ready(server, supervisor):
    supervisor.loops["worker"] = LoopHealth("worker")

    assert ask(server, "/live") == (200, "live", [])
    assert ask(server, "/ready") == (
        503,
        "not ready",
        [{"loop": "worker", "problem": "no pass yet"}],
    )


def test_loop_whose_last_pass_failed_is_not_ready_until_it_passes(server, supervisor):
    supervisor.loops["worker"].failed(RunledgerError("db.unavailable", "no connection"))
    supervisor.loops["reaper"].failed(ValueError("host=db password=secret"))

    assert ask(server, "/live") == (200, "live", [])
    assert ask(server, "/ready") == (
        503,
        "not ready",
        [
            {
                "loop": "worker",
                "problem": "the last pass failed",
                "error": "db.unavailable: no connection",
            },
            {"loop": "reaper", "problem": "the last pass failed", "error": "ValueError"},
        ],
    )

    for loop in supervisor.loops.values():
        loop.passed()

    assert ask(server, "/ready") == (200, "ready", [])


def test_loop_that_has_not_passed_for_long_is_not_ready(server, supervisor):
    supervisor.loops["reaper"]._last_pass_at = datetime.now(UTC) - timedelta(seconds=1_000)

    status, word, problems = ask(server, "/ready")

    assert (status, word) == (503, "not ready")
    assert [problem["loop"] for problem in problems] == ["reaper"]
    assert problems[0]["problem"] in {"no pass for 1000 s", "no pass for 1001 s"}


def test_age_of_passes_can_be_allowed(supervisor):
    supervisor.loops["reaper"]._last_pass_at = datetime.now(UTC) - timedelta(seconds=1_000)

    with HealthServer(supervisor, port=0, pass_age_seconds=2_000) as server:
        assert ask(server, "/ready") == (200, "ready", [])


def test_missing_connections_are_named(server, supervisor):
    supervisor.loops["worker"].connections_missing(["listener", "sleep marks"])

    assert ask(server, "/ready") == (
        503,
        "not ready",
        [{"loop": "worker", "problem": "the server has no room for: listener, sleep marks"}],
    )


def test_metrics_without_any_are_not_found_and_say_what_to_install(server):
    assert get(server, "/metrics") == (404, INSTALL)


def test_metrics_are_what_they_answer(supervisor):
    answer = Answer(HTTPStatus.OK, "text/plain", b"runledger_up 1\n")

    with HealthServer(supervisor, port=0, metrics=lambda: answer) as server:
        assert get(server, "/metrics") == (200, b"runledger_up 1\n")


def test_other_paths_are_not_found(server):
    assert get(server, "/")[0] == 404
    assert get(server, "/ready/x")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"port": "8080"}, "port"),
        ({"port": 0, "pass_age_seconds": 0}, "pass_age_seconds"),
    ],
)
def test_arguments_are_checked(arguments, field):
    with pytest.raises(ValidationError) as caught:
        HealthServer(None, **arguments)

    assert caught.value.field == field
