"""The class that hosts subclass, and a checked collection of its instances."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Final, Self

from runledger_core import ValidationError

from ._events import (
    JobCompletionPersistFailedEvent,
    JobFailedEvent,
    JobLeaseLostEvent,
    JobLeaseReapedEvent,
    JobLifecycleEvent,
    JobRunningEvent,
    JobSucceededEvent,
)


class JobLifecycleObserver:
    """Override what you want to know; the rest does nothing and costs nothing.

    Called after the commit, on threads of its own, for several jobs at once: guard what you share.
    For one attempt `on_job_running` has ended, or had its ten seconds, before the event of its end
    is delivered. What a method raises is logged and changes nothing. A method that takes longer
    than ten seconds is no longer waited for; when too many calls hang at once, the observer gets no
    more starts, or no more ends.
    """

    def on_job_running(self, event: JobRunningEvent) -> None:
        """Be told that a handler is about to start."""

    def on_job_succeeded(self, event: JobSucceededEvent) -> None:
        """Be told that a success was stored."""

    def on_job_failed(self, event: JobFailedEvent) -> None:
        """Be told that a failure was stored, with a retry or a dead letter."""

    def on_job_completion_persist_failed(self, event: JobCompletionPersistFailedEvent) -> None:
        """Be told that an outcome can never be stored."""

    def on_job_lease_lost(self, event: JobLeaseLostEvent) -> None:
        """Be told that an attempt ended whose outcome no longer counts."""

    def on_job_lease_reaped(self, event: JobLeaseReapedEvent) -> None:
        """Be told that a reaper ended an attempt whose lease had expired."""


CALLBACKS: Final[dict[type[JobLifecycleEvent], str]] = {
    JobRunningEvent: "on_job_running",
    JobSucceededEvent: "on_job_succeeded",
    JobFailedEvent: "on_job_failed",
    JobCompletionPersistFailedEvent: "on_job_completion_persist_failed",
    JobLeaseLostEvent: "on_job_lease_lost",
    JobLeaseReapedEvent: "on_job_lease_reaped",
}
"""The method that is told of an event of each class."""


class JobLifecycleObservers:
    """Hold observers that have been checked; it never changes."""

    def __init__(self, observers: Iterable[JobLifecycleObserver] = ()) -> None:
        """Take observers, which are told in no particular order.

        Raises:
            ValidationError: `observer.invalid_observer` if one is no instance of
                `JobLifecycleObserver`; `observer.async_unsupported` if a method is an `async def`.
        """
        self._observers = tuple(map(_checked, observers))

    @classmethod
    def empty(cls) -> Self:
        """Return a collection without observers."""
        return cls()

    @classmethod
    def from_observer(cls, observer: JobLifecycleObserver) -> Self:
        """Return a collection of one observer.

        Raises:
            ValidationError: As the class itself.
        """
        return cls([observer])

    def with_observer(self, observer: JobLifecycleObserver) -> Self:
        """Return a collection with one observer more.

        Raises:
            ValidationError: As the class itself.
        """
        return type(self)([*self._observers, observer])

    def __iter__(self) -> Iterator[JobLifecycleObserver]:
        return iter(self._observers)

    def __len__(self) -> int:
        return len(self._observers)


def overridden_callbacks(observer: JobLifecycleObserver) -> frozenset[str]:
    """Return the methods of an observer that may do something."""
    return frozenset(
        name
        for name in CALLBACKS.values()
        if getattr(getattr(observer, name), "__func__", None)
        is not getattr(JobLifecycleObserver, name)
    )


def _checked(observer: object) -> JobLifecycleObserver:
    if not isinstance(observer, JobLifecycleObserver):
        raise ValidationError(
            "observer.invalid_observer",
            "an observer is an instance of a subclass of JobLifecycleObserver",
            field="observer",
        )
    for name in CALLBACKS.values():
        method = getattr(observer, name)
        if not callable(method):
            raise ValidationError(
                "observer.invalid_observer", f"{name} cannot be called", field=name
            )
        # The second is for an attribute whose class is callable.
        if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(method.__call__):
            raise ValidationError(
                "observer.async_unsupported",
                f"{name} is an async def, and observers run on threads; write a plain def",
                field=name,
            )
    return observer
