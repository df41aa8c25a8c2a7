"""Events without a database, and a delivery that is ended after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from runledger_core import JobLease
from runledger_runtime.observers import (
    JobLifecycleObserver,
    JobLifecycleObservers,
    JobRunningEvent,
    JobSucceededEvent,
    LifecycleDelivery,
    ObservedJob,
)


class Attempt:
    """One attempt, its lease and its events."""

    def __init__(self, number: int) -> None:
        job_id = UUID(int=number)
        self.number = number
        self.lease = JobLease(job_id, 1, attempt=1, claim_number=1, worker_id="worker-1")
        job = ObservedJob(
            job_id,
            "jobs.one",
            organization_id=None,
            run_number=1,
            attempt=1,
            max_attempts=3,
            worker_id="worker-1",
        )
        self.running = JobRunningEvent(job)
        self.succeeded = JobSucceededEvent(job, timedelta(0), None, None)


@pytest.fixture
def attempt() -> Callable[[int], Attempt]:
    return Attempt


@pytest.fixture
def deliver_to() -> Iterator[Callable[..., LifecycleDelivery]]:
    """Make a delivery to observers; it is not waited for after the test."""
    deliveries: list[LifecycleDelivery] = []

    def make(*observers: JobLifecycleObserver, burst: int = 1) -> LifecycleDelivery:
        deliveries.append(LifecycleDelivery(JobLifecycleObservers(observers), burst=burst))
        return deliveries[-1]

    yield make
    for delivery in deliveries:
        delivery.finish(0)
