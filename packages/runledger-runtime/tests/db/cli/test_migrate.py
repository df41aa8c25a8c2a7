import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from runledger_postgres import connect_pool
from runledger_postgres.migrations import ensure_schema_compatible
from runledger_runtime.cli._main import runledger


@pytest.fixture
def run_on_empty(runledger_unmigrated_database):
    variables = {"DATABASE_URL": runledger_unmigrated_database.dsn}
    return lambda *arguments: CliRunner().invoke(runledger, ["migrate", *arguments], env=variables)


def test_migrate_makes_the_schema_and_then_has_nothing_to_do(
    run_on_empty, runledger_unmigrated_database
):
    first, second = run_on_empty(), run_on_empty()

    assert first.exit_code == 0
    assert "applying 202603280001_runledger_baseline\n" in first.stdout
    assert second.stdout == "the schema is current: nothing to do\n"
    with connect_pool(runledger_unmigrated_database.dsn) as pool:
        ensure_schema_compatible(pool)


def test_check_of_an_empty_database_fails_and_says_what_to_run(run_on_empty):
    result = run_on_empty("--check")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: schema.missing_migration_history: ")
    assert "runledger migrate" in result.stderr


def test_check_of_a_migrated_database_passes(run_cli):
    result = run_cli("migrate", "--check")

    assert (result.exit_code, result.stdout) == (0, "the schema is current\n")


def test_sql_for_an_empty_database_makes_its_schema(run_on_empty, runledger_unmigrated_database):
    script = run_on_empty("--sql")

    with psycopg.connect(runledger_unmigrated_database.dsn, autocommit=True) as connection:
        connection.execute(script.stdout.encode())
    assert run_on_empty("--check").exit_code == 0


def test_sql_for_a_migrated_database_has_nothing_to_do(run_cli):
    result = run_cli("migrate", "--sql")

    assert result.exit_code == 0
    assert "CREATE TABLE" not in result.stdout


def test_sql_without_a_database_is_the_whole_schema(monkeypatch):
    monkeypatch.delenv("DATABASE_URL", raising=False)

    result = CliRunner().invoke(runledger, ["migrate", "--sql"])

    assert result.exit_code == 0
    assert "CREATE TABLE runledger.job_queue" in result.stdout


def test_check_and_sql_together_are_wrong_usage(run_cli):
    for options in (["--sql", "--check"], ["--check", "--sql"]):
        result = run_cli("migrate", *options)

        assert result.exit_code == 2
        assert "give either --check or --sql" in result.stderr


def test_verbs_refuse_a_database_without_the_schema(runledger_unmigrated_database):
    variables = {"DATABASE_URL": runledger_unmigrated_database.dsn}

    result = CliRunner().invoke(runledger, ["jobs", "list"], env=variables)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: schema.missing_migration_history: ")


def test_missing_database_is_told_without_its_url(runledger_server):
    url = runledger_server.dsn("no_such_database")

    result = CliRunner().invoke(runledger, ["jobs", "list", "--database-url", url])

    assert result.exit_code == 1
    assert result.stderr == (
        "error: db.unavailable: the server has no such database\n"
        " next: create it (createdb NAME), or check the name in the connection string\n"
    )


def test_wrong_password_is_told_without_it(runledger_server, runledger_database):
    url = make_conninfo(runledger_database.dsn, password="not-this-one")
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        pass
    else:
        pytest.skip("the server asks for no password")

    result = CliRunner().invoke(runledger, ["jobs", "list", "--database-url", url])

    assert result.stderr.startswith(
        "error: db.unavailable: the server refuses this user or password\n"
    )
    assert "not-this-one" not in result.output
