"""Two sessions, every order of their steps: schedulers, syncs, disables, deletes, changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from runledger_core import JobDefinitionSpec, JobScheduleUpsert, RunledgerError, UnavailableError
from runledger_postgres import (
    DueSchedule,
    ScheduleFire,
    delete_job_schedule,
    fire_due_schedules,
    set_job_schedule_active,
    set_job_schedule_next_fire_at,
    sync_job_definitions_exact,
    sync_job_schedules,
    sync_job_schedules_exact,
    upsert_job_definition,
    upsert_job_schedule,
)
from runledger_test_support import Interleaving, Session, Step, StepContext, permute

if TYPE_CHECKING:
    from conftest import Schedules

TICK = datetime(2016, 1, 2, 3, tzinfo=UTC)
EARLIER = datetime(2016, 1, 1, tzinfo=UTC)
LATER = datetime(2040, 1, 1, 12, tzinfo=UTC)
STOP_SECONDS = 3

Act = Callable[[Any], object]


def plan(due: DueSchedule) -> ScheduleFire:
    return ScheduleFire(LATER, due.scheduled_for)


def request(**fields: Any) -> JobScheduleUpsert:
    fields = {"cron_expr": "@hourly"} | fields
    return JobScheduleUpsert("nightly", "test.job", **fields)


def fire(db: Any) -> int:
    result = fire_due_schedules(db, plan, limit=10)
    assert result.deferred == ()
    return len(result.fired)


def played(
    schedules: Schedules,
    first: tuple[str, Act],
    second: tuple[str, Act],
    *,
    prepare: Callable[[], None],
    check: Callable[[Interleaving], None],
) -> list[Interleaving]:
    """Play both acts, each with a commit of its own, in every order; no step may deadlock."""

    def session(name: str, act: Act) -> Session:
        return Session(
            name,
            schedules.database.connect_directly,
            steps=[
                Step("act", lambda context: act(context.connection)),
                Step("commit", commit),
            ],
        )

    def sessions() -> list[Session]:
        schedules.execute("DELETE FROM runledger.job_queue")
        schedules.execute("DELETE FROM runledger.job_schedules")
        schedules.define(is_enabled=True)
        prepare()
        return [session(*first), session(*second)]

    def checked(run: Interleaving) -> None:
        assert run.deadlocks == ()
        check(run)

    return permute(sessions, checked)


def commit(context: StepContext) -> None:
    context.connection.commit()


def is_first(run: Interleaving, session: str) -> bool:
    """Whether the session's act ended before the other began, or made it wait."""
    return run.outcomes[0].session == session


ACTIVATIONS: dict[str, tuple[bool, Act]] = {
    "switch on": (True, lambda db: set_job_schedule_active(db, "nightly", True)),
    "new active": (False, lambda db: upsert_job_schedule(db, request())),
    "sync": (True, lambda db: sync_job_schedules(db, [request()])),
    "exact sync": (
        True,
        lambda db: sync_job_schedules_exact(db, [request()], scope=["nightly"]),
    ),
}
DISABLES: dict[str, Act] = {
    "upsert": lambda db: upsert_job_definition(db, JobDefinitionSpec("test.job", is_enabled=False)),
    "exact sync": lambda db: sync_job_definitions_exact(
        db, [JobDefinitionSpec("test.kept")], scope=["test.job", "test.kept"]
    ),
}


@pytest.mark.parametrize(("is_stored", "activate"), ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("disable", DISABLES.values(), ids=DISABLES)
def test_activation_and_disable_exclude_each_other_in_every_order(
    schedules: Schedules, is_stored: bool, activate: Act, disable: Act
):
    def prepare() -> None:
        if is_stored:
            schedules.store(is_active=False)

    def check(run: Interleaving) -> None:
        is_active = schedules.value(
            "SELECT coalesce(bool_or(is_active), false) FROM runledger.job_schedules"
        )
        is_enabled = schedules.value(
            "SELECT is_enabled FROM runledger.job_definitions WHERE job_type = 'test.job'"
        )
        assert (is_active, is_enabled) in {(True, True), (False, False)}
        codes = {
            outcome.error.code
            for outcome in run.outcomes
            if isinstance(outcome.error, RunledgerError)
        }
        assert codes in (
            {"job_definition.active_schedule_exists"},
            {"job_schedule.definition_not_found_or_disabled"},
        )

    runs = played(
        schedules, ("activate", activate), ("disable", disable), prepare=prepare, check=check
    )

    assert len(runs) == 6
    assert any(outcome.was_blocked for run in runs for outcome in run.outcomes)


def be_due(schedules: Schedules) -> Callable[[], None]:
    def prepare() -> None:
        schedules.store(next_fire_at=TICK)

    return prepare


def test_of_two_schedulers_one_makes_the_job_in_every_order(schedules: Schedules):
    def check(run: Interleaving) -> None:
        made = [run.outcome(name, "act").value for name in ("a", "b")]
        assert sorted(made) == [0, 1]  # pyright: ignore[reportArgumentType]  # numbers of fires
        assert schedules.ticks() == [TICK]
        # None waits: what another holds is skipped.
        assert not any(outcome.was_blocked for outcome in run.outcomes)

    played(schedules, ("a", fire), ("b", fire), prepare=be_due(schedules), check=check)


def test_delete_beside_a_fire_loses_and_doubles_nothing_in_every_order(schedules: Schedules):
    def check(run: Interleaving) -> None:
        fired = run.outcome("fire", "act").value
        assert run.outcome("delete", "act").value is True
        assert fired == is_first(run, "fire")
        assert [job["scheduled_for"] for job in schedules.jobs()] == [TICK][: int(bool(fired))]
        assert schedules.fetch("SELECT FROM runledger.job_schedules") == []

    played(
        schedules,
        ("fire", fire),
        ("delete", lambda db: delete_job_schedule(db, "nightly")),
        prepare=be_due(schedules),
        check=check,
    )


def test_changed_expression_beside_a_fire_takes_the_given_next_in_every_order(
    schedules: Schedules,
):
    def check(run: Interleaving) -> None:
        fired = run.outcome("fire", "act").value
        assert fired == is_first(run, "fire")
        assert schedules.ticks() == [TICK][: int(bool(fired))]
        row = schedules.row()
        assert (row["cron_expr"], row["next_fire_at"]) == ("@hourly", LATER)

    played(
        schedules,
        ("fire", fire),
        ("change", lambda db: upsert_job_schedule(db, request(next_fire_at=LATER))),
        prepare=be_due(schedules),
        check=check,
    )


def test_expression_changed_and_changed_back_beside_a_fire_loses_nothing_in_every_order(
    schedules: Schedules,
):
    def there_and_back(db: Any) -> None:
        upsert_job_schedule(db, request())
        upsert_job_schedule(db, request(cron_expr="* * * * *"))

    def check(run: Interleaving) -> None:
        # What the change put at now is due as well.
        fire(schedules.connection)
        ticks = schedules.ticks()
        assert len(ticks) == len(set(ticks)) == 1 + is_first(run, "fire")
        assert (TICK in ticks) == is_first(run, "fire")
        assert fire(schedules.connection) == 0

    played(
        schedules,
        ("fire", fire),
        ("change", there_and_back),
        prepare=be_due(schedules),
        check=check,
    )


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "absent"])
def test_exact_sync_beside_a_fire_loses_and_doubles_nothing_in_every_order(
    schedules: Schedules, is_kept: bool
):
    kept = [request(cron_expr="* * * * *", max_jitter_seconds=9)] if is_kept else []

    def check(run: Interleaving) -> None:
        fired = run.outcome("fire", "act").value
        # A fire that comes after finds a kept schedule as it is then, and an absent one inactive.
        assert fired == (is_kept or is_first(run, "fire"))
        assert schedules.ticks() == [TICK][: int(bool(fired))]
        row = schedules.row()
        assert (row["is_active"], row["max_jitter_seconds"]) == (is_kept, 9 if is_kept else 0)

    runs = played(
        schedules,
        ("fire", fire),
        ("sync", lambda db: sync_job_schedules_exact(db, kept, scope=["nightly"])),
        prepare=be_due(schedules),
        check=check,
    )

    assert any(run.outcome("fire", "act").was_blocked for run in runs)
    assert any(run.outcome("sync", "act").was_blocked for run in runs)


def test_switching_off_beside_an_exact_sync_never_deadlocks(schedules: Schedules):
    def prepare() -> None:
        schedules.store(next_fire_at=TICK)
        schedules.store("other", next_fire_at=TICK)

    def check(run: Interleaving) -> None:
        assert all(outcome.error is None for outcome in run.outcomes)
        rows = schedules.fetch("SELECT is_active FROM runledger.job_schedules")
        assert [row["is_active"] for row in rows] == [False, False]

    played(
        schedules,
        ("off", lambda db: set_job_schedule_active(db, "nightly", False)),
        ("sync", lambda db: sync_job_schedules_exact(db, [], scope=["nightly", "other"])),
        prepare=prepare,
        check=check,
    )


def test_scheduler_waits_for_an_exact_sync_no_longer_than_a_stop_allows(schedules: Schedules):
    schedules.store(next_fire_at=TICK)
    with schedules.database.connect() as other:
        sync_job_schedules_exact(other, [request()], scope=["nightly"])
        caller = schedules.database.connect()
        began = time.monotonic()

        with pytest.raises(UnavailableError) as caught:
            fire(caller)

        assert time.monotonic() - began < STOP_SECONDS
        assert caught.value.code == "db.lock_timeout"
        assert caller.execute("SELECT 1").fetchone() == (1,)
        other.rollback()
    assert schedules.ticks() == []
    assert fire(schedules.connection) == 1


def test_exact_sync_waits_for_a_scheduler_no_longer_than_asked(schedules: Schedules):
    schedules.store(next_fire_at=TICK)
    with schedules.database.connect() as other:
        assert fire(other) == 1

        with pytest.raises(UnavailableError) as caught:
            sync_job_schedules_exact(
                schedules.connection, [], scope=["nightly"], lock_timeout_ms=20
            )

        other.commit()
    assert caught.value.code == "db.lock_timeout"
    assert schedules.row()["is_active"] is True
    assert schedules.ticks() == [TICK]


def test_schedule_that_a_host_holds_is_left_to_a_later_pass(schedules: Schedules):
    schedules.store(next_fire_at=TICK)
    schedules.store("other", next_fire_at=TICK)

    with schedules.held():
        result = fire_due_schedules(schedules.connection, plan, limit=10)

    assert [one.name for one in result.fired] == ["other"]
    assert (result.is_full, result.is_contended, result.next_due_at) == (False, True, LATER)
    assert [one.name for one in fire_due_schedules(schedules.connection, plan, limit=10).fired] == [
        "nightly"
    ]


def test_moved_next_fire_is_not_overwritten_by_a_fire_under_way(schedules: Schedules, background):
    schedules.store(next_fire_at=TICK)
    with schedules.database.connect() as other:
        assert fire(other) == 1
        moved = background.submit(
            set_job_schedule_next_fire_at, schedules.connection, "nightly", EARLIER
        )
        schedules.until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
            other.info.backend_pid,
        )
        other.commit()

        assert moved.result() is True

    assert schedules.row()["next_fire_at"] == EARLIER
    assert fire(schedules.connection) == 1
    assert schedules.ticks() == [EARLIER, TICK]


WRITES: dict[str, Act] = {
    "switch off": lambda db: set_job_schedule_active(db, "nightly", False),
    "move": lambda db: set_job_schedule_next_fire_at(db, "nightly", LATER),
    "delete": lambda db: delete_job_schedule(db, "nightly"),
    "upsert": lambda db: upsert_job_schedule(db, request()),
    "sync": lambda db: sync_job_schedules(db, [request()]),
    "fire": fire,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_write_that_waits_for_the_table_of_an_exact_sync_holds_no_row(
    schedules: Schedules, background, write: Act
):
    """Else the sync could come to wait for that row, and both for each other."""
    schedules.store(next_fire_at=TICK)
    schedules.store("other", next_fire_at=TICK)
    with schedules.database.connect() as other, schedules.database.connect() as observer:
        sync_job_schedules_exact(other, [], scope=["other"])
        writing = background.submit(write, schedules.connection)
        schedules.until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
            other.info.backend_pid,
        )

        held = observer.execute(
            "SELECT name FROM runledger.job_schedules FOR UPDATE SKIP LOCKED"
        ).fetchall()

        observer.rollback()
        other.rollback()
        writing.exception()
    assert held == [("nightly",)]
