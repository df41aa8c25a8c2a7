from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from sqlalchemy import select

from runledger_core import JobStatus, Scope, ValidationError
from runledger_postgres.admin import JobFilter
from runledger_postgres.admin._select import _DIALECT
from runledger_postgres.admin.filters import job_conditions
from runledger_postgres.admin.tables import job_queue

ORGANIZATION = UUID("01900000-0000-7000-8000-000000000001")


def where(chosen: JobFilter) -> str:
    statement = select(job_queue.c.id).where(*job_conditions(chosen))
    return str(statement.compile(dialect=_DIALECT)).partition("WHERE ")[2]


def test_admin_scope_alone_demands_nothing():
    assert where(JobFilter(Scope.ADMIN)) == ""


def test_global_scope_is_no_wildcard():
    assert where(JobFilter(Scope.GLOBAL)) == "runledger.job_queue.organization_id IS NULL"


def test_one_status_and_a_sequence_of_it_are_the_same_filter():
    one = JobFilter(Scope.ADMIN, status=JobStatus.LEASED)
    sequence = JobFilter(Scope.ADMIN, status=[JobStatus.LEASED, JobStatus.LEASED])

    assert one == sequence
    assert hash(one) == hash(sequence)
    assert one.statuses == (JobStatus.LEASED,)


def test_text_of_a_status_is_taken_as_the_status():
    assert JobFilter(Scope.ADMIN, status="CANCELED").statuses == (JobStatus.CANCELED,)  # pyright: ignore[reportArgumentType]  # untyped callers


def test_status_is_written_as_a_constant():
    assert where(JobFilter(Scope.ADMIN, status=JobStatus.LEASED)) == (
        "runledger.job_queue.status = 'LEASED'"
    )


def test_instants_are_kept_in_utc():
    plus_two = timezone(timedelta(hours=2))

    chosen = JobFilter(Scope.ADMIN, created_from=datetime(2026, 1, 1, 2, tzinfo=plus_two))

    assert chosen.created_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert chosen.created_from is not None
    assert chosen.created_from.tzinfo is UTC


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("status", "RUNNING", "input.out_of_range"),
        ("status", [3], "input.wrong_type"),
        ("job_type", " ", "input.blank"),
        ("job_type", "x" * 201, "input.too_long"),
        ("job_type_contains", "\0", "input.invalid_characters"),
        ("job_type_contains", "", "input.blank"),
        ("worker_id", 1, "input.wrong_type"),
        ("workflow_run_id", str(ORGANIZATION), "input.wrong_type"),
        ("created_from", datetime(2026, 1, 1), "input.naive_timestamp"),  # noqa: DTZ001  # Refused.
        ("updated_before", "2026-01-01", "input.wrong_type"),
    ],
)
def test_bad_condition_is_refused(field, value, code):
    with pytest.raises(ValidationError) as refused:
        JobFilter(Scope.ADMIN, **{field: value})

    assert (refused.value.code, refused.value.field) == (code, field)


def test_scope_must_be_a_scope():
    with pytest.raises(ValidationError) as refused:
        JobFilter(None)  # pyright: ignore[reportArgumentType]  # None meant two things upstream

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", "scope")


def test_worker_process_imports_no_sqlalchemy():
    modules = "runledger_postgres.jobs, runledger_postgres.lifecycle, runledger_postgres.workers"
    program = f"import sys, {modules}; print('sqlalchemy' in sys.modules)"

    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
