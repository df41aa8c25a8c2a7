"""Errors of the runtime, and how a loop tells why it ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias

from runledger_core import InternalError, ValidationError, type_name


class JobsConfigError(ValidationError):
    """Report a setting that cannot be used; `field` names the field or the variable."""


class RegistryError(ValidationError):
    """Report a handler or an override that a registry does not take."""

    area: ClassVar[str] = "registry"


class CatalogError(ValidationError):
    """Report a job, an override or a request that a catalog does not take."""

    area: ClassVar[str] = "catalog"


class LoopExit(StrEnum):
    """Tell why a loop ended."""

    SHUTDOWN = "SHUTDOWN"
    """It saw the request to stop."""
    COMPLETED = "COMPLETED"
    """It ended for another reason; a Supervisor takes that for a failure."""


@dataclass(frozen=True, slots=True)
class InvalidConfig:
    """Tell that a loop refused its settings, before any database work.

    Attributes:
        error: What is wrong with them.
    """

    error: JobsConfigError


@dataclass(frozen=True, slots=True)
class TooFewConnections:
    """Tell that the server never had room for all connections of the loop, for a minute.

    Attributes:
        needed: How many it holds, beside those of the pool.
        missing: Which of them it did not get.
    """

    needed: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TooManyStuckHandlers:
    """Tell that the worker gave up: handlers go on although they were told to stop.

    Attributes:
        stuck: How many do, calls of theirs in threads included.
        most: How many may.
    """

    stuck: int
    most: int


RuntimeLoopExit: TypeAlias = LoopExit | InvalidConfig | TooFewConnections | TooManyStuckHandlers
"""What a loop returns."""


class SupervisorError(InternalError):
    """Report that a Supervisor cannot be built or used, or did not end well."""


class MissingRegistryError(SupervisorError):
    """Report that a loop which needs handlers has none.

    Attributes:
        worker_enabled: Whether the worker asked for them.
        reaper_enabled: Whether the reaper asked for them.
    """

    def __init__(self, *, worker_enabled: bool, reaper_enabled: bool) -> None:
        """Build the error from the loops that are enabled."""
        names = [
            name
            for name, is_enabled in (("worker", worker_enabled), ("reaper", reaper_enabled))
            if is_enabled
        ]
        super().__init__(
            "supervisor.missing_registry",
            f"no handlers for {' and '.join(names)}: call with_catalog or with_registry",
        )
        self.worker_enabled = worker_enabled
        self.reaper_enabled = reaper_enabled


class MixedRegistrySourcesError(SupervisorError):
    """Report that both a catalog and a registry were given to one builder."""

    def __init__(self) -> None:
        """Build the error."""
        super().__init__(
            "supervisor.mixed_registry_sources", "call with_catalog or with_registry, not both"
        )


class InvalidJobsConfigError(SupervisorError):
    """Report settings that a Supervisor or one of its loops refused.

    Attributes:
        source: What is wrong with them.
        task: The loop that refused them; None if `build` did.
    """

    def __init__(self, source: JobsConfigError, *, task: str | None = None) -> None:
        """Build the error around the refused setting."""
        super().__init__(
            "supervisor.invalid_jobs_config", source.client_message, field=source.field
        )
        self.__cause__: BaseException | None = source
        self.source = source
        self.task = task


class TaskExitedUnexpectedlyError(SupervisorError):
    """Report a loop that ended without having been asked to.

    Attributes:
        task: Name of the loop.
    """

    def __init__(self, task: str, *, reason: str | None = None) -> None:
        """Build the error for a loop, with why it ended if it told."""
        super().__init__(
            "supervisor.task_exited_unexpectedly",
            f"the {task} loop ended without being asked to{f': {reason}' if reason else ''}",
        )
        self.task = task


class TooFewConnectionsError(SupervisorError):
    """Report a loop that ended because the server has too few connections for it.

    Attributes:
        task: Name of the loop.
        needed: How many connections it holds, beside those of the pool.
        missing: Which of them it never got.
    """

    def __init__(self, task: str, source: TooFewConnections) -> None:
        """Build the error from what the loop told."""
        super().__init__(
            "supervisor.too_few_connections",
            f"the {task} loop needs {source.needed} of the server's connections beside the pool's,"
            f" and for a minute there was none for: {', '.join(source.missing)}",
        )
        self.task = task
        self.needed: int = source.needed
        self.missing: tuple[str, ...] = source.missing


class TaskFailedError(SupervisorError):
    """Report a loop that ended with an exception.

    Attributes:
        task: Name of the loop.
        source: The exception.
    """

    def __init__(self, task: str, source: BaseException) -> None:
        """Build the error around the exception."""
        super().__init__(
            "supervisor.task_failed", f"the {task} loop failed with {type_name(source)}"
        )
        self.__cause__: BaseException | None = source
        self.task = task
        self.source = source


class ShutdownTimeoutError(SupervisorError):
    """Report loops that had not ended at the deadline.

    Their threads cannot be stopped; they are daemons, so that the process can end.

    Attributes:
        timeout_seconds: Time they had.
        tasks: Names of those loops.
    """

    _code: ClassVar[str] = "supervisor.shutdown_timeout"

    def __init__(self, timeout_seconds: float, tasks: Sequence[str]) -> None:
        """Build the error from the time allowed and the loops that still run."""
        super().__init__(
            self._code, f"still running after {timeout_seconds:g} s: {', '.join(tasks)}"
        )
        self.timeout_seconds = timeout_seconds
        self.tasks: tuple[str, ...] = tuple(tasks)


class ShutdownTimeoutAfterTaskError(ShutdownTimeoutError):
    """Report a loop that failed, after which others did not end in time.

    Attributes:
        source: The failure that came first.
    """

    _code = "supervisor.shutdown_timeout_after_task_error"

    def __init__(
        self, timeout_seconds: float, tasks: Sequence[str], *, source: SupervisorError
    ) -> None:
        """Build the error around the first failure."""
        super().__init__(timeout_seconds, tasks)
        self.__cause__: BaseException | None = source
        self.source = source


class ShutdownTimeoutTooLargeError(SupervisorError):
    """Report a timeout too long to wait for; nothing was asked to stop.

    Attributes:
        timeout_seconds: The timeout.
    """

    def __init__(self, timeout_seconds: float) -> None:
        """Build the error from the timeout."""
        super().__init__(
            "supervisor.shutdown_timeout_too_large",
            f"a timeout may be {threading.TIMEOUT_MAX:.0f} s at most",
            field="timeout",
        )
        self.timeout_seconds = timeout_seconds


class ShutdownAbortedError(SupervisorError):
    """Report that a second signal ended the wait for loops that still ran.

    Attributes:
        tasks: Names of those loops.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        """Build the error from the loops that still run."""
        super().__init__(
            "supervisor.shutdown_aborted", f"a second signal ended the wait for: {', '.join(tasks)}"
        )
        self.tasks: tuple[str, ...] = tuple(tasks)


class SignalsUnavailableError(SupervisorError):
    """Report that signals can be handled in the main thread only."""

    def __init__(self) -> None:
        """Build the error."""
        super().__init__(
            "supervisor.signals_unavailable",
            "outside the main thread pass `stop`: an Event or a function that blocks",
            field="stop",
        )


class ForkedSupervisorError(SupervisorError):
    """Report use of a Supervisor in a child process, where its threads do not exist."""

    def __init__(self) -> None:
        """Build the error."""
        super().__init__(
            "supervisor.forked", "the process was forked; build a Supervisor in the child"
        )
