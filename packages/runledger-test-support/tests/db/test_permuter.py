from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from runledger_core import UnavailableError
from runledger_test_support.databases import TemporaryDatabase
from runledger_test_support.permuter import (
    Interleaving,
    InterleavingError,
    Session,
    Step,
    StepContext,
    StepState,
    permute,
)


@pytest.fixture
def database(runledger_unmigrated_database: TemporaryDatabase) -> TemporaryDatabase:
    with psycopg.connect(runledger_unmigrated_database.dsn) as connection:
        connection.execute("CREATE TABLE accounts (id int4 PRIMARY KEY, balance int4)")
    return runledger_unmigrated_database


def execute(statement: str) -> Callable[[StepContext], object]:
    def run(context: StepContext) -> object:
        cursor = context.connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    return run


def commit(context: StepContext) -> None:
    context.connection.commit()


def reset(database: TemporaryDatabase) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("TRUNCATE accounts")
        connection.execute("INSERT INTO accounts VALUES (1, 100), (2, 100)")


def balance(database: TemporaryDatabase, account: int) -> object:
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute("SELECT balance FROM accounts WHERE id = %s", [account]).fetchone()
    return row[0] if row else None


def connects(database: TemporaryDatabase) -> Callable[[], psycopg.Connection[tuple[object, ...]]]:
    return lambda: psycopg.connect(database.dsn)


def atomic_sessions(database: TemporaryDatabase) -> list[Session]:
    reset(database)
    add = execute("UPDATE accounts SET balance = balance + 10 WHERE id = 1")
    return [
        Session(name, connects(database), steps=[Step("add", add), Step("commit", commit)])
        for name in ("a", "b")
    ]


def test_blocked_steps_are_detected_and_the_others_go_on(database: TemporaryDatabase) -> None:
    balances: list[object] = []

    runs = permute(
        lambda: atomic_sessions(database), lambda _run: balances.append(balance(database, 1))
    )

    assert balances == [120] * 6
    blocked = {
        run.order: [outcome.session for outcome in run.outcomes if outcome.was_blocked]
        for run in runs
    }
    assert blocked == {
        ("a", "a", "b", "b"): [],
        ("a", "b", "a", "b"): ["b"],
        ("a", "b", "b", "a"): ["b"],
        ("b", "a", "a", "b"): ["a"],
        ("b", "a", "b", "a"): ["a"],
        ("b", "b", "a", "a"): [],
    }


def test_steps_of_a_blocked_session_follow_when_it_is_free(database: TemporaryDatabase) -> None:
    runs = permute(lambda: atomic_sessions(database), lambda _run: None)

    late = next(run for run in runs if run.order == ("a", "b", "b", "a"))
    begun = [(outcome.session, outcome.step) for outcome in late.outcomes]
    assert begun == [("a", "add"), ("b", "add"), ("a", "commit"), ("b", "commit")]
    assert late.outcome("b", "add").blocked_by == ("a",)


def test_lost_update_is_found(database: TemporaryDatabase) -> None:
    def sessions() -> list[Session]:
        reset(database)
        read = execute("SELECT balance FROM accounts WHERE id = 1")

        def write(context: StepContext) -> None:
            seen = context.results["read"]
            assert isinstance(seen, int)
            context.connection.execute("UPDATE accounts SET balance = %s WHERE id = 1", [seen + 10])

        steps = [Step("read", read), Step("write", write), Step("commit", commit)]
        return [Session(name, connects(database), steps=steps) for name in ("a", "b")]

    def check(_run: Interleaving) -> None:
        assert balance(database, 1) == 120, "an update was lost"

    with pytest.raises(InterleavingError, match="an update was lost") as found:
        permute(sessions, check)

    assert found.value.interleaving.order == ("a", "a", "b", "a", "b", "b")
    assert "  b.read: DONE, returned 100\n" in str(found.value)
    assert isinstance(found.value.__cause__, AssertionError)


def test_deadlock_of_opposite_orders_is_found(database: TemporaryDatabase) -> None:
    def sessions() -> list[Session]:
        reset(database)

        def session(name: str, first: int, second: int) -> Session:
            steps = [
                Step(
                    f"add{account}", execute(f"UPDATE accounts SET balance = 1 WHERE id={account}")
                )
                for account in (first, second)
            ]
            return Session(name, connects(database), steps=[*steps, Step("commit", commit)])

        return [session("a", 1, 2), session("b", 2, 1)]

    runs = permute(sessions, lambda _run: None)

    assert len(runs) == 20
    deadlocked = [run for run in runs if run.deadlocks]
    # Whenever both have their first row before either has its second.
    assert len(deadlocked) == 12
    assert all(len(run.deadlocks) == 1 for run in deadlocked)
    victim = deadlocked[0].deadlocks[0]
    assert victim.state is StepState.FAILED
    skipped = deadlocked[0].outcome(victim.session, "commit")
    assert skipped.state is StepState.SKIPPED


def test_three_sessions_can_wait_in_a_row(database: TemporaryDatabase) -> None:
    def sessions() -> list[Session]:
        reset(database)
        add = execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
        steps = [Step("add", add), Step("commit", commit)]
        return [Session(name, connects(database), steps=steps) for name in ("a", "b", "c")]

    balances: list[object] = []
    runs = permute(sessions, lambda _run: balances.append(balance(database, 1)))

    assert balances == [103] * 90
    waiting = next(run for run in runs if run.order == ("a", "b", "c", "a", "b", "c"))
    assert [outcome.session for outcome in waiting.outcomes if outcome.was_blocked] == ["b", "c"]


def test_uncommitted_work_is_rolled_back_when_the_session_ends(
    database: TemporaryDatabase,
) -> None:
    def sessions() -> list[Session]:
        reset(database)
        add = execute("UPDATE accounts SET balance = 0 WHERE id = 1")
        return [Session(name, connects(database), steps=[Step("add", add)]) for name in ("a", "b")]

    balances: list[object] = []
    permute(sessions, lambda _run: balances.append(balance(database, 1)))

    assert balances == [100, 100]


def test_failing_step_ends_its_session(database: TemporaryDatabase) -> None:
    def sessions() -> list[Session]:
        reset(database)
        steps = [
            Step("add", execute("UPDATE accounts SET balance = 0 WHERE id = 1")),
            Step("fail", execute("SELECT 1 / 0")),
            Step("commit", commit),
        ]
        return [Session("a", connects(database), steps=steps)]

    runs = permute(sessions, lambda _run: None)

    assert [outcome.state for outcome in runs[0].outcomes] == [
        StepState.DONE,
        StepState.FAILED,
        StepState.SKIPPED,
    ]
    assert runs[0].outcome("a", "fail").sqlstate == "22012"
    assert balance(database, 1) == 100


def test_limit_plays_an_even_selection(database: TemporaryDatabase) -> None:
    runs = permute(lambda: atomic_sessions(database), lambda _run: None, limit=2)

    assert [run.number for run in runs] == [3, 6]


def test_step_that_waits_for_an_outsider_is_given_up(database: TemporaryDatabase) -> None:
    reset(database)
    with psycopg.connect(database.dsn) as outsider:
        outsider.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
        add = execute("UPDATE accounts SET balance = 1 WHERE id = 1")

        with pytest.raises(UnavailableError, match=r"a\.add") as refused:
            permute(
                lambda: [Session("a", connects(database), steps=[Step("add", add)])],
                lambda _run: None,
                step_timeout_seconds=0.1,
            )

    assert refused.value.code == "test_support.wait_timeout"


def test_nothing_is_left_behind(database: TemporaryDatabase) -> None:
    permute(lambda: atomic_sessions(database), lambda _run: None)

    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("runledger-permuter")]
