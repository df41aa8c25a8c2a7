from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from psycopg_pool import ConnectionPool

from runledger_core import JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_postgres.lifecycle import claim_jobs
from runledger_runtime import JobCatalog
from runledger_runtime.telemetry import prometheus
from runledger_runtime.telemetry.prometheus import PrometheusMetrics
from runledger_test_support import ageing

TYPES = ["test.plain", "test.fails", "test.waits"]


class Figures:
    """What a scrape tells."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        text = metrics.answer().body.decode()
        self.values: dict[tuple[str, ...], float] = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        return {key[1:]: value for key, value in self.values.items() if key[0] == name}


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(TYPES)


@pytest.fixture
def release() -> threading.Event:
    return threading.Event()


@pytest.fixture
def catalog(release: threading.Event) -> JobCatalog:
    catalog = JobCatalog()

    @catalog.job("test.plain")
    def plain(context, payload) -> None:
        del context, payload

    @catalog.job("test.fails", max_attempts=2)
    def fails(context, payload) -> None:
        raise JobFailure.retryable("test.again", "")

    @catalog.job("test.waits")
    def waits(context, payload) -> None:
        release.wait(60)

    return catalog.retry_delay_override("test.fails", "test.again", 1)


def value(metrics: PrometheusMetrics, *key: str) -> float | None:
    return Figures(metrics).values.get(key)


def test_attempts_are_counted_by_what_was_stored(
    runledger_pool, start_supervisor, eventually, catalog, metrics
):
    start_supervisor(catalog, observer=metrics)

    enqueue_jobs(
        runledger_pool,
        [JobEnqueue("test.plain", {}), JobEnqueue("test.plain", {}), JobEnqueue("test.fails", {})],
    )

    eventually(
        lambda: (
            value(metrics, "runledger_attempts_total", "test.plain", "succeeded") == 2
            and value(metrics, "runledger_dead_letters_total", "test.fails", "attempts_exhausted")
            == 1
        )
    )
    assert value(metrics, "runledger_attempts_total", "test.fails", "retryable") == 2
    assert value(metrics, "runledger_attempt_duration_seconds_count", "test.plain") == 2
    assert value(metrics, "runledger_attempt_duration_seconds_count", "test.fails") == 2


def test_expired_lease_of_a_type_without_a_handler_is_counted_as_other(
    runledger_pool: ConnectionPool, start_supervisor, eventually, catalog, metrics
):
    with runledger_pool.connection() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('of.others')")
    enqueue_job(runledger_pool, JobEnqueue("of.others", {}))
    (job,) = claim_jobs(
        runledger_pool, worker_id="gone", limit=1, lease_ttl_seconds=60, job_types=["of.others"]
    )
    ageing.expire_lease(runledger_pool, job.id)

    start_supervisor(catalog, observer=metrics)

    eventually(lambda: value(metrics, "runledger_leases_reaped_total", "other") == 1)
    assert "of.others" not in metrics.answer().body.decode()


def test_state_of_loops_is_read_at_each_scrape(
    runledger_pool, start_supervisor, eventually, catalog, metrics, *, release
):
    supervisor = start_supervisor(catalog, observer=metrics, max_global_concurrency=3)
    metrics.watch(supervisor)
    assert value(metrics, "runledger_job_slots", "worker") == 3

    enqueue_jobs(runledger_pool, [JobEnqueue("test.waits", n) for n in range(2)])
    eventually(lambda: value(metrics, "runledger_running_jobs", "worker") == 2)
    release.set()
    eventually(lambda: value(metrics, "runledger_running_jobs", "worker") == 0)

    loops = {("worker",), ("scheduler",), ("reaper",)}
    eventually(lambda: set(Figures(metrics).of("runledger_loop_last_pass_age_seconds")) == loops)
    figures = Figures(metrics)
    assert figures.of("runledger_loop_up") == dict.fromkeys(loops, 1)
    assert figures.of("runledger_loop_consecutive_errors") == dict.fromkeys(loops, 0)
    assert figures.of("runledger_stuck_handlers") == {("worker",): 0}
    assert set(figures.of("runledger_loop_backlog")) <= loops
    # Without a pool the queue is not asked.
    assert not figures.of("runledger_queue_readable")


def test_stopped_loops_are_down(start_supervisor, catalog, metrics):
    supervisor = start_supervisor(catalog, observer=metrics)
    metrics.watch(supervisor)

    supervisor.shutdown_with_timeout(30)

    assert set(Figures(metrics).of("runledger_loop_up").values()) == {0}


def test_jobs_are_counted_by_status_once_for_many_scrapes(
    runledger_pool, start_supervisor, catalog, metrics, statements: Callable[[], int]
):
    supervisor = start_supervisor(JobCatalog(), poll_interval_ms=60_000)
    catalog.sync_definitions(runledger_pool)
    enqueue_jobs(runledger_pool, [JobEnqueue("test.plain", n) for n in range(3)])
    metrics.watch(supervisor, runledger_pool)

    before = statements()
    first = Figures(metrics).of("runledger_jobs")
    enqueue_job(runledger_pool, JobEnqueue("test.plain", {}))
    threads = [threading.Thread(target=metrics.answer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    later = Figures(metrics).of("runledger_jobs")

    assert first == later
    assert first == {
        ("pending",): 3,
        ("leased",): 0,
        ("succeeded",): 0,
        ("dead_lettered",): 0,
        ("canceled",): 0,
    }
    assert statements() - before == 1


@pytest.fixture
def statements(monkeypatch) -> Callable[[], int]:
    """How often jobs were counted."""
    count = 0
    original = prometheus._QueueCounts._count

    def counting(self):
        nonlocal count
        count += 1
        return original(self)

    monkeypatch.setattr(prometheus._QueueCounts, "_count", counting)
    return lambda: count


def test_counts_stop_at_the_cap(runledger_pool, start_supervisor, metrics, monkeypatch, catalog):
    monkeypatch.setattr(prometheus, "_COUNT_CAP", 4)
    supervisor = start_supervisor(JobCatalog(), poll_interval_ms=60_000)
    catalog.sync_definitions(runledger_pool)
    enqueue_jobs(runledger_pool, [JobEnqueue("test.plain", n) for n in range(10)])

    metrics.watch(supervisor, runledger_pool)

    assert value(metrics, "runledger_jobs", "pending") == 4


def test_scrape_without_a_database_tells_the_rest(
    runledger_database, start_supervisor, metrics, catalog, caplog
):
    supervisor = start_supervisor(catalog)
    with ConnectionPool(
        runledger_database.dsn, min_size=1, max_size=1, kwargs={"autocommit": True}
    ) as pool:
        # All of the pool is lent: none to count with.
        with pool.connection():
            metrics.watch(supervisor, pool)
            figures = Figures(metrics)

        assert figures.values["runledger_queue_readable",] == 0
        assert not figures.of("runledger_jobs")
        assert set(figures.of("runledger_loop_up").values()) == {1}
        assert "jobs could not be counted for metrics" in caplog.messages
        with pool.connection() as connection:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_pool_is_given_back_as_it_was(runledger_database, start_supervisor, metrics, catalog):
    supervisor = start_supervisor(catalog)
    with ConnectionPool(runledger_database.dsn, min_size=1, max_size=1) as pool:
        metrics.watch(supervisor, pool)

        assert value(metrics, "runledger_queue_readable") == 1

        with pool.connection() as connection:
            row = connection.execute("SHOW statement_timeout").fetchone()
            assert row == ("0",)


def test_metrics_of_two_workers_share_no_registry():
    first, second = PrometheusMetrics(TYPES), PrometheusMetrics(TYPES)

    assert first.registry is not second.registry


def test_metrics_can_be_added_to_a_registry_of_the_application():
    registry = CollectorRegistry()

    metrics = PrometheusMetrics(TYPES, registry=registry)

    assert metrics.registry is registry
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(TYPES, registry=registry)
