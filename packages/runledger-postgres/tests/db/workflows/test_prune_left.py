"""Runs that cannot be pruned are left whole, are told of, and hold up no other run and no host."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from runledger_core import RunledgerError
from runledger_postgres.workflows import _prune
from runledger_test_support import Interleaving, Session, Step, permute

from ._pruning import (
    TABLES,
    age,
    canceled,
    delete_all,
    ended,
    prune,
    rows,
    runs,
    sessions_of,
)
from .conftest import Workflows
from .engine import keep_writes


class Host:
    """A table of the host's that refers to rows of runs."""

    def __init__(self, workflows: Workflows, table: str, rule: str) -> None:
        self._look = workflows.look
        self._of_run = "id" if table == "workflow_runs" else "workflow_run_id"
        self._table = table
        self._look.execute(
            f"CREATE TABLE public.host (id uuid REFERENCES runledger.{table} {rule})".encode()
        )

    def keep(self, *run_ids: UUID) -> None:
        """Refer to these runs."""
        self._look.execute(
            f"INSERT INTO public.host SELECT id FROM runledger.{self._table}"
            f" WHERE {self._of_run} = ANY (%s)".encode(),
            [list(run_ids)],
        )

    def let_go(self) -> None:
        """Refer to none."""
        self._look.execute("DELETE FROM public.host")


RULES = {
    "restrict": "ON DELETE RESTRICT",
    "no action": "ON DELETE NO ACTION",
    "deferred": "DEFERRABLE INITIALLY DEFERRED",
}


@pytest.mark.core
@pytest.mark.parametrize("table", ["workflow_runs", "workflow_steps", "job_queue"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_run_that_the_host_refers_to_is_left_and_the_others_go(
    workflows: Workflows, caplog: pytest.LogCaptureFixture, table: str, rule: str
):
    made = [canceled(workflows, days=20 - number) for number in range(7)]
    kept = [made[0], made[1], made[4]]
    host = Host(workflows, table, rule)
    host.keep(*kept)

    pruned = prune(workflows.pool)
    left = runs(workflows)
    again = prune(workflows.pool)
    records = [(record.levelname, vars(record)["runs"]) for record in caplog.records]
    host.let_go()

    assert (pruned, set(left), again) == (4, set(kept), 0)
    assert records == [("WARNING", 3)] * 2
    assert (prune(workflows.pool), runs(workflows)) == (3, [])


def test_runs_that_the_host_refers_to_do_not_use_up_the_limit(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_prune, "_BATCH", 2)
    made = [canceled(workflows, days=20 - number) for number in range(8)]
    Host(workflows, "workflow_runs", RULES["no action"]).keep(*made[:5])

    pruned = [prune(workflows.pool, limit=1) for _ in range(4)]

    assert pruned == [1, 1, 1, 0]
    assert set(runs(workflows)) == set(made[:5])


@pytest.mark.core
def test_refused_run_costs_the_callers_transaction_nothing(workflows: Workflows):
    first, second = canceled(workflows, days=9), canceled(workflows)
    Host(workflows, "workflow_steps", RULES["restrict"]).keep(first)
    connection = workflows.database.connect()
    connection.execute("CREATE TABLE public.kept (id int4)")

    pruned = prune(connection)
    inside = connection.execute("SELECT id FROM runledger.workflow_runs").fetchall()
    outside = runs(workflows)
    connection.commit()

    assert (pruned, inside, set(outside)) == (1, [(first,)], {first, second})
    assert runs(workflows) == [first]
    assert workflows.value("SELECT to_regclass('public.kept') IS NOT NULL")


def test_deferred_key_is_the_callers_to_look_at_in_his_transaction(workflows: Workflows):
    run_id = canceled(workflows)
    Host(workflows, "workflow_runs", RULES["deferred"]).keep(run_id)
    connection = workflows.database.connect()

    pruned = prune(connection)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.commit()

    assert (pruned, runs(workflows)) == (1, [run_id])


def reasons(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    """Return how many runs were left, and why, by each warning."""
    told = [vars(record) for record in caplog.records if record.levelname == "WARNING"]
    return [(record["runs"], record["code"], record["sqlstate"]) for record in told]


@pytest.mark.core
@pytest.mark.parametrize(
    ("table", "run_id"),
    [
        ("workflow_runs", "id"),
        ("workflow_steps", "workflow_run_id"),
        ("workflow_step_dependencies", "workflow_run_id"),
        ("workflow_run_mutations", "workflow_run_id"),
        ("job_queue", "workflow_run_id"),
    ],
)
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
def test_run_of_which_a_trigger_keeps_a_part_is_left_whole(
    workflows: Workflows,
    caplog: pytest.LogCaptureFixture,
    table: str,
    run_id: str,
    is_joined: bool,
):
    # The result step of a run that is kept is kept by a key of ours.
    kept = ended(workflows, has_result=False)
    age(workflows, kept)
    before = rows(workflows)
    age(workflows, ended(workflows))
    keep = keep_writes(f"DELETE ON runledger.{table}", f"OLD.{run_id} = '{kept}'")
    workflows.look.execute(keep.encode())

    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        pruned = prune(connection)
        connection.commit()

    assert (pruned, rows(workflows)) == (1, before)
    assert reasons(caplog) == [(1, "db.rows_kept_back", "22P02")]


def test_history_that_a_trigger_keeps_does_not_keep_its_run(workflows: Workflows):
    age(workflows, ended(workflows))
    workflows.look.execute(keep_writes("DELETE ON runledger.job_logs", "true").encode())
    before = rows(workflows)

    pruned = prune(workflows.pool)

    assert (pruned, rows(workflows)) == (
        1,
        {table: [] for table in TABLES} | {"job_logs": before["job_logs"]},
    )


def raise_at_delete(workflows: Workflows, state: str, *, table: str, condition: str) -> None:
    workflows.look.execute(
        f"""
        CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql
            AS $$BEGIN RAISE 'no' USING ERRCODE = '{state}'; END$$;
        CREATE TRIGGER fail BEFORE DELETE ON runledger.{table} FOR EACH ROW
            WHEN ({condition}) EXECUTE FUNCTION public.fail();
        """.encode()
    )


@pytest.mark.core
@pytest.mark.parametrize(
    "state",
    ["P0001", "23514", "45000", "MY001", "42501", "22000", "55000", "55P03", "XX000"],
)
def test_run_for_which_a_trigger_raises_is_left_whole_and_the_others_go(
    workflows: Workflows, caplog: pytest.LogCaptureFixture, state: str
):
    kept = ended(workflows)
    age(workflows, kept)
    before = rows(workflows)
    for _ in range(3):
        canceled(workflows)
    raise_at_delete(
        workflows, state, table="workflow_steps", condition=f"OLD.workflow_run_id = '{kept}'"
    )

    pruned = prune(workflows.pool)

    assert (pruned, rows(workflows)) == (3, before)
    assert [(number, found) for number, _, found in reasons(caplog)] == [(1, state)]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("40001", "db.serialization_failure"),
        ("40P01", "db.serialization_failure"),
        ("53100", "db.out_of_resources"),
        ("57014", "db.statement_timeout"),
        ("57P01", "db.unavailable"),
    ],
)
def test_what_is_no_fault_of_one_run_ends_the_call(workflows: Workflows, state: str, code: str):
    run_id = canceled(workflows)
    raise_at_delete(workflows, state, table="workflow_runs", condition="true")

    with pytest.raises(RunledgerError) as failed:
        prune(workflows.pool)

    assert (failed.value.code, runs(workflows)) == (code, [run_id])


# What PostgreSQL itself refuses of a table, whatever its rows.
OF_THE_TABLE = {
    "no replica identity": (
        """
        ALTER TABLE runledger.workflow_steps REPLICA IDENTITY NOTHING;
        CREATE PUBLICATION steps FOR TABLE runledger.workflow_steps;
        """,
        "db.object_not_ready",
    ),
    "rule": (
        "CREATE RULE kept AS ON DELETE TO runledger.job_logs DO INSTEAD NOTHING",
        "db.query_failed",
    ),
}


@pytest.mark.parametrize(("sql", "code"), OF_THE_TABLE.values(), ids=OF_THE_TABLE)
def test_what_is_refused_without_a_run_ends_the_call(workflows: Workflows, sql: str, code: str):
    made = {canceled(workflows) for _ in range(3)}
    workflows.look.execute(sql.encode())

    with pytest.raises(RunledgerError) as failed:
        prune(workflows.pool)

    assert (failed.value.code, set(runs(workflows))) == (code, made)


def test_role_that_may_not_delete_is_told(workflows: Workflows):
    canceled(workflows)
    role = f"reader_{uuid4().hex}"

    with closing(workflows.database.connect()) as connection:
        connection.execute(
            f"""
            CREATE ROLE {role};
            GRANT USAGE ON SCHEMA runledger TO {role};
            GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA runledger TO {role};
            SET LOCAL ROLE {role};
            """.encode()
        )
        with pytest.raises(RunledgerError) as failed:
            prune(connection)
        usable = connection.execute("SELECT 1").fetchone()
        connection.rollback()

    assert (failed.value.code, usable) == ("db.permission_denied", (1,))


# Rows that the delete comes to: of the host, by his key's rule, or of the run.
HELD = {
    "cascade": ("ON DELETE CASCADE", "SELECT FROM public.host FOR UPDATE"),
    "set null": ("ON DELETE SET NULL", "SELECT FROM public.host FOR UPDATE"),
    "deleted": ("ON DELETE NO ACTION", "DELETE FROM public.host"),
    "step": (
        "ON DELETE CASCADE",
        """
        SELECT FROM runledger.workflow_steps WHERE workflow_run_id IN (TABLE public.host)
        FOR UPDATE
        """,
    ),
}


@pytest.mark.core
@pytest.mark.parametrize(("rule", "hold"), HELD.values(), ids=HELD)
@pytest.mark.parametrize("is_joined", [False, True], ids=["own", "joined"])
def test_row_that_somebody_holds_is_not_waited_for(
    workflows: Workflows,
    caplog: pytest.LogCaptureFixture,
    rule: str,
    hold: str,
    is_joined: bool,
):
    made = [canceled(workflows, days=9 - number) for number in range(3)]
    Host(workflows, "workflow_runs", rule).keep(made[1])
    holder = workflows.database.connect()
    holder.execute(hold.encode())

    with closing(workflows.database.connect(autocommit=not is_joined)) as connection:
        connection.execute("SET statement_timeout = '5s'")
        pruned = prune(connection)
        connection.commit()
    left = runs(workflows)
    holder.commit()

    assert (pruned, left) == (2, [made[1]])
    assert reasons(caplog) == [(1, "db.lock_timeout", "55P03")]
    assert prune(workflows.pool) == 1


@pytest.mark.core
def test_wait_for_a_held_row_costs_the_callers_transaction_nothing(workflows: Workflows):
    run_id = canceled(workflows)
    Host(workflows, "workflow_runs", "ON DELETE CASCADE").keep(run_id)
    holder, connection = workflows.database.connect(), workflows.database.connect()
    holder.execute("SELECT FROM public.host FOR UPDATE")
    connection.execute("CREATE TABLE public.kept (id int4)")
    connection.execute("SET LOCAL lock_timeout = '4321ms'")

    pruned = prune(connection)
    setting = connection.execute("SHOW lock_timeout").fetchone()
    connection.commit()
    holder.rollback()

    assert (pruned, setting, runs(workflows)) == (0, ("4321ms",), [run_id])
    assert workflows.value("SELECT to_regclass('public.kept') IS NOT NULL")


@pytest.mark.parametrize("table", ["workflow_runs", "job_logs"])
def test_table_that_somebody_holds_ends_the_call(workflows: Workflows, table: str):
    canceled(workflows)
    holder = workflows.database.connect()
    holder.execute(f"LOCK TABLE runledger.{table}".encode())

    with closing(workflows.database.connect(autocommit=True)) as connection:
        connection.execute("SET statement_timeout = '5s'")
        with pytest.raises(RunledgerError) as failed:
            prune(connection)
    holder.rollback()

    assert failed.value.code == "db.lock_timeout"
    assert prune(workflows.pool) == 1


def test_host_that_deletes_his_row_and_then_its_run_is_in_no_deadlock(workflows: Workflows):
    host = Host(workflows, "workflow_runs", "ON DELETE CASCADE")
    made: list[UUID] = []

    def sessions() -> list[Session]:
        delete_all(workflows)
        made[:] = [canceled(workflows), canceled(workflows)]
        host.keep(*made)
        pruning, host_session = sessions_of(workflows, {"prune": prune, "host": hold})
        begin, end = host_session.steps
        delete = Step("delete", lambda context: delete_run(context.connection))
        return [pruning, replace(host_session, steps=[begin, delete, end])]

    def hold(db: psycopg.Connection[Any]) -> None:
        db.execute("SELECT FROM public.host WHERE id = %s FOR UPDATE", made[:1])

    def delete_run(db: psycopg.Connection[Any]) -> None:
        db.execute("DELETE FROM runledger.workflow_runs WHERE id = %s", made[:1])

    def check(run: Interleaving) -> None:
        assert {outcome.state for outcome in run.outcomes} == {"DONE"}
        assert run.outcome("prune", "write").value in {1, 2}
        assert runs(workflows) == []

    permute(sessions, check)
    delete_all(workflows)
