import pickle
import re
from pathlib import Path

import pytest

from runledger_core import InternalError, ValidationError
from runledger_runtime import errors
from runledger_runtime.codes import MEANINGS
from runledger_runtime.errors import (
    CatalogError,
    ForkedSupervisorError,
    InvalidJobsConfigError,
    JobsConfigError,
    MissingRegistryError,
    MixedRegistrySourcesError,
    RegistryError,
    ShutdownAbortedError,
    ShutdownTimeoutAfterTaskError,
    ShutdownTimeoutError,
    ShutdownTimeoutTooLargeError,
    SignalsUnavailableError,
    SupervisorError,
    TaskExitedUnexpectedlyError,
    TaskFailedError,
    TooFewConnections,
    TooFewConnectionsError,
)

SOURCE = Path(errors.__file__).parent
CONFIG_ERROR = JobsConfigError("config.zero_poll_interval", "too short", field="poll_interval_ms")

SUPERVISOR_ERRORS = [
    (ForkedSupervisorError(), "supervisor.forked"),
    (InvalidJobsConfigError(CONFIG_ERROR, task="worker"), "supervisor.invalid_jobs_config"),
    (
        MissingRegistryError(worker_enabled=True, reaper_enabled=False),
        "supervisor.missing_registry",
    ),
    (MixedRegistrySourcesError(), "supervisor.mixed_registry_sources"),
    (ShutdownAbortedError(["worker"]), "supervisor.shutdown_aborted"),
    (ShutdownTimeoutError(30, ["worker"]), "supervisor.shutdown_timeout"),
    (
        ShutdownTimeoutAfterTaskError(30, ["worker"], source=TaskExitedUnexpectedlyError("reaper")),
        "supervisor.shutdown_timeout_after_task_error",
    ),
    (ShutdownTimeoutTooLargeError(1e300), "supervisor.shutdown_timeout_too_large"),
    (SignalsUnavailableError(), "supervisor.signals_unavailable"),
    (TaskExitedUnexpectedlyError("worker"), "supervisor.task_exited_unexpectedly"),
    (TaskFailedError("worker", ZeroDivisionError()), "supervisor.task_failed"),
    (
        TooFewConnectionsError("worker", TooFewConnections(4, ("listener",))),
        "supervisor.too_few_connections",
    ),
]


@pytest.mark.parametrize(("error", "code"), SUPERVISOR_ERRORS)
def test_supervisor_errors_have_their_code(error, code):
    assert error.code == code
    assert isinstance(error, SupervisorError)
    assert isinstance(error, InternalError)
    assert str(error).startswith(f"{code}: ")


def test_every_supervisor_code_has_its_error():
    assert {code for _, code in SUPERVISOR_ERRORS} == {
        code for code in MEANINGS if code.startswith("supervisor.")
    }


@pytest.mark.parametrize("error", [error for error, _ in SUPERVISOR_ERRORS])
def test_supervisor_errors_can_be_pickled(error):
    copy = pickle.loads(pickle.dumps(error))  # our own bytes

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert set(vars(copy)) == set(vars(error))


@pytest.mark.parametrize("kind", [CatalogError, JobsConfigError, RegistryError])
def test_refusals_are_validation_errors(kind):
    assert issubclass(kind, ValidationError)


def test_a_missing_registry_names_the_loops_that_need_it():
    error = MissingRegistryError(worker_enabled=True, reaper_enabled=True)

    assert error.worker_enabled
    assert error.reaper_enabled
    assert "worker and reaper" in str(error)


def test_the_text_of_an_unexpected_exception_is_not_shown():
    error = TaskFailedError("reaper", OSError("password=secret"))

    assert str(error) == "supervisor.task_failed: the reaper loop failed with OSError"


def test_every_code_written_in_the_source_has_a_meaning():
    text = "".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    written = set(re.findall(r'"((?:catalog|config|registry|supervisor)\.[a-z_]+)"', text))
    composed = {
        f"{area}.{name}"
        for area in ("catalog", "registry")
        for name in re.findall(r'refuse\(\s*(?:\w+),\s*"([a-z_]+)"', text)
    }

    # Two codes are the storage's, which the command line raises early.
    storage = {"config.database_url_invalid", "config.database_url_missing"}
    assert written - storage <= set(MEANINGS)
    assert composed <= set(MEANINGS)


def test_every_meaning_is_a_sentence():
    assert all(meaning.endswith(".") for meaning in MEANINGS.values())
