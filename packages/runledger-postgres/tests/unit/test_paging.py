from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import NonCallableMock
from uuid import UUID

import pytest

from runledger_core import Scope, ValidationError
from runledger_postgres.admin import JobFilter, list_jobs
from runledger_postgres.jobs import (
    LOG_END,
    DeadLetterCursor,
    JobEventCursor,
    list_dead_letters,
    list_job_attempts,
    list_job_events,
    list_job_logs,
)

JOB = UUID(int=1)
ADMIN = Scope.ADMIN

# Whoever ran SQL on this would fail with another error.
NO_DATABASE: Any = object()


def page_of_jobs(**page: Any) -> object:
    return list_jobs(NO_DATABASE, JobFilter(ADMIN), **page)


def page_of_dead_letters(**page: Any) -> object:
    return list_dead_letters(NO_DATABASE, scope=ADMIN, **page)


def page_of_events(**page: Any) -> object:
    return list_job_events(NO_DATABASE, JOB, scope=ADMIN, **page)


def page_of_logs(**page: Any) -> object:
    return list_job_logs(NO_DATABASE, JOB, scope=ADMIN, **page)


def page_of_attempts(**page: Any) -> object:
    return list_job_attempts(NO_DATABASE, JOB, scope=ADMIN, **page)


class OddNumber(int):
    """A number that compares with nothing."""

    def _refuse(self, other: object) -> bool:
        raise RuntimeError

    __lt__ = __le__ = __gt__ = __ge__ = _refuse


LISTS = [page_of_jobs, page_of_dead_letters, page_of_events, page_of_logs, page_of_attempts]


@pytest.mark.parametrize("page_of", LISTS)
@pytest.mark.parametrize("limit", [0, -1, 1001, 2**40, True, 1.0, "10", None, OddNumber(0)])
def test_bad_limit_is_refused_before_sql(page_of, limit):
    with pytest.raises(ValidationError) as refused:
        page_of(limit=limit)

    assert refused.value.code == "job.invalid_pagination"
    assert refused.value.field == "limit"


@pytest.mark.parametrize("page_of", LISTS)
def test_both_directions_at_once_are_refused_before_sql(page_of):
    with pytest.raises(ValidationError) as refused:
        page_of(after=1, before=1)

    assert refused.value.code == "job.invalid_pagination"


@pytest.mark.parametrize("direction", ["after", "before"])
@pytest.mark.parametrize(
    ("page_of", "cursor"),
    [
        (page_of_dead_letters, JOB),
        (page_of_dead_letters, JobEventCursor.END),
        (page_of_dead_letters, NonCallableMock(spec=DeadLetterCursor)),
        (page_of_events, 7),
        (page_of_events, (1, 2, 3)),
    ],
)
def test_cursor_of_another_list_is_refused_before_sql(page_of, cursor, direction):
    with pytest.raises(ValidationError) as refused:
        page_of(**{direction: cursor})

    assert refused.value.code == "job.invalid_pagination"
    assert refused.value.field == direction


@pytest.mark.parametrize("direction", ["after", "before"])
@pytest.mark.parametrize("page_of", [page_of_logs, page_of_attempts])
@pytest.mark.parametrize(
    ("cursor", "code"),
    [
        (-1, "input.out_of_range"),
        (2**63, "input.out_of_range"),
        ("1", "input.wrong_type"),
        (True, "input.wrong_type"),
    ],
)
def test_bad_number_as_cursor_is_refused_before_sql(page_of, cursor, code, direction):
    with pytest.raises(ValidationError) as refused:
        page_of(**{direction: cursor})

    assert (refused.value.code, refused.value.field) == (code, direction)


def test_jobs_go_on_from_an_id_only():
    with pytest.raises(ValidationError) as refused:
        page_of_jobs(after="0190")

    assert (refused.value.code, refused.value.field) == ("input.wrong_type", "after")


def test_dead_letter_cursor_needs_an_instant_and_an_id():
    with pytest.raises(ValidationError) as refused:
        DeadLetterCursor(datetime(2026, 1, 1), JOB)  # noqa: DTZ001  # The refused value.

    assert (refused.value.code, refused.value.field) == ("input.naive_timestamp", "failed_at")


def test_dead_letter_cursor_keeps_microseconds():
    instant = datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)

    assert DeadLetterCursor(instant, JOB).failed_at.microsecond == 123456


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, 2**63), (True, 0, 0)])
def test_event_cursor_refuses_numbers_that_no_timeline_holds(numbers):
    claim_number, rank, event_id = numbers

    with pytest.raises(ValidationError):
        JobEventCursor(claim_number, rank, event_id=event_id)


def test_end_of_a_log_is_the_largest_id():
    assert LOG_END == 9_223_372_036_854_775_807
