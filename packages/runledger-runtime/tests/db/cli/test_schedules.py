import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from runledger_core import JobScheduleUpsert
from runledger_postgres import update_job_definition
from runledger_postgres.schedules import (
    fire_due_schedules,
    get_job_schedule_by_name,
    set_job_schedule_active,
    upsert_job_schedule,
)
from runledger_runtime.cron import plan_fire

pytestmark = pytest.mark.usefixtures("defined")

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\u202e"
PAST = datetime(2026, 2, 27, 10, tzinfo=UTC)
FAR = datetime(2090, 1, 1, tzinfo=UTC)


def store(pool, *names, cron_expr="0 * * * *", next_fire_at=FAR, **fields):
    for name in names:
        request = JobScheduleUpsert(
            name, "mail.send", cron_expr=cron_expr, next_fire_at=next_fire_at, **fields
        )
        upsert_job_schedule(pool, request)


def write_row(database, sql, *parameters):
    with database.connect(autocommit=True) as connection:
        connection.execute(sql, parameters)


def is_active(pool, *names):
    found = [get_job_schedule_by_name(pool, name) for name in names]
    return [schedule is not None and schedule.is_active for schedule in found]


def test_list_shows_schedules_by_name_with_state_and_next_fire(run_cli, runledger_pool):
    store(runledger_pool, "b-nightly")
    store(runledger_pool, "a-hourly", cron_expr="@hourly")
    set_job_schedule_active(runledger_pool, "b-nightly", False)

    result = run_cli("schedules", "list")

    assert result.exit_code == 0
    header, first, second = result.stdout.splitlines()
    assert header.split() == ["NAME", "TYPE", "CRON", "STATE", "NEXT", "LAST", "ERROR"]
    assert first.split()[:5] == ["a-hourly", "mail.send", "@hourly", "active", "in"]
    assert second.split()[-4:] == ["paused", "-", "-", "-"]


def test_list_tells_what_fails_and_what_has_ended(run_cli, runledger_pool, runledger_database):
    store(runledger_pool, "broken", "over", next_fire_at=PAST)
    write_row(
        runledger_database,
        "UPDATE runledger.job_schedules SET cron_expr = CASE name WHEN 'over'"
        " THEN '0 0 10 27 2 ? 2026' ELSE 'never' END",
    )
    fire_due_schedules(runledger_pool, plan_fire, limit=10)

    lines = [line.split() for line in run_cli("schedules", "list").stdout.splitlines()[1:]]

    assert lines[0][3] == "failing"
    assert lines[0][-1] == "job_schedule.invalid_cron"
    assert "ended" in lines[1]
    assert lines[1][-1] == "job_schedule.exhausted"


def test_list_filters_and_goes_on_after_a_page(run_cli, runledger_pool):
    store(runledger_pool, "mail-1", "mail-2", "photo-1")
    set_job_schedule_active(runledger_pool, "mail-2", False)

    def listed(*options):
        shown = json.loads(run_cli("schedules", "list", "--json", *options).stdout)
        return [schedule["name"] for schedule in shown["schedules"]], shown["next_after"]

    assert listed() == (["mail-1", "mail-2", "photo-1"], None)
    assert listed("--name-contains", "MAIL") == (["mail-1", "mail-2"], None)
    assert listed("--active") == (["mail-1", "photo-1"], None)
    assert listed("--paused") == (["mail-2"], None)
    assert listed("--limit", "2") == (["mail-1", "mail-2"], "mail-2")
    assert listed("--after", "mail-2") == (["photo-1"], None)


def test_empty_list_is_no_failure_and_says_so(run_cli):
    result = run_cli("schedules", "list")

    assert (result.exit_code, result.stdout) == (0, "no schedules\n")


def test_pause_and_resume_change_the_named_ones(run_cli, runledger_pool):
    store(runledger_pool, "nightly", "hourly")

    paused = run_cli("schedules", "pause", "nightly")
    again = run_cli("schedules", "pause", "nightly", "--json")
    assert is_active(runledger_pool, "nightly", "hourly") == [False, True]
    resumed = run_cli("schedules", "resume", "nightly", "hourly")

    assert (paused.exit_code, paused.stdout) == (0, "nightly paused\n")
    assert (again.exit_code, json.loads(again.stdout)) == (
        0,
        {"schedules": {"nightly": "UNCHANGED"}},
    )
    assert (resumed.exit_code, resumed.stdout) == (0, "nightly resumed\nhourly active already\n")
    assert is_active(runledger_pool, "nightly", "hourly") == [True, True]


def test_unknown_names_are_told_and_the_others_changed(run_cli, runledger_pool):
    store(runledger_pool, "nightly")

    result = run_cli("schedules", "pause", "nihgtly", "nightly")

    assert result.exit_code == 1
    assert result.stdout == "nihgtly no such schedule\nnightly paused\n"
    assert "cli.some_schedules_refused: 1 of 2 schedules were not paused" in result.stderr
    assert " next: runledger schedules list" in result.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_error_in_the_middle_tells_what_was_done_before(
    run_cli, runledger_pool, refuse_updates, options
):
    store(runledger_pool, "first", "held", "last")

    refuse_updates("job_schedules", "OLD.name = 'held'")

    result = run_cli("schedules", "pause", "first", "held", "last", *options)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: db.query_failed: ")
    expected = '{"schedules": {"first": "DONE"}}\n' if options else "first paused\n"
    assert result.stdout == expected
    assert is_active(runledger_pool, "first", "held", "last") == [False, True, True]


def test_a_schedule_of_a_disabled_type_is_not_resumed(run_cli, runledger_pool):
    store(runledger_pool, "nightly")
    set_job_schedule_active(runledger_pool, "nightly", False)
    update_job_definition(runledger_pool, "mail.send", is_enabled=False)

    result = run_cli("schedules", "resume", "nightly")

    assert result.exit_code == 1
    assert result.stdout == "nightly its job type has no definition, or a disabled one\n"
    assert is_active(runledger_pool, "nightly") == [False]


def test_a_filter_counts_first_and_needs_yes(run_cli, runledger_pool):
    store(runledger_pool, "mail-1", "mail-2", "photo-1")

    counted = run_cli("schedules", "pause", "--name-contains", "mail")
    assert is_active(runledger_pool, "mail-1", "mail-2") == [True, True]
    done = run_cli("schedules", "pause", "--name-contains", "mail", "--yes")
    nothing = run_cli("schedules", "pause", "--name-contains", "mail")

    assert counted.exit_code == 1
    assert counted.stderr.startswith("2 schedules match\nerror: cli.confirmation_required: ")
    assert (done.exit_code, done.stdout) == (0, "mail-1 paused\nmail-2 paused\n")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert is_active(runledger_pool, "mail-1", "mail-2", "photo-1") == [False, False, True]


def test_preview_shows_the_next_fires_of_a_schedule(run_cli, runledger_pool):
    store(runledger_pool, "nightly", next_fire_at=FAR)

    shown = json.loads(run_cli("schedules", "preview", "nightly", "--count", "3", "--json").stdout)

    assert shown["cron_expr"] == "0 * * * *"
    assert [fire["scheduled_for"] for fire in shown["fires"]] == [
        "2090-01-01T00:00:00+00:00",
        "2090-01-01T01:00:00+00:00",
        "2090-01-01T02:00:00+00:00",
    ]


def test_preview_of_an_overdue_schedule_begins_with_its_late_fire(run_cli, runledger_pool):
    store(runledger_pool, "nightly", next_fire_at=PAST)
    before = datetime.now(UTC)

    shown = json.loads(run_cli("schedules", "preview", "nightly", "--json").stdout)

    fires = [datetime.fromisoformat(fire["scheduled_for"]) for fire in shown["fires"]]
    assert fires[0] == PAST
    assert before < fires[1] <= before + timedelta(hours=1, minutes=1)
    assert [after - before for before, after in pairwise(fires[1:])] == [timedelta(hours=1)] * 3


def test_preview_tells_when_the_jobs_run_where_there_is_jitter(run_cli, runledger_pool):
    store(runledger_pool, "nightly", next_fire_at=FAR, max_jitter_seconds=600)
    fires = json.loads(run_cli("schedules", "preview", "nightly", "--json").stdout)["fires"]
    fire_due_schedules(runledger_pool, plan_fire, limit=10)

    printed = run_cli("schedules", "preview", "nightly").stdout.splitlines()

    assert printed[0].split() == ["FIRE", "DAY", "WHEN", "RUNS"]
    delays = [
        datetime.fromisoformat(fire["run_at"]) - datetime.fromisoformat(fire["scheduled_for"])
        for fire in fires
    ]
    assert all(timedelta() <= delay <= timedelta(minutes=10) for delay in delays)
    assert len(set(delays)) > 1


def test_preview_tells_nothing_that_lies_beyond_the_last_year(run_cli, runledger_pool):
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    store(runledger_pool, "nightly", next_fire_at=last, max_jitter_seconds=86_400)

    shown = json.loads(run_cli("schedules", "preview", "nightly", "--json").stdout)
    printed = run_cli("schedules", "preview", "nightly")

    assert shown["fires"] == [{"scheduled_for": "9999-12-31T23:59:59+00:00", "run_at": None}]
    assert printed.exit_code == 0
    header, line = printed.stdout.splitlines()
    assert header.split() == ["FIRE", "DAY", "WHEN", "RUNS"]
    assert (line.split()[:2], line.split()[-1]) == (["9999-12-31", "23:59:59Z"], "-")


def test_preview_of_a_paused_schedule_says_so(run_cli, runledger_pool):
    store(runledger_pool, "nightly", is_active=False)

    result = run_cli("schedules", "preview", "nightly")

    assert result.exit_code == 0
    assert result.stderr.startswith("note: it is paused")
    assert "2090-01-01 00:00:00Z" in result.stdout


def test_preview_of_an_unknown_schedule_fails_by_code(run_cli):
    result = run_cli("schedules", "preview", "nightly")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: cli.schedule_not_found: ")
    assert " next: runledger schedules list" in result.stderr


def test_hostile_names_cannot_control_the_terminal(run_cli, runledger_pool, runledger_database):
    name = f"x{HOSTILE}x"
    store(runledger_pool, name)
    write_row(
        runledger_database,
        "UPDATE runledger.job_schedules SET last_error_code = %s, cron_expr = %s",
        HOSTILE,
        f"{HOSTILE}x",
    )

    outputs = [
        run_cli("schedules", *verb).output
        for verb in (
            ["list"],
            ["list", "--json"],
            ["list", "--limit", "1"],
            ["pause", name],
            ["pause", f"{name}y"],
            ["preview", name],
            ["preview", f"{name}y"],
            ["preview", "--cron", HOSTILE],
        )
    ]

    for output in outputs:
        text = output.replace("\n", "")
        assert text
        assert not [character for character in text if not character.isprintable()]
