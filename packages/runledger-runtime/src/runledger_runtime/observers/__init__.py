"""Lifecycle observers: code of the host that is told what became of each attempt.

Delivery is best effort, after the commit, on threads of its own: nothing of a job ever waits for an
observer, and an observer cannot change a job. A crash loses events; what must not be lost belongs
into a job of its own, enqueued in the handler's transaction.
"""

from ._delivery import LifecycleDelivery
from ._events import (
    DeadLettered,
    JobCompletionPersistenceOperation,
    JobCompletionPersistFailedEvent,
    JobFailedEvent,
    JobFailureDisposition,
    JobLeaseLostEvent,
    JobLeaseReapedDisposition,
    JobLeaseReapedEvent,
    JobLifecycleEvent,
    JobRunningEvent,
    JobSucceededEvent,
    ObservedJob,
    RetryScheduled,
    UnknownDisposition,
    disposition_of,
)
from ._observer import JobLifecycleObserver, JobLifecycleObservers

__all__ = [
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
    "LifecycleDelivery",
    "ObservedJob",
    "RetryScheduled",
    "UnknownDisposition",
    "disposition_of",
]
