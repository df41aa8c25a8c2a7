"""Helpers for testing code that uses Runledger, and the fixtures of `pytest_plugin`.

pytest loads this package in every session where it is installed, so names are imported when asked
for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .ageing import (
        age_job,
        age_lease,
        age_worker,
        expire_lease,
        make_due,
        make_schedule_due,
        postpone,
    )
    from .databases import ConnectionBudget, TemporaryDatabase
    from .environ import ScopedEnv
    from .factories import assert_enqueued, make_definition, make_enqueue
    from .permuter import Interleaving, InterleavingError, Session, Step, StepContext, permute
    from .pooler import Pooler
    from .proxy import CommitTrap, CutPoint, FaultProxy, ProxyMode
    from .server import DatabaseServer
    from .signals import ObservedEvent, ObservedKind, WaitableObserver
    from .workflows import expected_run_status, expected_step_statuses

_HOMES: Final = {
    "ageing": (
        "age_job",
        "age_lease",
        "age_worker",
        "expire_lease",
        "make_due",
        "make_schedule_due",
        "postpone",
    ),
    "databases": ("ConnectionBudget", "TemporaryDatabase"),
    "environ": ("ScopedEnv",),
    "factories": ("assert_enqueued", "make_definition", "make_enqueue"),
    "permuter": (
        "Interleaving",
        "InterleavingError",
        "Session",
        "Step",
        "StepContext",
        "permute",
    ),
    "pooler": ("Pooler",),
    "proxy": ("CommitTrap", "CutPoint", "FaultProxy", "ProxyMode"),
    "server": ("DatabaseServer",),
    "signals": ("ObservedEvent", "ObservedKind", "WaitableObserver"),
    "workflows": ("expected_run_status", "expected_step_statuses"),
}
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CommitTrap",
    "ConnectionBudget",
    "CutPoint",
    "DatabaseServer",
    "FaultProxy",
    "Interleaving",
    "InterleavingError",
    "ObservedEvent",
    "ObservedKind",
    "Pooler",
    "ProxyMode",
    "ScopedEnv",
    "Session",
    "Step",
    "StepContext",
    "TemporaryDatabase",
    "WaitableObserver",
    "age_job",
    "age_lease",
    "age_worker",
    "assert_enqueued",
    "expected_run_status",
    "expected_step_statuses",
    "expire_lease",
    "make_definition",
    "make_due",
    "make_enqueue",
    "make_schedule_due",
    "permute",
    "postpone",
]

__version__: Final = version("runledger-test-support")


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    return value
