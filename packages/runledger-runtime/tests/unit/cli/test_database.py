import socket

import pytest

SECRET = "s3cr3t"  # noqa: S105  # looked for on the screen


@pytest.fixture
def closed_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server.getsockname()[1]


def test_no_database_at_all_says_how_to_name_one(run_cli):
    result = run_cli("jobs", "list")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: config.database_url_missing: no database is given\n")
    assert " next: set DATABASE_URL" in result.stderr


def test_blank_variable_counts_as_missing(run_cli):
    result = run_cli("migrate", "--check", DATABASE_URL="  ")

    assert "config.database_url_missing" in result.stderr


def test_url_and_directory_together_are_wrong_usage(run_cli, tmp_path):
    result = run_cli("migrate", "--database-url", "x", "--embedded", str(tmp_path))

    assert result.exit_code == 2
    assert "not both" in result.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"user:{SECRET}@host",
        f"host=localhost passwrd={SECRET}",
        f"postgresql://user:{SECRET}@host:notaport:{SECRET}/db",
        f"postgresql://user:{SECRET}/more@no-such-host.invalid/db",
        f"postgresql://user:x@{SECRET}.invalid/db",
    ],
)
def test_connection_strings_never_reach_the_screen(run_cli, url):
    result = run_cli("migrate", "--check", DATABASE_URL=url)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "\n next: " in result.stderr
    assert SECRET not in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("url", ["postgresql://\udcff", "postgresql://%FF", "dbname=\udcff"])
def test_connection_string_that_is_no_utf8_is_refused_with_its_code(run_cli, url):
    result = run_cli("jobs", "list", "--database-url", url)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: config.database_url_invalid: ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("host", ["a..b", ".x", f"{SECRET}{'x' * 64}.invalid"])
def test_host_that_can_be_no_name_is_told_in_words(run_cli, host):
    result = run_cli("jobs", "list", "--database-url", f"host={host} connect_timeout=2")

    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: db.unavailable: the host name cannot be resolved\n next: check the host"
    )
    assert SECRET not in result.output


def test_unreadable_connection_string_shows_the_form_of_one(run_cli):
    result = run_cli("migrate", "--check", DATABASE_URL="user:secret@host")

    assert result.stderr.startswith(
        "error: config.database_url_invalid: the connection string cannot be read\n"
    )
    assert "postgresql://USER:PASSWORD@HOST:PORT/DATABASE" in result.stderr


def test_refused_connection_says_so(run_cli, closed_port):
    url = f"postgresql://user:{SECRET}@127.0.0.1:{closed_port}/db"

    result = run_cli("jobs", "list", "--database-url", url)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: db.unavailable: connection refused: no server listens there\n"
        " next: start the server, or check host and port of the connection string\n"
    )


def test_missing_directory_of_an_embedded_server_is_not_made(run_cli, tmp_path):
    directory = tmp_path / "typo"

    result = run_cli("jobs", "list", "--embedded", str(directory))

    assert result.exit_code == 1
    assert "cli.embedded_directory_missing" in result.stderr
    assert not directory.exists()
