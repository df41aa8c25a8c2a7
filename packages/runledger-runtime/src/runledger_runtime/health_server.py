"""The health port: whether a process lives, whether it works, and its figures."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from runledger_core import check_int
from runledger_core.limits import INT32_MAX

from .health import LoopState, LoopStatus, SupervisorHealth
from .http_endpoint import Answer, HttpEndpoint
from .supervisor import Supervisor

DEFAULT_PASS_AGE_SECONDS: Final = 90
_INSTALL_METRICS: Final = "pip install 'runledger-runtime[prometheus]'"
_MOST_PORT: Final = 65_535
_JSON: Final = "application/json"


class HealthServer:
    """Answer `/live`, `/ready` and `/metrics` over HTTP; a context manager.

    `/live` is 200 unless a restart would help: a loop ended by itself, or too many handlers are
    stuck. `/ready` is 200 while every loop passes and the database answers it, and 503 while the
    process starts, while it stops, and whenever `/live` is. Bodies are JSON and name what is wrong.
    `/metrics` is 404 without metrics.

    It runs on daemon threads and keeps no process from ending. Clients that are slow, silent or
    wordy are cut off; when many connect at once, the oldest are. There is no authentication.
    """

    def __init__(
        self,
        supervisor: Supervisor | None,
        *,
        port: int,
        host: str = "127.0.0.1",
        metrics: Callable[[], Answer] | None = None,
        pass_age_seconds: int = DEFAULT_PASS_AGE_SECONDS,
    ) -> None:
        """Listen from now on.

        Args:
            supervisor: Whose health is told; None until `watch`. It is not kept from being dropped.
            port: 0 to 65535; 0 chooses a free one.
            host: Address to listen on; whoever reaches it may ask.
            metrics: What answers `/metrics`, such as `PrometheusMetrics.answer`.
            pass_age_seconds: A loop that has not passed for so long is not ready, 1 or more; more
                than the longest interval in the settings.

        Raises:
            UnavailableError: `health.port_unavailable`.
            ValidationError: `input.wrong_type` or `input.out_of_range`.
        """
        check_int(port, field="port", minimum=0, maximum=_MOST_PORT)
        self._pass_age_seconds = check_int(
            pass_age_seconds, field="pass_age_seconds", minimum=1, maximum=INT32_MAX
        )
        self._metrics = metrics
        self._supervisor: weakref.ref[Supervisor] | None = None
        if supervisor is not None:
            self.watch(supervisor)
        self._endpoint = HttpEndpoint(host, port, self._respond)

    def watch(self, supervisor: Supervisor) -> None:
        """Tell the health of this Supervisor from now on."""
        self._supervisor = weakref.ref(supervisor)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._endpoint.port

    def close(self) -> None:
        """Listen no longer."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _respond(self, path: str) -> Answer:
        if path == "/live":
            return _judged("live", self._live_problems())
        if path == "/ready":
            return _judged("ready", self._ready_problems())
        if path == "/metrics":
            if self._metrics is None:
                return _text(HTTPStatus.NOT_FOUND, f"no metrics here: {_INSTALL_METRICS}")
            return self._metrics()
        return _text(HTTPStatus.NOT_FOUND, "there are /live, /ready and /metrics")

    def _live_problems(self) -> list[dict[str, object]]:
        if self._supervisor is None:
            return []
        health = self._health()
        if health is None:
            return [{"problem": "the supervisor is gone"}]
        return [
            {"loop": loop.name, "problem": _fatal_problem(loop)}
            for loop in health.loops
            if not loop.is_healthy
        ]

    def _ready_problems(self) -> list[dict[str, object]]:
        health = self._health()
        if health is None:
            state = "starting" if self._supervisor is None else "the supervisor is gone"
            return [{"problem": state}]
        problems: list[dict[str, object]] = []
        if health.is_shutdown_requested:
            problems.append({"problem": "stopping"})
        for loop in health.loops:
            problem = self._problem_of(loop)
            if problem is None:
                continue
            entry: dict[str, object] = {"loop": loop.name, "problem": problem}
            if loop.consecutive_errors:
                # One of ours, or the name of a class: safe to show.
                entry["error"] = loop.last_error
            problems.append(entry)
        return problems

    def _problem_of(self, loop: LoopStatus) -> str | None:
        if not loop.is_healthy or loop.state is not LoopState.RUNNING:
            return _fatal_problem(loop)
        if loop.missing_connections:
            return f"the server has no room for: {', '.join(loop.missing_connections)}"
        if loop.consecutive_errors:
            return "the last pass failed"
        if loop.last_pass_at is None:
            return "no pass yet"
        age = (datetime.now(UTC) - loop.last_pass_at).total_seconds()
        return f"no pass for {age:.0f} s" if age > self._pass_age_seconds else None

    def _health(self) -> SupervisorHealth | None:
        supervisor = None if self._supervisor is None else self._supervisor()
        return None if supervisor is None else supervisor.health()


def _fatal_problem(loop: LoopStatus) -> str:
    return loop.unhealthy_reason or f"the loop is {loop.state.lower()}"


def _judged(word: str, problems: list[dict[str, object]]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    body = {"status": f"not {word}" if problems else word, "problems": problems}
    return Answer(status, _JSON, json.dumps(body).encode() + b"\n")


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
