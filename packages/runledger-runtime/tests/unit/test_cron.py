from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runledger_core import ValidationError
from runledger_postgres.schedules import DueSchedule
from runledger_runtime.cron import jitter_seconds, next_fire_after, plan_fire

ID = UUID("018fa1f8-0000-7000-8000-000000000123")
NIL = UUID(int=0)
NOW = datetime(2026, 5, 26, 12, 34, 56, 789_000, tzinfo=UTC)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(cron_expr="0 * * * *", *, scheduled_for="2026-05-26T12:00:00", now=NOW, jitter=0):
    return DueSchedule(
        ID,
        "nightly",
        job_type="test.job",
        organization_id=None,
        cron_expr=cron_expr,
        scheduled_for=at(scheduled_for),
        now=now,
        max_jitter_seconds=jitter,
        failure_count=0,
    )


def test_the_next_fire_is_strictly_after():
    assert next_fire_after("0 * * * *", at("2026-05-26T12:00:00")) == at("2026-05-26T13:00:00")
    assert next_fire_after("* * * * * *", NOW) == at("2026-05-26T12:34:57")
    assert next_fire_after("0 0 0 1 1 ? 2020", NOW) is None


def test_what_is_no_expression_is_refused():
    with pytest.raises(ValidationError) as refused:
        next_fire_after("0 0 L * *", NOW)

    assert refused.value.code == "job_schedule.invalid_cron"


@pytest.mark.parametrize(
    ("schedule_id", "base", "most", "expected"),
    [
        (ID, "2026-05-26T12:01:00", 30, 3),
        (NIL, "2026-02-01T12:05:00", 60, 54),
        (ID, "2026-05-26T12:01:00", 0, 0),
    ],
)
def test_jitter_is_that_of_the_original(schedule_id, base, most, expected):
    assert jitter_seconds(schedule_id, at(base), most) == expected


def test_jitter_is_of_the_instant_whatever_its_offset():
    base = at("2026-05-26T12:01:00").astimezone(timezone(timedelta(hours=-4)))

    assert jitter_seconds(ID, base, 30) == 3


@given(
    st.uuids(),
    st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001  # it gets the zone
    st.integers(0, 86_400),
)
def test_jitter_is_never_negative_nor_longer_than_allowed(schedule_id, base, most):
    assert 0 <= jitter_seconds(schedule_id, base, most) <= most


def test_a_fire_in_time_is_followed_by_the_next():
    fire = plan_fire(due(now=at("2026-05-26T12:00:00.010")))

    assert fire.next_fire_at == at("2026-05-26T13:00:00")
    assert fire.run_at == at("2026-05-26T12:00:00")


def test_a_late_fire_keeps_its_time_and_what_was_missed_is_left_out():
    fire = plan_fire(due(scheduled_for="2025-05-26T12:00:00"))

    assert fire.next_fire_at == at("2026-05-26T13:00:00")
    assert fire.run_at == at("2025-05-26T12:00:00")


def test_the_job_waits_for_its_jitter_and_the_schedule_does_not():
    fire = plan_fire(due("* * * * *", scheduled_for="2026-05-26T12:01:00", jitter=30))

    assert fire.run_at == at("2026-05-26T12:01:03")
    assert fire.next_fire_at == at("2026-05-26T12:35:00")


def test_a_clock_behind_the_fire_does_not_take_the_schedule_back():
    fire = plan_fire(due(now=at("2026-05-26T10:00:00")))

    assert fire.next_fire_at == at("2026-05-26T13:00:00")


def test_the_last_fire_has_none_after_it():
    fire = plan_fire(due("0 0 12 26 5 ? 2026"))

    assert fire.next_fire_at is None
    assert fire.run_at == at("2026-05-26T12:00:00")


def test_a_stored_text_that_is_no_expression_is_refused():
    with pytest.raises(ValidationError) as refused:
        plan_fire(due("0 0 31 4 *"))

    assert refused.value.code == "job_schedule.invalid_cron"
