"""The Runledger runtime: register handlers, run the loops of a worker process.

`JobCatalog` holds handlers and their definitions; `Supervisor` runs the loops. Names are loaded
when first used, so that the command can say what is missing where no libpq is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ._version import __version__

if TYPE_CHECKING:
    from .backoff import (
        BackoffPolicy,
        ExponentialBackoff,
        FixedBackoff,
        FullJitterBackoff,
        ListBackoff,
    )
    from .binding import RegisteredHandler
    from .catalog import (
        CatalogJobScheduleSpec,
        CatalogWorkflowDagBuilder,
        JobCatalog,
        JobCatalogDefaults,
        JobCatalogDefinitionOverrides,
        JobCatalogScheduleSyncScope,
        JobCatalogSyncScope,
    )
    from .config import JobsConfig
    from .errors import (
        CatalogError,
        ForkedSupervisorError,
        InvalidConfig,
        InvalidJobsConfigError,
        JobsConfigError,
        LoopExit,
        MissingRegistryError,
        MixedRegistrySourcesError,
        RegistryError,
        RuntimeLoopExit,
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
        TooManyStuckHandlers,
    )
    from .health import LoopHealth, LoopState, LoopStatus, SupervisorHealth
    from .health_server import HealthServer
    from .log_fields import JobLogFields
    from .middleware import JobMiddleware
    from .observers import (
        DeadLettered,
        JobCompletionPersistenceOperation,
        JobCompletionPersistFailedEvent,
        JobFailedEvent,
        JobFailureDisposition,
        JobLeaseLostEvent,
        JobLeaseReapedDisposition,
        JobLeaseReapedEvent,
        JobLifecycleEvent,
        JobLifecycleObserver,
        JobLifecycleObservers,
        JobRunningEvent,
        JobSucceededEvent,
        ObservedJob,
        RetryScheduled,
        UnknownDisposition,
    )
    from .reaper import run_reaper_loop
    from .registry import JobRegistry
    from .scheduler import run_scheduler_loop
    from .shutdown import StopToken, SupervisorShutdown
    from .stop_signals import StopSignals
    from .supervisor import Supervisor, SupervisorBuilder
    from .worker import run_worker_loop

_HOMES: Final = {
    "backoff": (
        "BackoffPolicy",
        "ExponentialBackoff",
        "FixedBackoff",
        "FullJitterBackoff",
        "ListBackoff",
    ),
    "binding": ("RegisteredHandler",),
    "catalog": (
        "CatalogJobScheduleSpec",
        "CatalogWorkflowDagBuilder",
        "JobCatalog",
        "JobCatalogDefaults",
        "JobCatalogDefinitionOverrides",
        "JobCatalogScheduleSyncScope",
        "JobCatalogSyncScope",
    ),
    "config": ("JobsConfig",),
    "errors": (
        "CatalogError",
        "ForkedSupervisorError",
        "InvalidConfig",
        "InvalidJobsConfigError",
        "JobsConfigError",
        "LoopExit",
        "MissingRegistryError",
        "MixedRegistrySourcesError",
        "RegistryError",
        "RuntimeLoopExit",
        "ShutdownAbortedError",
        "ShutdownTimeoutAfterTaskError",
        "ShutdownTimeoutError",
        "ShutdownTimeoutTooLargeError",
        "SignalsUnavailableError",
        "SupervisorError",
        "TaskExitedUnexpectedlyError",
        "TaskFailedError",
        "TooFewConnections",
        "TooFewConnectionsError",
        "TooManyStuckHandlers",
    ),
    "health": ("LoopHealth", "LoopState", "LoopStatus", "SupervisorHealth"),
    "health_server": ("HealthServer",),
    "log_fields": ("JobLogFields",),
    "middleware": ("JobMiddleware",),
    "observers": (
        "DeadLettered",
        "JobCompletionPersistFailedEvent",
        "JobCompletionPersistenceOperation",
        "JobFailedEvent",
        "JobFailureDisposition",
        "JobLeaseLostEvent",
        "JobLeaseReapedDisposition",
        "JobLeaseReapedEvent",
        "JobLifecycleEvent",
        "JobLifecycleObserver",
        "JobLifecycleObservers",
        "JobRunningEvent",
        "JobSucceededEvent",
        "ObservedJob",
        "RetryScheduled",
        "UnknownDisposition",
    ),
    "reaper": ("run_reaper_loop",),
    "registry": ("JobRegistry",),
    "scheduler": ("run_scheduler_loop",),
    "shutdown": ("StopToken", "SupervisorShutdown"),
    "stop_signals": ("StopSignals",),
    "supervisor": ("Supervisor", "SupervisorBuilder"),
    "worker": ("run_worker_loop",),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BackoffPolicy",
    "CatalogError",
    "CatalogJobScheduleSpec",
    "CatalogWorkflowDagBuilder",
    "DeadLettered",
    "ExponentialBackoff",
    "FixedBackoff",
    "ForkedSupervisorError",
    "FullJitterBackoff",
    "HealthServer",
    "InvalidConfig",
    "InvalidJobsConfigError",
    "JobCatalog",
    "JobCatalogDefaults",
    "JobCatalogDefinitionOverrides",
    "JobCatalogScheduleSyncScope",
    "JobCatalogSyncScope",
    "JobCompletionPersistFailedEvent",
    "JobCompletionPersistenceOperation",
    "JobFailedEvent",
    "JobFailureDisposition",
    "JobLeaseLostEvent",
    "JobLeaseReapedDisposition",
    "JobLeaseReapedEvent",
    "JobLifecycleEvent",
    "JobLifecycleObserver",
    "JobLifecycleObservers",
    "JobLogFields",
    "JobMiddleware",
    "JobRegistry",
    "JobRunningEvent",
    "JobSucceededEvent",
    "JobsConfig",
    "JobsConfigError",
    "ListBackoff",
    "LoopExit",
    "LoopHealth",
    "LoopState",
    "LoopStatus",
    "MissingRegistryError",
    "MixedRegistrySourcesError",
    "ObservedJob",
    "RegisteredHandler",
    "RegistryError",
    "RetryScheduled",
    "RuntimeLoopExit",
    "ShutdownAbortedError",
    "ShutdownTimeoutAfterTaskError",
    "ShutdownTimeoutError",
    "ShutdownTimeoutTooLargeError",
    "SignalsUnavailableError",
    "StopSignals",
    "StopToken",
    "Supervisor",
    "SupervisorBuilder",
    "SupervisorError",
    "SupervisorHealth",
    "SupervisorShutdown",
    "TaskExitedUnexpectedlyError",
    "TaskFailedError",
    "TooFewConnections",
    "TooFewConnectionsError",
    "TooManyStuckHandlers",
    "UnknownDisposition",
    "__version__",
    "run_reaper_loop",
    "run_scheduler_loop",
    "run_worker_loop",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    return value
