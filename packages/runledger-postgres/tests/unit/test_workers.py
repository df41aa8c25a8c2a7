from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from runledger_core import ValidationError
from runledger_postgres.workers import WorkerReport, WorkerState, list_workers, prune_workers

REPORT: dict[str, Any] = {
    "worker_id": "worker-1",
    "host": "host",
    "pid": 1,
    "version": "0.4.0",
    "job_types": ["test.job"],
    "concurrency": 4,
}


def test_report_says_running_unless_told():
    assert WorkerReport(**REPORT).state is WorkerState.RUNNING


def test_odd_names_of_host_and_version_are_made_storable():
    odd: dict[str, Any] = {"host": "a\0" + "b" * 300, "version": "\ud800"}

    report = WorkerReport(**REPORT | odd)

    assert report.host.startswith("a\ufffdb")
    assert len(report.host.encode()) <= 255
    assert report.version == "\ufffd"


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"worker_id": ""}, "input.blank", "worker_id"),
        ({"pid": -1}, "input.out_of_range", "pid"),
        ({"concurrency": 2**31}, "input.out_of_range", "concurrency"),
        ({"job_types": [" "]}, "input.blank", "job_type"),
        ({"job_types": "test.job"}, "input.wrong_type", "job_types"),
        ({"job_types": None}, "input.wrong_type", "job_types"),
        ({"state": "DEAD"}, "input.out_of_range", "state"),
    ],
)
def test_bad_report_is_refused(changes, code, field):
    with pytest.raises(ValidationError) as refused:
        WorkerReport(**(REPORT | changes))

    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize("limit", [0, 1001])
def test_list_refuses_a_bad_limit_before_sql(limit):
    with pytest.raises(ValidationError) as refused:
        list_workers(object(), limit=limit)  # pyright: ignore[reportArgumentType]  # no SQL runs

    assert (refused.value.code, refused.value.field) == ("input.out_of_range", "limit")


@pytest.mark.parametrize("older_than", [timedelta(0), timedelta(days=-1)])
def test_prune_refuses_an_age_of_nothing_before_sql(older_than):
    with pytest.raises(ValidationError) as refused:
        prune_workers(object(), older_than=older_than)  # pyright: ignore[reportArgumentType]  # no SQL runs

    assert (refused.value.code, refused.value.field) == ("input.out_of_range", "older_than")
