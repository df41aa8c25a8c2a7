"""Prometheus: figures of a process and of the queue.

Needs the extra `[prometheus]`. What happens to attempts is counted by an observer, so that no job
waits for it; the rest is read when somebody scrapes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from runledger_core import JobStatus, RunledgerError, Scope, type_name

from ..health import LoopState, LoopStatus
from ..http_endpoint import Answer
from ..observers import (
    DeadLettered,
    JobCompletionPersistFailedEvent,
    JobFailedEvent,
    JobLeaseLostEvent,
    JobLeaseReapedDisposition,
    JobLeaseReapedEvent,
    JobLifecycleObserver,
    JobSucceededEvent,
    ObservedJob,
)
from ..safe_log import safe_logger
from ..supervisor import Supervisor

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as _error:
    raise ImportError(
        "metrics need an extra: pip install 'runledger-runtime[prometheus]'", name=_error.name
    ) from _error

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

    from runledger_postgres.admin import BoundedCount

DEFAULT_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
OTHER_TYPE: Final = "other"
"""Label of jobs whose type has no handler here; a reaper meets them."""

_COUNT_CAP: Final = 10_000
_QUEUE_CACHE_SECONDS: Final = 15.0
_QUEUE_TIMEOUT_MS: Final = 2_000

_logger = safe_logger(__name__)


class PrometheusMetrics(JobLifecycleObserver):
    """Count what becomes of attempts, and tell how loops and queue are doing.

    Give it to `with_job_lifecycle_observer`, then tell it the Supervisor with `watch`. The only
    labels are job types of its own, outcomes, statuses and names of loops. Observers are told of
    things as well as may be: under a load that drops events, counts are too low.
    """

    def __init__(
        self,
        job_types: Iterable[str],
        *,
        registry: CollectorRegistry | None = None,
        buckets: Sequence[float] = DEFAULT_BUCKETS,
    ) -> None:
        """Register the metrics.

        Args:
            job_types: Those that may be labels; others are counted as `other`.
            registry: One of its own if None; `prometheus_client.REGISTRY` is the process's.
            buckets: Upper bounds of durations, in seconds.
        """
        self._types = frozenset(str(job_type) for job_type in job_types)
        self.registry: CollectorRegistry = CollectorRegistry() if registry is None else registry
        self._attempts = Counter(
            "runledger_attempts",
            "Attempts that ended here, by outcome",
            ["job_type", "outcome"],
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "runledger_dead_letters",
            "Jobs that were given up here, by the worker or the reaper",
            ["job_type", "reason"],
            registry=self.registry,
        )
        self._reaped = Counter(
            "runledger_leases_reaped",
            "Attempts of any worker that the reaper here ended, since their lease had expired",
            ["job_type"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "runledger_attempt_duration_seconds",
            "From the claim of an attempt until its handler ended",
            ["job_type"],
            buckets=buckets,
            registry=self.registry,
        )
        self._collector = _StateCollector()
        self.registry.register(self._collector)

    def watch(self, supervisor: Supervisor, pool: ConnectionPool[Any] | None = None) -> None:
        """Tell how this Supervisor is doing whenever somebody scrapes.

        Args:
            supervisor: It is not kept from being dropped.
            pool: With one, jobs are counted by status too: no further than 10,000 of a status, and
                not more often than every 15 s, however often somebody scrapes.
        """
        self._collector.supervisor = weakref.ref(supervisor)
        self._collector.queue = None if pool is None else _QueueCounts(pool)

    def answer(self) -> Answer:
        """Return everything of the registry as an answer of a `HealthServer`."""
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.registry))

    def on_job_succeeded(self, event: JobSucceededEvent) -> None:
        """Count a success."""
        self._ended(event.job, "succeeded", event.duration)

    def on_job_failed(self, event: JobFailedEvent) -> None:
        """Count a failure by its kind, and the dead letter if it led to one."""
        self._ended(event.job, event.failure.kind.lower(), event.duration)
        self._disposed(event.job, event.disposition)

    def on_job_completion_persist_failed(self, event: JobCompletionPersistFailedEvent) -> None:
        """Count an outcome that could not be stored."""
        self._ended(event.job, "not_stored", event.duration)

    def on_job_lease_lost(self, event: JobLeaseLostEvent) -> None:
        """Count an attempt that no longer counted."""
        self._ended(event.job, "lease_lost", event.duration)

    def on_job_lease_reaped(self, event: JobLeaseReapedEvent) -> None:
        """Count an expired lease, and the dead letter if it led to one."""
        self._reaped.labels(self._label(event.job)).inc()
        self._disposed(event.job, event.disposition)

    def _ended(self, job: ObservedJob, outcome: str, duration: timedelta) -> None:
        label = self._label(job)
        self._attempts.labels(label, outcome).inc()
        self._durations.labels(label).observe(duration.total_seconds())

    def _disposed(self, job: ObservedJob, disposition: JobLeaseReapedDisposition) -> None:
        if isinstance(disposition, DeadLettered):
            self._dead_letters.labels(self._label(job), disposition.reason.lower()).inc()

    def _label(self, job: ObservedJob) -> str:
        return job.job_type if job.job_type in self._types else OTHER_TYPE


class _StateCollector(Collector):
    """Reads loops and queue at each scrape."""

    def __init__(self) -> None:
        self.supervisor: weakref.ref[Supervisor] | None = None
        self.queue: _QueueCounts | None = None

    def describe(self) -> Iterator[GaugeMetricFamily]:
        # Without it, registering would scrape.
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        supervisor = None if self.supervisor is None else self.supervisor()
        if supervisor is not None:
            yield from _loop_gauges(supervisor.health().loops)
        if self.queue is not None:
            yield from _queue_gauges(self.queue.read())


def _loop_gauges(loops: Sequence[LoopStatus]) -> Iterator[GaugeMetricFamily]:
    now = datetime.now(UTC)
    for name, help_text, values in (
        (
            "runledger_loop_up",
            "Whether a loop runs and needs no restart",
            [(loop, loop.state is LoopState.RUNNING and loop.is_healthy) for loop in loops],
        ),
        (
            "runledger_loop_last_pass_age_seconds",
            "Since the end of the last complete pass of a loop",
            [
                (loop, max(0.0, (now - loop.last_pass_at).total_seconds()))
                for loop in loops
                if loop.last_pass_at is not None
            ],
        ),
        (
            "runledger_loop_consecutive_errors",
            "Errors since the last complete pass of a loop",
            [(loop, loop.consecutive_errors) for loop in loops],
        ),
        (
            "runledger_loop_backlog",
            "Rows known to wait for a loop: of the worker, outcomes that are to be stored",
            [(loop, loop.backlog) for loop in loops if loop.backlog is not None],
        ),
        (
            "runledger_stuck_handlers",
            "Handlers that go on though they were told to stop",
            [(loop, loop.stuck_handlers) for loop in loops if loop.job_slots is not None],
        ),
        (
            "runledger_running_jobs",
            "Jobs that a loop holds now",
            [(loop, loop.running_jobs) for loop in loops if loop.running_jobs is not None],
        ),
        (
            "runledger_job_slots",
            "Jobs that a loop may hold at once",
            [(loop, loop.job_slots) for loop in loops if loop.job_slots is not None],
        ),
    ):
        family = GaugeMetricFamily(name, help_text, labels=["loop"])
        for loop, value in values:
            family.add_metric([loop.name], float(value))
        yield family


def _queue_gauges(counts: dict[JobStatus, BoundedCount] | None) -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily(
        "runledger_queue_readable",
        "Whether jobs could be counted; without that there are no runledger_jobs",
        value=float(counts is not None),
    )
    if counts is None:
        return
    jobs = GaugeMetricFamily(
        "runledger_jobs",
        f"Jobs by status, counted up to {_COUNT_CAP}",
        labels=["status"],
    )
    for status, count in counts.items():
        jobs.add_metric([status.lower()], float(count.total))
    yield jobs


class _QueueCounts:
    """Counts jobs by status, now and then."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._counts: dict[JobStatus, BoundedCount] | None = None
        self._fresh_until = float("-inf")

    def read(self) -> dict[JobStatus, BoundedCount] | None:
        """Return the counts, None if the last try failed; one thread counts for all."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._counts = self._count()
                self._fresh_until = time.monotonic() + _QUEUE_CACHE_SECONDS
            return self._counts

    def _count(self) -> dict[JobStatus, BoundedCount] | None:
        from runledger_postgres.admin import (  # noqa: PLC0415  # loads SQLAlchemy: only if scraped
            count_jobs_by_status_bounded,
        )

        try:
            with (
                self._pool.connection(timeout=_QUEUE_TIMEOUT_MS / 1000) as connection,
                connection.transaction(),
            ):
                connection.execute(
                    "SELECT set_config('statement_timeout', %s, true)", [f"{_QUEUE_TIMEOUT_MS}ms"]
                )
                return count_jobs_by_status_bounded(connection, scope=Scope.ADMIN, cap=_COUNT_CAP)
        except Exception as error:  # noqa: BLE001  # the pool's and the driver's too: a scrape must not fail
            name = error.code if isinstance(error, RunledgerError) else type_name(error)
            _logger.warning("jobs could not be counted for metrics", extra={"error": name})
            return None
