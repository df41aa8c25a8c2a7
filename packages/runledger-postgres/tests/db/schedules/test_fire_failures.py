"""A schedule that cannot be fired is put off alone, and says why."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from runledger_core import InternalError, ValidationError
from runledger_postgres import (
    DueSchedule,
    ScheduleFire,
    claim_jobs,
    fire_due_schedules,
    list_job_schedules,
)

if TYPE_CHECKING:
    from conftest import Schedules

MINUTE = timedelta(minutes=1)
# As text, since some of them are no dates of Python.
NEXT_FIRE = "SELECT next_fire_at::text FROM runledger.job_schedules WHERE name = 'bad'"
BAD = "UPDATE runledger.job_schedules SET {} WHERE name = 'bad'"

SUPPRESS = """
    CREATE FUNCTION public.suppress() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER suppress BEFORE {} FOR EACH ROW WHEN ({}) EXECUTE FUNCTION public.suppress();
"""
REFUSE = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN RAISE ''secret %'', NEW; END';
    CREATE TRIGGER refuse BEFORE {} FOR EACH ROW WHEN ({}) EXECUTE FUNCTION public.refuse();
"""
WAIT = """
    CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM FROM public.tenant FOR UPDATE; RETURN NEW; END';
    CREATE TRIGGER wait BEFORE {} FOR EACH ROW WHEN ({}) EXECUTE FUNCTION public.wait();
"""
# What COMMIT would refuse, if nobody asked before.
REFUSE_LATE = """
    CREATE FUNCTION public.refuse_late() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN RAISE ''secret %'', NEW USING ERRCODE = ''23514''; END';
    CREATE CONSTRAINT TRIGGER refuse_late AFTER {} DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN ({}) EXECUTE FUNCTION public.refuse_late();
"""
MISSING_TENANT = """
    CREATE TABLE public.tenant (id uuid PRIMARY KEY);
    ALTER TABLE runledger.job_queue ADD CONSTRAINT fk_tenant FOREIGN KEY (organization_id)
        REFERENCES public.tenant (id) DEFERRABLE INITIALLY DEFERRED;
    UPDATE runledger.job_schedules SET organization_id = gen_random_uuid() WHERE name = 'bad'
"""
OF_BAD_JOB = ("INSERT ON runledger.job_queue", "NEW.job_type = 'test.bad'")
OF_BAD_SCHEDULE = ("UPDATE ON runledger.job_schedules", "NEW.name = 'bad'")


class Nameless(type):
    """A class of classes that cannot be named."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]  # the fault
        raise LookupError


class NamelessError(Exception, metaclass=Nameless):
    """An exception whose class cannot be named."""


def plan(due: DueSchedule) -> ScheduleFire:
    """As the cron of a scheduler: it reads the expression, and refuses what it cannot read."""
    match due.cron_expr:
        case "nonsense":
            raise ValidationError("job_schedule.invalid_cron", "not a cron", field="cron_expr")
        case "stumble":
            raise ZeroDivisionError("division by zero")
        case "nameless":
            raise NamelessError
        case "backwards":
            return ScheduleFire(due.scheduled_for, due.scheduled_for)
        case "nothing":
            return None  # pyright: ignore[reportReturnType]  # as a plan without a type checker
        case "naive":
            return ScheduleFire(due.now.replace(tzinfo=None), due.now)
        case _:
            return ScheduleFire(due.now + MINUTE, due.scheduled_for)


@pytest.fixture
def trio(schedules: Schedules) -> Schedules:
    """Three that are due: `a`, `bad` and `z`, in this order."""
    schedules.define("test.bad")
    for place, name in enumerate(("a", "bad", "z")):
        schedules.store(name, "test.bad" if name == "bad" else "test.job")
        schedules.be_due(name, seconds_ago=10 - place)
    return schedules


FAULTS: dict[str, tuple[str, str]] = {
    "cron that cannot be read": (BAD.format("cron_expr = 'nonsense'"), "job_schedule.invalid_cron"),
    "plan that stumbles": (BAD.format("cron_expr = 'stumble'"), "job_schedule.plan_failed"),
    "plan that fails without a name": (
        BAD.format("cron_expr = 'nameless'"),
        "job_schedule.plan_failed",
    ),
    "plan that stands still": (BAD.format("cron_expr = 'backwards'"), "job_schedule.plan_failed"),
    "plan without a fire": (BAD.format("cron_expr = 'nothing'"), "job_schedule.plan_failed"),
    "plan of a naive time": (BAD.format("cron_expr = 'naive'"), "input.naive_timestamp"),
    "template too deep": (
        BAD.format("payload_template = (repeat('[', 5000) || repeat(']', 5000))::jsonb"),
        "job.undecodable_row",
    ),
    "number too long": (
        BAD.format("payload_template = repeat('1', 5000)::jsonb"),
        "job.undecodable_row",
    ),
    "fire before all dates": (BAD.format("next_fire_at = '-infinity'"), "job.undecodable_row"),
    "fire before year one": (
        BAD.format("next_fire_at = '0044-03-15 00:00:00+00 BC'"),
        "job.undecodable_row",
    ),
    "disabled definition": (
        "UPDATE runledger.job_definitions SET is_enabled = false WHERE job_type = 'test.bad'",
        "job_schedule.definition_not_found_or_disabled",
    ),
    "missing definition": (
        "DELETE FROM runledger.job_definitions WHERE job_type = 'test.bad'",
        "job_schedule.definition_not_found_or_disabled",
    ),
    "trigger that refuses the job": (REFUSE.format(*OF_BAD_JOB), "db.query_failed"),
    "trigger that drops the job": (SUPPRESS.format(*OF_BAD_JOB), "db.rows_kept_back"),
    "deferred trigger that refuses the job": (
        REFUSE_LATE.format(*OF_BAD_JOB),
        "db.business_rule_violation",
    ),
    "deferred foreign key of the job": (MISSING_TENANT, "db.related_resource_missing"),
}
if sys.version_info >= (3, 13):
    # It reads deeper than PostgreSQL stores.
    del FAULTS["template too deep"]


@pytest.mark.core
@pytest.mark.parametrize(("fault", "code"), FAULTS.values(), ids=FAULTS)
def test_failing_schedule_is_put_off_alone_and_shows_why(trio: Schedules, fault: str, code: str):
    trio.connection.execute(fault.encode())
    cursor = trio.value(NEXT_FIRE)

    result = trio.fire(plan)

    assert [fire.name for fire in result.fired] == ["a", "z"]
    (deferred,) = result.deferred
    assert (deferred.name, deferred.error.code, deferred.failure_count) == ("bad", code, 1)
    assert [job["job_type"] for job in trio.jobs()] == ["test.job", "test.job"]
    assert trio.value(NEXT_FIRE) == cursor
    (after,) = [one for one in list_job_schedules(trio.connection) if one.name == "bad"]
    assert (after.is_active, after.last_fired_at) == (True, None)
    assert (after.failure_count, after.last_error_code) == (1, code)
    assert after.last_error_message == deferred.error.client_message
    assert "secret" not in str(after.last_error_message)
    assert (after.retry_at, result.next_due_at) == (deferred.retry_at, deferred.retry_at)


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("lock_timeout = 100", "db.lock_timeout"),
        ("statement_timeout = 200", "db.statement_timeout"),
    ],
)
@pytest.mark.parametrize(
    ("held", "is_put_off"),
    [(OF_BAD_JOB, True), (OF_BAD_SCHEDULE, False)],
    ids=["of its job", "of its own row"],
)
def test_schedule_whose_trigger_waits_for_a_held_row_holds_up_no_other(
    trio: Schedules, held: tuple[str, str], is_put_off: bool, setting: str, code: str
):
    trio.connection.execute("CREATE TABLE public.tenant AS SELECT 1 AS id")
    trio.connection.execute(WAIT.format(*held).encode())
    holder = trio.database.connect()
    holder.execute("SELECT FROM public.tenant FOR UPDATE")
    trio.connection.execute(f"SET {setting}".encode())

    result = trio.fire(plan)
    holder.rollback()

    assert [fire.name for fire in result.fired] == ["a", "z"]
    (deferred,) = result.deferred
    assert (deferred.name, deferred.error.code) == ("bad", code)
    assert (deferred.retry_at is not None) == is_put_off


def test_delay_doubles_to_an_hour_and_the_fire_stays(schedules: Schedules):
    schedules.store()
    tick = schedules.be_due()
    schedules.execute("UPDATE runledger.job_schedules SET cron_expr = 'nonsense'")
    delays: list[float] = []

    for _ in range(10):
        (deferred,) = schedules.fire(plan).deferred
        row = schedules.row()
        delays.append((row["retry_at"] - row["updated_at"]).total_seconds())
        assert (deferred.scheduled_for, row["next_fire_at"]) == (tick, tick)
        assert schedules.fire(plan).deferred == ()
        schedules.execute("UPDATE runledger.job_schedules SET retry_at = now()")

    assert [round(delay) for delay in delays] == [30, 60, 120, 240, 480, 960, 1920, *[3600] * 3]
    assert schedules.row()["failure_count"] == 10


def test_mended_schedule_makes_the_fire_that_it_had_missed(schedules: Schedules):
    schedules.store()
    tick = schedules.be_due()
    schedules.execute("UPDATE runledger.job_schedules SET cron_expr = 'nonsense'")
    schedules.fire(plan)
    schedules.execute("UPDATE runledger.job_schedules SET cron_expr = 'good', retry_at = now()")

    schedules.fire(plan)

    assert schedules.ticks() == [tick]
    row = schedules.row()
    assert (row["retry_at"], row["failure_count"]) == (None, 0)
    assert (row["last_error_code"], row["last_error_message"]) == (None, None)


def test_count_of_failures_stays_within_its_column(schedules: Schedules):
    schedules.store()
    schedules.be_due()
    schedules.execute(
        "UPDATE runledger.job_schedules SET cron_expr = 'nonsense', failure_count = 2147483647"
    )

    (deferred,) = schedules.fire(plan).deferred

    assert deferred.failure_count == 2_147_483_647


def test_failing_schedules_do_not_keep_others_from_their_turn(schedules: Schedules):
    for number in range(5):
        schedules.store(f"bad.{number}")
        schedules.be_due(f"bad.{number}", seconds_ago=100)
    schedules.store("good")
    schedules.be_due("good")
    schedules.execute(
        "UPDATE runledger.job_schedules SET cron_expr = 'nonsense' WHERE name <> 'good'"
    )

    passes = [schedules.fire(plan, limit=3) for _ in range(3)]

    assert [len(one.deferred) for one in passes] == [3, 2, 0]
    assert [[fire.name for fire in one.fired] for one in passes] == [[], ["good"], []]
    assert [one.is_full for one in passes] == [True, True, False]


@pytest.mark.parametrize(
    ("trigger", "code"),
    [
        (SUPPRESS, "db.rows_kept_back"),
        (REFUSE, "db.query_failed"),
        (REFUSE_LATE, "db.business_rule_violation"),
    ],
    ids=["drops", "refuses", "refuses late"],
)
def test_schedule_that_takes_no_write_is_reported_and_does_not_spin(
    trio: Schedules, trigger: str, code: str
):
    trio.connection.execute(trigger.format(*OF_BAD_SCHEDULE).encode())

    first = trio.fire(plan, limit=3)
    second = trio.fire(plan, limit=1)

    assert [fire.name for fire in first.fired] == ["a", "z"]
    (deferred,) = first.deferred
    assert (deferred.name, deferred.retry_at, deferred.error.code) == ("bad", None, code)
    assert (len(second.deferred), second.is_full) == (1, False)
    assert [job["job_type"] for job in trio.jobs()] == ["test.job", "test.job"]


def stuck_schedules(trio: Schedules) -> None:
    """Let the two that came due first take no write."""
    of_two = ("UPDATE ON runledger.job_schedules", "NEW.name <> 'z'")
    trio.connection.execute(REFUSE.format(*of_two).encode())


def test_schedules_that_take_no_write_do_not_keep_others_from_their_turn(trio: Schedules):
    stuck_schedules(trio)

    passes = [trio.fire(plan, limit=1) for _ in range(2)]

    assert [[fire.name for fire in one.fired] for one in passes] == [["z"], []]
    for one in passes:
        deferred = [(schedule.name, schedule.retry_at) for schedule in one.deferred]
        assert deferred == [("a", None), ("bad", None)]
    # The second has seen all that is due, and moved nothing.
    assert [one.is_full for one in passes] == [True, False]


def test_time_of_a_pass_ends_the_search_behind_schedules_that_take_no_write(
    trio: Schedules, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("runledger_postgres.schedules._pass._FIRING_SECONDS", 0)
    stuck_schedules(trio)

    result = trio.fire(plan, limit=1)

    assert [schedule.name for schedule in result.deferred] == ["a"]
    assert (result.fired, result.is_full, result.is_contended) == ((), False, True)


def test_deferred_constraint_sees_what_later_triggers_of_each_fire_store(trio: Schedules):
    """Each fire is checked as a whole, the second no sooner than the first."""
    trio.execute(MISSING_TENANT)
    trio.execute("UPDATE runledger.job_schedules SET organization_id = gen_random_uuid()")
    # Behind the look of the foreign key, by its name.
    trio.execute("""
        CREATE FUNCTION public.store_tenant() RETURNS trigger LANGUAGE plpgsql
            AS 'BEGIN INSERT INTO public.tenant VALUES (NEW.organization_id); RETURN NULL; END';
        CREATE TRIGGER store_tenant AFTER INSERT ON runledger.job_queue
            FOR EACH ROW EXECUTE FUNCTION public.store_tenant();
    """)

    result = trio.fire(plan)

    assert [fire.name for fire in result.fired] == ["a", "bad", "z"]
    assert trio.value("SELECT count(*) FROM public.tenant") == 3


def test_deferred_constraints_of_a_joined_transaction_stay_as_the_caller_set_them(
    trio: Schedules,
):
    trio.execute(REFUSE_LATE.format(*OF_BAD_JOB))
    caller = trio.database.connect()
    caller.execute("CREATE TABLE public.late (id int UNIQUE DEFERRABLE INITIALLY IMMEDIATE)")

    result = fire_due_schedules(caller, plan, limit=10)

    assert len(result.fired) == 3
    with pytest.raises(psycopg.errors.UniqueViolation), caller.transaction():
        caller.execute("INSERT INTO public.late VALUES (1), (1)")
    with pytest.raises(psycopg.errors.CheckViolation):
        caller.commit()
    assert trio.jobs() == []


def test_claimed_schedule_that_vanishes_undoes_the_pass(trio: Schedules):
    caller = trio.database.connect()

    def deleting(due: DueSchedule) -> ScheduleFire:
        caller.execute("DELETE FROM runledger.job_schedules WHERE name = 'bad'")
        return plan(due)

    with pytest.raises(InternalError) as caught:
        fire_due_schedules(caller, deleting, limit=10)

    assert caught.value.code == "job_schedule.claimed_schedule_missing"
    assert "bad" in caught.value.client_message
    # The caller's transaction goes on without any of it.
    row = caller.execute("SELECT count(*) FROM runledger.job_schedules").fetchone()
    assert row == (3,)
    caller.commit()
    assert trio.jobs() == []
    assert [fire.name for fire in trio.fire(plan).fired] == ["a", "bad", "z"]


def test_joined_pass_with_a_failure_leaves_the_callers_transaction_usable(trio: Schedules):
    trio.connection.execute(REFUSE.format(*OF_BAD_JOB).encode())
    caller = trio.database.connect()
    caller.execute("CREATE TABLE public.of_the_host (id int)")

    result = fire_due_schedules(caller, plan, limit=10)

    caller.execute("INSERT INTO public.of_the_host VALUES (1)")
    caller.commit()
    assert (len(result.fired), len(result.deferred)) == (2, 1)
    assert trio.value("SELECT count(*) FROM public.of_the_host") == 1
    assert len(trio.jobs()) == 2


def test_interrupted_pass_stores_nothing(trio: Schedules):
    caller = trio.database.connect()

    def interrupted(due: DueSchedule) -> ScheduleFire:
        if due.name == "z":
            raise KeyboardInterrupt
        return plan(due)

    with pytest.raises(KeyboardInterrupt):
        fire_due_schedules(caller, interrupted, limit=10)

    caller.commit()
    assert trio.jobs() == []


def test_deepest_template_can_be_read_by_the_worker(schedules: Schedules):
    """A list gets one level more when it becomes `payload`."""
    template: Any = "end"
    for _ in range(199):
        template = [template]
    schedules.store(payload_template=template)

    schedules.fire(plan)

    (job,) = claim_jobs(schedules.connection, worker_id="w", limit=1, lease_ttl_seconds=60)
    assert isinstance(job.payload, dict)
    assert job.payload["payload"] == template


@pytest.mark.parametrize("limit", [0, 1_001, True, "3"])
def test_limit_is_checked_before_sql(limit: Any):
    with pytest.raises(ValidationError) as caught:
        fire_due_schedules(object(), plan, limit=limit)  # pyright: ignore[reportArgumentType]  # not touched

    assert caught.value.field == "limit"
