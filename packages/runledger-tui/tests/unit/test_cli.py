from __future__ import annotations

import subprocess
import sys

import pytest

from runledger_tui.cli import main

SECRET_URL = "postgresql://app:s3cret@127.0.0.1:1/orders"  # noqa: S105  # must not be shown


@pytest.fixture(autouse=True)
def _no_database_url(monkeypatch):
    monkeypatch.delenv("DATABASE_URL", raising=False)


def usage_error(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: runledger-tui")
    return captured.err


def failure(capsys, *arguments: str) -> str:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_without_once_it_says_that_there_is_only_the_snapshot(capsys):
    assert "only the snapshot: pass --once" in usage_error(capsys)
    assert "only the snapshot: pass --once" in usage_error(capsys, "--json")


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == "runledger-tui 0.4.0\n"


def test_organization_must_be_a_uuid(capsys):
    assert "argument --org: not a UUID" in usage_error(capsys, "--once", "--org", "acme")


def test_only_one_database_may_be_named(capsys):
    message = usage_error(capsys, "--once", "--database-url", SECRET_URL, "--embedded", "x")

    assert "s3cret" not in message


@pytest.mark.parametrize(
    "arguments", [(SECRET_URL,), ("--database", SECRET_URL), (f"--database={SECRET_URL}",)]
)
def test_unknown_arguments_are_not_repeated(capsys, arguments):
    message = usage_error(capsys, "--once", *arguments)

    assert "unknown arguments" in message
    assert "s3cret" not in message


def test_database_must_be_named(capsys):
    assert failure(capsys, "--once") == (
        "runledger-tui: config.database_url_missing: pass --database-url or --embedded, or set"
        " DATABASE_URL\n"
    )


def test_database_that_cannot_be_reached_is_one_line_without_its_url(capsys):
    message = failure(capsys, "--once", "--database-url", SECRET_URL)

    assert message == "runledger-tui: db.unavailable: the database cannot be reached\n"


def test_url_of_the_environment_is_used_and_not_shown(capsys, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", SECRET_URL)

    assert "db.unavailable" in failure(capsys, "--once")


@pytest.mark.parametrize(
    "url",
    [
        "host=h password='s3cret",
        "s3cret",
        "postgresql://app:s3cret%zz@h/y",
    ],
)
def test_malformed_url_is_refused_without_its_text(capsys, url):
    message = failure(capsys, "--once", "--database-url", url)

    assert "config.database_url_invalid" in message
    assert "s3cret" not in message


def test_password_that_was_not_quoted_is_not_shown_either(capsys):
    message = failure(capsys, "--once", "--database-url", "postgresql://app:s3cret/x@h:1/y")

    assert "s3cret" not in message


def test_embedded_directory_must_be_there_and_nothing_is_made(capsys, tmp_path):
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.mkdir()

    for directory in (empty, missing):
        message = failure(capsys, "--once", "--embedded", str(directory))
        assert "tui.embedded_not_found" in message
    assert list(empty.iterdir()) == []
    assert not missing.exists()


def test_foreign_directory_is_no_embedded_server(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")

    message = failure(capsys, "--once", "--embedded", str(tmp_path))

    assert "embedded.directory_not_ours" in message


def test_missing_driver_is_an_error_of_ours(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "runledger_tui.fetch", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    message = failure(capsys, "--once", "--database-url", SECRET_URL)

    assert "tui.driver_missing" in message


def test_help_needs_no_driver():
    program = (
        "import sys; sys.modules['psycopg'] = None; from runledger_tui.cli import main;"
        " main(['--help'])"
    )

    done = subprocess.run(  # our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "--once" in done.stdout
