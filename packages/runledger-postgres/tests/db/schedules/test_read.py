from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from runledger_core import InternalError, ValidationError
from runledger_postgres import get_job_schedule_by_name, list_job_schedules

if TYPE_CHECKING:
    from conftest import Schedules

# A number with more digits than Python reads, and a template nested too deeply.
UNREADABLE = (
    pytest.param("1" * 5_000, id="digits"),
    pytest.param(
        "[" * 5_000 + "]" * 5_000,
        id="depth",
        # It reads JSON as deep as PostgreSQL stores it.
        marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 reads it"),
    ),
)


def names(schedules: Schedules, **conditions: Any) -> list[str]:
    return [schedule.name for schedule in list_job_schedules(schedules.connection, **conditions)]


def test_unknown_name_is_none(schedules: Schedules):
    assert get_job_schedule_by_name(schedules.connection, "none") is None


def test_list_is_ordered_by_name_and_goes_on_behind_one(schedules: Schedules):
    for name in ("c", "a", "d", "b"):
        schedules.store(name)

    assert names(schedules) == ["a", "b", "c", "d"]
    assert names(schedules, limit=2) == ["a", "b"]
    assert names(schedules, limit=2, after="b") == ["c", "d"]
    assert names(schedules, after="d") == []


def test_list_is_filtered(schedules: Schedules):
    schedules.store("mail.a")
    schedules.store("Mail.b", is_active=False)
    schedules.store("fax%c")

    assert set(names(schedules, name_contains="MAIL")) == {"mail.a", "Mail.b"}
    assert names(schedules, name_contains="%") == ["fax%c"]
    assert names(schedules, is_active=True) == ["fax%c", "mail.a"]
    assert names(schedules, is_active=False, name_contains="mail") == ["Mail.b"]


def test_entry_of_a_list_has_all_but_the_template(schedules: Schedules):
    stored = schedules.store(organization_id=UUID(int=1), max_jitter_seconds=9)

    (entry,) = list_job_schedules(schedules.connection)

    for field in entry.__dataclass_fields__:
        assert getattr(entry, field) == getattr(stored, field)


@pytest.mark.parametrize("template", UNREADABLE)
def test_row_that_python_cannot_read_is_listed(schedules: Schedules, template: str):
    schedules.store("a")
    schedules.store("b")
    schedules.execute(
        "UPDATE runledger.job_schedules SET payload_template = %s::jsonb,"
        " next_fire_at = 'infinity' WHERE name = 'a'",
        template,
    )

    assert names(schedules) == ["a", "b"]
    with pytest.raises(InternalError) as caught:
        get_job_schedule_by_name(schedules.connection, "a")
    assert caught.value.code == "job.undecodable_row"


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        ({"limit": 0}, "job.invalid_pagination"),
        ({"limit": 1_001}, "job.invalid_pagination"),
        ({"after": 5}, "input.wrong_type"),
        ({"name_contains": b"a"}, "input.wrong_type"),
        ({"is_active": "yes"}, "input.wrong_type"),
    ],
)
def test_list_checks_its_arguments_before_sql(conditions: Any, code: str):
    with pytest.raises(ValidationError) as caught:
        list_job_schedules(object(), **conditions)  # pyright: ignore[reportArgumentType]  # not touched

    assert caught.value.code == code
