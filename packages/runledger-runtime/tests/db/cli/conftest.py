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
