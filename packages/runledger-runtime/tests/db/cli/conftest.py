from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from runledger_core import JobDefinitionSpec
from runledger_postgres.definitions import upsert_job_definition
from runledger_runtime.cli._main import runledger
from runledger_test_support import TemporaryDatabase


@pytest.fixture
def run_cli(runledger_database: TemporaryDatabase) -> Callable[..., Result]:
    variables = {"DATABASE_URL": runledger_database.dsn}

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(
            runledger, list(arguments), input=stdin, env=variables, prog_name="runledger"
        )

    return run


@pytest.fixture
def defined(runledger_pool) -> None:
    upsert_job_definition(runledger_pool, JobDefinitionSpec("mail.send", max_attempts=5))
    upsert_job_definition(runledger_pool, JobDefinitionSpec("photo.scale"))


@pytest.fixture
def refuse_updates(runledger_database: TemporaryDatabase) -> Callable[[str, str], None]:
    """Return what has the database refuse updates of the rows of a table that a condition names."""

    def refuse(table: str, condition: str) -> None:
        sql = f"""
            CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON runledger.{table}
            FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION public.refuse()
        """
        with runledger_database.connect(autocommit=True) as connection:
            connection.execute(sql.encode())

    return refuse
