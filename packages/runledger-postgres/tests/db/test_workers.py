from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from runledger_core import UnavailableError
from runledger_postgres.workers import (
    WorkerReport,
    WorkerState,
    list_workers,
    prune_workers,
    record_worker,
    remove_worker,
)
from runledger_test_support import age_worker

REPORT = WorkerReport(
    "worker-1",
    "host-a",
    pid=41,
    version="0.4.0",
    job_types=["test.one", "test.two"],
    concurrency=4,
)


def test_worker_is_shown_as_it_reported(runledger_pool):
    record_worker(runledger_pool, REPORT)

    (worker,) = list_workers(runledger_pool)

    assert (worker.worker_id, worker.host, worker.pid) == ("worker-1", "host-a", 41)
    assert (worker.version, worker.concurrency) == ("0.4.0", 4)
    assert worker.job_types == ["test.one", "test.two"]
    assert worker.state is WorkerState.RUNNING
    assert worker.started_at == pytest.approx(worker.last_seen_at, abs=timedelta(seconds=1))


def test_beat_renews_what_was_seen_and_keeps_the_start(runledger_pool):
    record_worker(runledger_pool, REPORT)
    age_worker(runledger_pool, "worker-1", 100)
    (before,) = list_workers(runledger_pool)

    record_worker(runledger_pool, replace(REPORT, state=WorkerState.DRAINING))

    (after,) = list_workers(runledger_pool)
    assert 100 <= before.seconds_since_seen < 160
    assert after.seconds_since_seen < 60
    assert after.started_at == before.started_at
    assert after.state is WorkerState.DRAINING


def test_same_name_on_another_process_started_anew(runledger_pool):
    record_worker(runledger_pool, REPORT)
    (before,) = list_workers(runledger_pool)

    record_worker(runledger_pool, replace(REPORT, pid=42))

    (after,) = list_workers(runledger_pool)
    assert after.started_at > before.started_at


def test_worker_that_stops_is_forgotten_once(runledger_pool):
    record_worker(runledger_pool, REPORT)

    assert remove_worker(runledger_pool, "worker-1") is True
    assert remove_worker(runledger_pool, "worker-1") is False
    assert list_workers(runledger_pool) == []


def test_workers_not_seen_for_a_day_are_pruned(runledger_pool):
    for name in ("dead", "silent", "alive"):
        record_worker(runledger_pool, replace(REPORT, worker_id=name))
    age_worker(runledger_pool, "dead", 24 * 3600 + 60)
    age_worker(runledger_pool, "silent", 24 * 3600 - 60)

    pruned = prune_workers(runledger_pool)

    assert pruned == ["dead"]
    assert [worker.worker_id for worker in list_workers(runledger_pool)] == ["alive", "silent"]


def test_age_to_prune_can_be_chosen(runledger_pool):
    record_worker(runledger_pool, REPORT)
    age_worker(runledger_pool, "worker-1", 61)

    assert prune_workers(runledger_pool, older_than=timedelta(minutes=2)) == []
    assert prune_workers(runledger_pool, older_than=timedelta(minutes=1)) == ["worker-1"]


def test_worker_without_types_is_shown(runledger_pool):
    record_worker(runledger_pool, replace(REPORT, job_types=[]))

    assert list_workers(runledger_pool)[0].job_types == []


def test_list_is_bounded(runledger_pool):
    for number in range(3):
        record_worker(runledger_pool, replace(REPORT, worker_id=f"worker-{number}"))

    assert len(list_workers(runledger_pool, limit=2)) == 2


def test_clock_that_went_back_shows_no_negative_age(runledger_pool):
    record_worker(runledger_pool, REPORT)
    age_worker(runledger_pool, "worker-1", -3600)

    assert list_workers(runledger_pool)[0].seconds_since_seen == 0.0


def test_row_that_somebody_holds_is_waited_for_no_longer_than_asked(
    runledger_pool, runledger_database
):
    record_worker(runledger_pool, REPORT)
    host = runledger_database.connect()
    host.execute("SELECT FROM runledger.job_workers FOR UPDATE")

    with pytest.raises(UnavailableError) as caught:
        record_worker(runledger_pool, REPORT, lock_timeout_ms=1)

    assert caught.value.code == "db.lock_timeout"
