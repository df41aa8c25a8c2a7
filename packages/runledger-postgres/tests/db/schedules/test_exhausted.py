"""Expressions whose years are over: refused when they are new, by the clock of the database."""

import pytest

from runledger_core import JobScheduleUpsert, ValidationError
from runledger_postgres import sync_job_schedules

OVER = "0 0 0 1 1 ? 2020"
NEVER_OVER = "0 0 * * *"


def request(name="nightly", cron_expr=OVER):
    return JobScheduleUpsert(name, "test.job", cron_expr=cron_expr)


def test_new_schedule_that_would_never_fire_is_refused(schedules):
    with pytest.raises(ValidationError) as refused:
        schedules.store(cron_expr=OVER)

    assert refused.value.code == "job_schedule.invalid_cron"
    assert refused.value.field == "cron_expr"
    assert "nightly has no fire after now" in refused.value.client_message
    assert schedules.tuples() == []


def test_change_to_an_expression_that_is_over_is_refused_and_changes_nothing(schedules):
    schedules.store(cron_expr=NEVER_OVER)
    before = schedules.tuples()

    with pytest.raises(ValidationError):
        schedules.store(cron_expr=OVER)

    assert schedules.tuples() == before


def test_sync_names_the_entry_that_is_over(schedules):
    entries = [request("first", NEVER_OVER), request("second")]

    with pytest.raises(ValidationError) as refused:
        sync_job_schedules(schedules.connection, entries)

    assert refused.value.entry_index == 1
    assert schedules.tuples() == []


def test_stored_expression_that_has_run_out_is_no_obstacle(schedules):
    schedules.store(cron_expr=NEVER_OVER)
    schedules.execute("UPDATE runledger.job_schedules SET cron_expr = %s", OVER)

    report = sync_job_schedules(schedules.connection, [request()])
    stored = schedules.store(cron_expr=OVER, max_jitter_seconds=7)

    assert report.synced == ("nightly",)
    assert (stored.cron_expr, stored.max_jitter_seconds) == (OVER, 7)
