from datetime import UTC, datetime

import pytest

from runledger_core import InternalError
from runledger_runtime.health import LoopHealth, LoopState, LoopStatus, SupervisorHealth


def test_a_new_loop_has_nothing_to_tell():
    assert LoopHealth("reaper").status(LoopState.RUNNING) == LoopStatus("reaper", LoopState.RUNNING)


def test_a_pass_is_dated_and_keeps_the_backlog():
    health = LoopHealth("reaper")
    before = datetime.now(UTC)

    health.passed(backlog=3)

    status = health.status(LoopState.RUNNING)
    assert status.last_pass_at is not None
    assert before <= status.last_pass_at <= datetime.now(UTC)
    assert status.backlog == 3


def test_errors_are_counted_until_a_pass_and_the_last_one_is_kept():
    health = LoopHealth("reaper")

    health.failed(InternalError("db.query_failed", "the first"))
    health.failed(InternalError("db.query_failed", "the second"))
    failing = health.status(LoopState.RUNNING)
    health.passed()
    recovered = health.status(LoopState.RUNNING)

    assert failing.consecutive_errors == 2
    assert failing.last_error == "db.query_failed: the second"
    assert recovered.consecutive_errors == 0
    assert recovered.last_error == "db.query_failed: the second"
    assert recovered.last_error_at == failing.last_error_at


def test_texts_of_foreign_errors_are_not_shown():
    health = LoopHealth("reaper")

    health.failed(OSError("connection to host=db password=secret failed"))

    assert health.status(LoopState.RUNNING).last_error == "OSError"


def test_stuck_handlers_and_a_reason_to_restart_are_kept():
    health = LoopHealth("worker")

    health.stuck_handlers_changed(9)
    health.unhealthy("9 handlers are stuck")

    status = health.status(LoopState.RUNNING)
    assert status.stuck_handlers == 9
    assert status.unhealthy_reason == "9 handlers are stuck"
    assert not status.is_healthy
    health.unhealthy(None)
    assert health.status(LoopState.RUNNING).is_healthy


def test_missing_connections_are_named_until_they_are_there():
    health = LoopHealth("worker")

    health.connections_missing(["listener"])
    missing = health.status(LoopState.RUNNING)
    health.connections_missing([])

    assert missing.missing_connections == ("listener",)
    assert missing.is_healthy
    assert health.status(LoopState.RUNNING).missing_connections == ()


@pytest.mark.parametrize(
    ("state", "is_healthy"),
    [
        (LoopState.RUNNING, True),
        (LoopState.STOPPED, True),
        (LoopState.FAILED, False),
        (LoopState.ABANDONED, False),
    ],
)
def test_health_of_a_loop_by_state(state, is_healthy):
    assert LoopStatus("worker", state).is_healthy is is_healthy


def test_a_supervisor_is_as_healthy_as_its_worst_loop():
    good = LoopStatus("worker", LoopState.RUNNING)
    bad = LoopStatus("reaper", LoopState.FAILED)

    assert SupervisorHealth((good, good), is_shutdown_requested=False).is_healthy
    assert not SupervisorHealth((good, bad), is_shutdown_requested=False).is_healthy
    assert SupervisorHealth((), is_shutdown_requested=False).is_healthy
