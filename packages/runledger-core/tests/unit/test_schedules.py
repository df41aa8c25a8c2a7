import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from runledger_core import JobScheduleUpsert, JobType, ScheduleName, ValidationError
from runledger_core.cron import CronExpression

OWNER = UUID(int=7)


def test_defaults():
    schedule = JobScheduleUpsert("nightly", "reports.build", cron_expr="0 3 * * *")

    assert type(schedule.name) is ScheduleName
    assert type(schedule.job_type) is JobType
    assert type(schedule.cron_expr) is CronExpression
    assert dataclasses.asdict(schedule) == {
        "name": "nightly",
        "job_type": "reports.build",
        "cron_expr": "0 3 * * *",
        "payload_template": {},
        "is_active": True,
        "organization_id": None,
        "max_jitter_seconds": 0,
        "next_fire_at": None,
        "payload_template_json": "{}",
    }


def test_template_is_encoded_at_once():
    template = {"kind": "full"}
    schedule = JobScheduleUpsert("n", "t", cron_expr="@daily", payload_template=template)
    template["kind"] = "changed"

    assert schedule.payload_template_json == '{"kind":"full"}'


@pytest.mark.parametrize(
    ("template", "text"), [(None, "null"), ([1, 2], "[1,2]"), ("all", '"all"'), (3, "3")]
)
def test_template_may_be_any_json(template, text):
    schedule = JobScheduleUpsert("n", "t", cron_expr="@daily", payload_template=template)

    assert schedule.payload_template_json == text


def test_first_fire_is_kept_in_utc():
    at = datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    schedule = JobScheduleUpsert("n", "t", cron_expr="@daily", next_fire_at=at)

    assert schedule.next_fire_at == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert schedule.next_fire_at is not None
    assert schedule.next_fire_at.tzinfo is UTC


def test_extreme_values_are_kept():
    schedule = JobScheduleUpsert(
        "n" * 200, "t", cron_expr="@daily", organization_id=OWNER, max_jitter_seconds=86_400
    )

    assert schedule.name == "n" * 200
    assert schedule.max_jitter_seconds == 86_400
    assert schedule.organization_id == OWNER


def test_requests_are_hashable_and_do_not_show_their_template():
    schedule = JobScheduleUpsert("n", "t", cron_expr="@daily", payload_template={"a": "secret"})

    assert hash(schedule) == hash(dataclasses.replace(schedule))
    assert "secret" not in repr(schedule)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", "", "job_schedule.invalid_name"),
        ("name", " \t", "job_schedule.invalid_name"),
        ("name", " nightly", "job_schedule.invalid_name"),
        ("name", "nightly\n", "job_schedule.invalid_name"),
        ("name", "n" * 201, "job_schedule.invalid_name"),
        ("name", "a\0b", "job_schedule.invalid_name"),
        ("name", 5, "input.wrong_type"),
        ("job_type", " ", "input.blank"),
        ("cron_expr", "every day", "job_schedule.invalid_cron"),
        ("cron_expr", " @daily", "job_schedule.invalid_cron"),
        ("max_jitter_seconds", -1, "job_schedule.invalid_jitter"),
        ("max_jitter_seconds", 86_401, "job_schedule.invalid_jitter"),
        ("max_jitter_seconds", True, "input.wrong_type"),
        ("max_jitter_seconds", 1.5, "input.wrong_type"),
        ("is_active", 1, "input.wrong_type"),
        ("organization_id", str(OWNER), "input.wrong_type"),
        ("next_fire_at", datetime(2026, 1, 1), "input.naive_timestamp"),  # noqa: DTZ001  # refused
        ("next_fire_at", "2026-01-01", "input.wrong_type"),
        ("payload_template", {"at": datetime.now(UTC)}, "input.json_unsupported_type"),
    ],
)
def test_other_values_are_refused(field, value, code):
    schedule = JobScheduleUpsert("n", "t", cron_expr="@daily")

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(schedule, **{field: value})

    assert caught.value.code == code
    assert (caught.value.field or "").startswith(field)
    assert "schedule_name" not in caught.value.client_message


@pytest.mark.parametrize("days", ["30 2", "31 4", "31 2,4,6,9,11"])
def test_days_that_never_come_are_refused(days):
    with pytest.raises(ValidationError) as caught:
        JobScheduleUpsert("n", "t", cron_expr=f"0 0 0 {days} *")

    assert caught.value.code == "job_schedule.invalid_cron"
