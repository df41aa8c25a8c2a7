import re
from pathlib import Path

from runledger_core import InternalError, UnavailableError
from runledger_postgres import QueryInternalError
from runledger_runtime import cli
from runledger_runtime.cli._errors import MEANINGS, CommandFailure


def test_every_code_of_the_command_line_has_a_meaning():
    sources = Path(cli.__file__).parent.glob("*.py")

    used = {code for path in sources for code in re.findall(r'"(cli\.[a-z_]+)"', path.read_text())}

    assert used == set(MEANINGS)


def test_error_is_shown_with_its_next_step_and_without_control_characters(capsys):
    error = UnavailableError("db.unavailable", "gone \x1b[2J")

    CommandFailure(error, next_step="start \x07it").show()

    assert capsys.readouterr().err == ("error: db.unavailable: gone ␛[2J\n next: start ␇it\n")


def test_error_of_the_database_is_shown_with_its_sqlstate_only(capsys):
    error = QueryInternalError(
        "db.query_failed", "refused", internal_message="secret", sqlstate="42703"
    )

    CommandFailure(error).show()

    shown = capsys.readouterr().err
    assert " info: the database answered with SQLSTATE 42703\n" in shown
    assert "secret" not in shown


def test_error_without_a_known_step_is_one_line(capsys):
    CommandFailure(InternalError("supervisor.task_failed", "the worker loop failed")).show()

    assert capsys.readouterr().err == ("error: supervisor.task_failed: the worker loop failed\n")
