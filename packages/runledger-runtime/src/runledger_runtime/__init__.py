"""The Runledger runtime: register handlers, run the loops of a worker process.

`JobCatalog` holds handlers and their definitions; `Supervisor` runs the loops. Names are loaded
when first used, so that the command can say what is missing where no libpq is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ._version import __version__

if TYPE_CHECKING:
    from .catalog import (
        JobCatalog,
        JobCatalogDefaults,
        JobCatalogDefinitionOverrides,
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
    )
    from .health import LoopHealth, LoopState, LoopStatus, SupervisorHealth
    from .reaper import run_reaper_loop
    from .registry import JobRegistry, RegisteredHandler
    from .shutdown import StopToken, SupervisorShutdown
    from .supervisor import Supervisor, SupervisorBuilder
    from .worker import run_worker_loop

_HOMES: Final = {
    "catalog": (
        "JobCatalog",
        "JobCatalogDefaults",
        "JobCatalogDefinitionOverrides",
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
    ),
    "health": ("LoopHealth", "LoopState", "LoopStatus", "SupervisorHealth"),
    "reaper": ("run_reaper_loop",),
    "registry": ("JobRegistry", "RegisteredHandler"),
    "shutdown": ("StopToken", "SupervisorShutdown"),
    "supervisor": ("Supervisor", "SupervisorBuilder"),
    "worker": ("run_worker_loop",),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CatalogError",
    "ForkedSupervisorError",
    "InvalidConfig",
    "InvalidJobsConfigError",
    "JobCatalog",
    "JobCatalogDefaults",
    "JobCatalogDefinitionOverrides",
    "JobCatalogSyncScope",
    "JobRegistry",
    "JobsConfig",
    "JobsConfigError",
    "LoopExit",
    "LoopHealth",
    "LoopState",
    "LoopStatus",
    "MissingRegistryError",
    "MixedRegistrySourcesError",
    "RegisteredHandler",
    "RegistryError",
    "RuntimeLoopExit",
    "ShutdownAbortedError",
    "ShutdownTimeoutAfterTaskError",
    "ShutdownTimeoutError",
    "ShutdownTimeoutTooLargeError",
    "SignalsUnavailableError",
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
    "__version__",
    "run_reaper_loop",
    "run_worker_loop",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    return value
