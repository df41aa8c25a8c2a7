from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from runledger_runtime.cli._main import runledger


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("DATABASE_URL", raising=False)

    def run(*arguments: str, **variables: str) -> Result:
        return CliRunner().invoke(runledger, list(arguments), env=variables, prog_name="runledger")

    return run
