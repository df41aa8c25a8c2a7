from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from runledger_core import Scope
from runledger_postgres import (
    DueSchedule,
    FiredSchedule,
    JobScheduleSummary,
    ScheduleFire,
    claim_jobs,
    connect_pool,
    fire_due_schedules,
    get_job,
    list_job_schedules,
    set_job_schedule_active,
    set_job_schedule_next_fire_at,
)
from runledger_postgres.wakeup import SLEEP_MARK_CLASS, WAKE_CHANNEL

if TYPE_CHECKING:
    from conftest import Schedules

OWNER = UUID(int=1)
SCHEDULERS = 8
TICKS = 60
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)


def plan_last(due: DueSchedule) -> ScheduleFire:
    return ScheduleFire(None, due.scheduled_for)


def plan_every_second(due: DueSchedule) -> ScheduleFire:
    """Each tick, those that were missed too."""
    return ScheduleFire(due.scheduled_for + SECOND, due.scheduled_for)


def plan_late(due: DueSchedule) -> ScheduleFire:
    return ScheduleFire(due.now + DAY, due.now + HOUR)


def listed(schedules: Schedules) -> JobScheduleSummary:
    (schedule,) = list_job_schedules(schedules.connection)
    return schedule


@pytest.mark.core
def test_due_schedule_makes_a_job_and_moves_on(schedules: Schedules):
    schedules.define(max_attempts=7, default_timeout_seconds=70, default_priority=-7)
    schedules.store(organization_id=OWNER, payload_template={"kind": "full"})
    fired_for = schedules.be_due()

    result = schedules.fire()

    (job,) = schedules.jobs()
    assert result.fired == (
        FiredSchedule(
            "nightly",
            job["id"],
            schedule_id=schedules.id(),
            job_type="test.job",
            scheduled_for=fired_for,
            next_fire_at=schedules.row()["next_fire_at"],
        ),
    )
    assert (result.deferred, result.deactivated) == ((), ())
    assert (job["job_type"], job["organization_id"]) == ("test.job", OWNER)
    assert (job["max_attempts"], job["timeout_seconds"], job["priority"]) == (7, 70, -7)
    assert (job["status"], job["stage"], job["is_ready"]) == ("PENDING", "scheduled", True)
    assert (job["run_number"], job["attempt"], job["idempotency_key"]) == (1, 0, None)
    assert (job["schedule_id"], job["scheduled_for"]) == (schedules.id(), fired_for)
    assert job["next_run_at"] == fired_for
    row = schedules.row()
    assert row["next_fire_at"] > result.now
    assert fired_for < row["last_fired_at"] <= result.now
    assert result.next_due_at == row["next_fire_at"]


@pytest.mark.parametrize(
    ("template", "payload"),
    [
        ({"a": 1}, {"a": 1}),
        ({}, {}),
        ({"_schedule": "mine", "b": 2}, {"b": 2}),
        ([1, 2], {"payload": [1, 2]}),
        ("text", {"payload": "text"}),
        (None, {"payload": None}),
    ],
)
def test_payload_is_the_template_and_tells_the_fire(
    schedules: Schedules, template: Any, payload: dict[str, Any]
):
    schedules.store('it\'s "n\\ghtly"', payload_template=template)
    schedules.execute("UPDATE runledger.job_schedules SET next_fire_at = '2016-05-26 14:01:00+02'")

    schedules.fire()

    (job,) = schedules.jobs()
    told = {
        "schedule_id": str(job["schedule_id"]),
        "schedule_name": 'it\'s "n\\ghtly"',
        "scheduled_for": "2016-05-26T12:01:00Z",
    }
    assert job["payload"] == payload | {"_schedule": told}


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("2016-01-02 03:04:05+00", "2016-01-02T03:04:05Z"),
        ("2016-01-02 03:04:05.25+00", "2016-01-02T03:04:05.250000Z"),
        ("0987-01-02 00:00:00+00", "0987-01-02T00:00:00Z"),
    ],
)
def test_fire_is_told_in_utc_whatever_the_sessions_time_zone(
    schedules: Schedules, stored: str, text: str
):
    schedules.store()
    caller = schedules.database.connect(autocommit=True)
    caller.execute("SET TimeZone = 'America/Santiago'")
    caller.execute("SET DateStyle = 'German'")
    schedules.execute("UPDATE runledger.job_schedules SET next_fire_at = %s", stored)

    fire_due_schedules(caller, plan_last, limit=1)

    told = schedules.jobs()[0]["payload"]["_schedule"]["scheduled_for"]
    assert told == text
    assert datetime.fromisoformat(told) == schedules.jobs()[0]["scheduled_for"]


def test_job_that_is_to_run_later_waits(schedules: Schedules):
    schedules.store()
    schedules.be_due()

    result = schedules.fire(plan_late)

    (job,) = schedules.jobs()
    assert (job["is_ready"], job["next_run_at"] > result.now) == (False, True)
    assert claim_jobs(schedules.connection, worker_id="w", limit=1, lease_ttl_seconds=60) == []


def test_fired_job_is_claimed_like_any_other(schedules: Schedules):
    schedules.store(payload_template={"a": 1})
    schedules.fire()

    (job,) = claim_jobs(schedules.connection, worker_id="w", limit=9, lease_ttl_seconds=60)

    record = get_job(schedules.connection, job.id, scope=Scope.ADMIN)
    assert record is not None
    assert record.stage == "running"
    assert isinstance(job.payload, dict)
    assert (job.payload["a"], "_schedule" in job.payload) == (1, True)


def test_plan_is_told_what_is_stored(schedules: Schedules):
    schedules.store(organization_id=OWNER, cron_expr="@hourly", max_jitter_seconds=12)
    fired_for = schedules.be_due()
    seen: list[DueSchedule] = []

    def plan(due: DueSchedule) -> ScheduleFire:
        seen.append(due)
        return plan_last(due)

    result = schedules.fire(plan)

    (due,) = seen
    assert due == DueSchedule(
        schedules.id(),
        "nightly",
        job_type="test.job",
        organization_id=OWNER,
        cron_expr="@hourly",
        scheduled_for=fired_for,
        now=due.now,
        max_jitter_seconds=12,
        failure_count=0,
    )
    assert fired_for < due.now <= result.now


def test_what_is_not_due_is_left(schedules: Schedules):
    schedules.store("later", next_fire_at=datetime(2040, 1, 1, tzinfo=UTC))
    schedules.store("off", is_active=False)
    schedules.store("failing")
    schedules.execute(
        "UPDATE runledger.job_schedules SET retry_at = '2030-01-01 00:00:00+00'"
        " WHERE name = 'failing'"
    )
    before = schedules.fetch("SELECT * FROM runledger.job_schedules ORDER BY name")

    result = schedules.fire()

    assert (result.fired, result.deferred) == ((), ())
    assert (result.is_full, result.is_contended) == (False, False)
    assert result.next_due_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert schedules.fetch("SELECT * FROM runledger.job_schedules ORDER BY name") == before


def test_without_schedules_nothing_will_be_due(schedules: Schedules):
    result = schedules.fire()

    assert (result.fired, result.next_due_at) == ((), None)


def test_fire_that_lies_ahead_by_a_moment_is_not_made_early(schedules: Schedules):
    schedules.store()
    schedules.execute("BEGIN")
    fired_for = schedules.be_due(seconds_ago=-0.003)
    early = fire_due_schedules(schedules.connection, plan_last, limit=1)
    schedules.until("SELECT clock_timestamp() >= %s", fired_for)
    in_time = fire_due_schedules(schedules.connection, plan_last, limit=1)
    schedules.execute("COMMIT")

    made = [fire.scheduled_for for fire in (*early.fired, *in_time.fired)]
    assert made == [fired_for]
    # On a slow machine the first look may have come after the tick.
    assert early.fired or early.next_due_at == fired_for
    assert schedules.ticks() == [fired_for]


def test_first_due_are_fired_first_and_a_full_pass_says_so(schedules: Schedules):
    for place, name in enumerate(("third", "first", "second", "fourth")):
        schedules.store(name)
        schedules.be_due(name, seconds_ago={0: 2, 1: 4, 2: 3, 3: 1}[place])

    passes = [schedules.fire(limit=2) for _ in range(3)]

    names = [[fire.name for fire in one.fired] for one in passes]
    assert names == [["first", "second"], ["third", "fourth"], []]
    assert [one.is_full for one in passes] == [True, True, False]
    assert [one.is_contended for one in passes] == [True, False, False]


def test_pass_whose_time_is_over_keeps_what_it_fired_and_says_that_there_is_more(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runledger_postgres.schedules._pass._FIRING_SECONDS", 0)
    for place, name in enumerate(("first", "second")):
        schedules.store(name)
        schedules.be_due(name, seconds_ago=2 - place)

    passes = [schedules.fire() for _ in range(3)]

    assert [[fire.name for fire in one.fired] for one in passes] == [["first"], ["second"], []]
    assert [one.is_full for one in passes] == [True, False, False]


def test_downtime_of_a_month_ends_in_one_late_fire_with_its_original_time(schedules: Schedules):
    schedules.store()
    fired_for = schedules.be_due(seconds_ago=30 * 24 * 3600)

    results = [schedules.fire() for _ in range(3)]

    assert [len(result.fired) for result in results] == [1, 0, 0]
    assert schedules.ticks() == [fired_for]
    assert schedules.row()["next_fire_at"] > results[0].now


def test_tick_that_a_restart_falls_on_is_made_after_it(schedules: Schedules):
    schedules.store()
    fired_for = schedules.now() + timedelta(milliseconds=50)
    set_job_schedule_next_fire_at(schedules.connection, "nightly", fired_for)
    before = schedules.fire()
    schedules.connection.close()

    # The next process begins after the tick, over a connection of its own.
    schedules.connection = schedules.database.connect(autocommit=True)
    schedules.until("SELECT clock_timestamp() >= %s", fired_for)
    after = schedules.fire()

    assert [fire.scheduled_for for fire in (*before.fired, *after.fired)] == [fired_for]


@pytest.mark.parametrize("back", [0, 1], ids=["the first", "the latest"])
def test_fire_that_was_made_counts_as_fired_when_the_cursor_is_set_back(
    schedules: Schedules, back: int
):
    schedules.store()
    schedules.be_due(seconds_ago=30)
    ticks = [schedules.fire(plan_every_second).fired[0].scheduled_for for _ in range(2)]
    set_job_schedule_next_fire_at(schedules.connection, "nightly", ticks[back])

    again = schedules.fire()

    following = schedules.row()["next_fire_at"]
    assert [(fire.job_id, fire.scheduled_for, fire.next_fire_at) for fire in again.fired] == [
        (None, ticks[back], following)
    ]
    assert following > again.now
    assert schedules.ticks() == ticks


def test_clock_that_steps_back_makes_nothing_twice(schedules: Schedules):
    """A clock 90 seconds back is one at which everything stored lies 90 seconds ahead."""
    schedules.store()
    fired_for = schedules.be_due(seconds_ago=30)
    schedules.fire(plan_every_second)
    schedules.execute(
        "UPDATE runledger.job_schedules SET next_fire_at = next_fire_at + interval '90 seconds'"
    )

    assert schedules.fire(plan_every_second).fired == ()

    # When the clock is right again, the next tick is the one after the last that was made.
    schedules.execute(
        "UPDATE runledger.job_schedules SET next_fire_at = next_fire_at - interval '90 seconds'"
    )
    schedules.fire(plan_every_second)
    assert schedules.ticks() == [fired_for, fired_for + SECOND]


def test_schedule_without_a_further_fire_is_switched_off_with_the_reason(schedules: Schedules):
    schedules.store()
    fired_for = schedules.be_due()

    result = schedules.fire(plan_last)

    assert result.deactivated == ("nightly",)
    assert [(fire.job_id is None, fire.next_fire_at) for fire in result.fired] == [(False, None)]
    assert schedules.ticks() == [fired_for]
    assert result.next_due_at is None
    schedule = listed(schedules)
    assert (schedule.is_active, schedule.last_error_code) == (False, "job_schedule.exhausted")
    assert schedule.last_error_message == "the cron expression has no further fire"
    assert schedule.next_fire_at == fired_for


@pytest.mark.parametrize("is_pruned", [False, True], ids=["kept", "pruned"])
def test_exhausted_schedule_that_is_switched_on_makes_its_last_fire_no_second_time(
    schedules: Schedules, is_pruned: bool
):
    """A sync of a catalog switches it on at every deployment."""
    schedules.store()
    schedules.fire(plan_last)
    if is_pruned:
        schedules.execute("DELETE FROM runledger.job_queue")
    set_job_schedule_active(schedules.connection, "nightly", True)

    result = schedules.fire(plan_last)

    assert [fire.job_id for fire in result.fired] == [None]
    assert listed(schedules).is_active is False
    assert listed(schedules).last_error_code == "job_schedule.exhausted"
    assert len(schedules.jobs()) == (0 if is_pruned else 1)


def test_changed_expression_revives_an_exhausted_schedule(schedules: Schedules):
    schedules.store()
    schedules.fire(plan_last)
    set_job_schedule_active(schedules.connection, "nightly", True)
    schedules.store(cron_expr="@hourly")

    schedules.fire()

    assert listed(schedules).is_active is True
    assert listed(schedules).last_error_code is None
    assert len(schedules.jobs()) == 2


def test_expression_changed_and_changed_back_around_a_tick_loses_and_doubles_nothing(
    schedules: Schedules,
):
    schedules.store(cron_expr="@daily")
    tick = schedules.be_due()

    # Before the tick is made: the due fire begins anew now, so that one job is made of it.
    schedules.store(cron_expr="@hourly")
    schedules.store(cron_expr="@daily")
    schedules.fire()
    (made,) = schedules.ticks()
    assert made >= tick

    # After it was made, with the fire given: it is that fire, and has its job already.
    schedules.store(cron_expr="@hourly", next_fire_at=made)
    schedules.store(cron_expr="@daily", next_fire_at=made)
    schedules.fire()
    assert schedules.ticks() == [made]
    assert schedules.row()["next_fire_at"] > made


def test_pass_wakes_a_sleeping_worker_of_the_type_once(schedules: Schedules):
    schedules.define("test.other")
    schedules.store("a")
    schedules.store("b")
    schedules.store("c", "test.other")
    worker = schedules.database.connect_directly(autocommit=True)
    worker.execute(f"LISTEN {WAKE_CHANNEL}".encode())
    worker.execute("SELECT pg_advisory_lock_shared(%s, hashtext('test.job'))", [SLEEP_MARK_CLASS])

    schedules.fire()

    worker.execute("SELECT 1")
    assert [notify.payload for notify in worker.notifies(timeout=0)] == ["test.job"]


def test_job_that_waits_for_its_jitter_wakes_nobody(schedules: Schedules):
    schedules.store()
    worker = schedules.database.connect_directly(autocommit=True)
    worker.execute(f"LISTEN {WAKE_CHANNEL}".encode())
    worker.execute("SELECT pg_advisory_lock_shared(%s, hashtext('test.job'))", [SLEEP_MARK_CLASS])

    schedules.fire(plan_late)

    worker.execute("SELECT 1")
    assert [notify.payload for notify in worker.notifies(timeout=0)] == []


def test_pool_owns_the_transaction(schedules: Schedules):
    schedules.store()

    with connect_pool(schedules.database.dsn, max_size=1) as pool:
        fire_due_schedules(pool, plan_last, limit=1)

    assert len(schedules.jobs()) == 1


def test_joined_pass_is_the_callers_to_commit(schedules: Schedules):
    schedules.store()
    caller = schedules.database.connect()
    caller.execute("SET lock_timeout = '7s'")

    assert len(fire_due_schedules(caller, plan_last, limit=1).fired) == 1

    assert caller.execute("SHOW lock_timeout").fetchone() == ("7s",)
    caller.rollback()
    assert schedules.jobs() == []
    assert listed(schedules).is_active is True


def test_eight_schedulers_at_once_make_one_job_per_tick(schedules: Schedules):
    names = ("a", "b", "c")
    for name in names:
        schedules.store(name)
    begin = schedules.now().replace(microsecond=0) - TICKS * SECOND
    for name in names:
        set_job_schedule_next_fire_at(schedules.connection, name, begin)
    end = begin + TICKS * SECOND
    barrier = threading.Barrier(SCHEDULERS)

    def plan(due: DueSchedule) -> ScheduleFire:
        following = due.scheduled_for + SECOND
        return ScheduleFire(following if following < end else None, due.scheduled_for)

    def run(_number: int) -> int:
        made = 0
        with schedules.database.connect(autocommit=True) as db:
            barrier.wait(30)
            while True:
                result = fire_due_schedules(db, plan, limit=2)
                made += sum(fire.job_id is not None for fire in result.fired)
                if not result.fired and not result.is_contended:
                    return made

    with ThreadPoolExecutor(SCHEDULERS) as threads:
        made = list(threads.map(run, range(SCHEDULERS)))

    ticks = [begin + number * SECOND for number in range(TICKS)]
    for name in names:
        assert schedules.ticks(name) == ticks
    assert sum(made) == len(names) * TICKS
