import os
import subprocess
import sys

import click
import pytest

from runledger_runtime.cli._main import runledger


def run_with_output_to(redirection, *arguments, **variables):
    program = [sys.executable, "-m", "runledger_runtime.cli", *arguments]
    return subprocess.run(  # our own interpreter and text
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *program],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


PREVIEW = ("schedules", "preview", "--cron", "@daily")
VERBS = ("definitions", "demo", "jobs", "migrate", "schedules", "worker")


def test_version_is_the_one_of_the_distribution(run_cli):
    result = run_cli("--version")

    assert result.exit_code == 0
    assert result.stdout == "runledger, version 0.4.0\n"


def test_help_lists_every_verb(run_cli):
    result = run_cli("--help")

    assert result.exit_code == 0
    assert all(f"\n  {verb} " in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", [*([verb] for verb in VERBS), ["jobs", "list"]])
def test_every_verb_has_help(run_cli, verb):
    result = run_cli(*verb, "-h")

    assert result.exit_code == 0
    assert "Usage: runledger" in result.stdout


def texts_of_help(command, names=("runledger",), parent=None):
    context = click.Context(command, info_name=names[-1], parent=parent)
    yield " ".join(names), command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            yield from texts_of_help(verb, (*names, name), context)


def test_help_of_no_verb_shows_a_backslash():
    texts = dict(texts_of_help(runledger))

    assert {"runledger worker", "runledger jobs list"} <= texts.keys()
    assert [name for name, text in texts.items() if "\\" in text or "\b" in text] == []


def test_help_of_the_worker_lists_exit_codes_line_by_line(run_cli):
    lines = [line.strip() for line in run_cli("worker", "--help").stdout.splitlines()]

    assert "0   stopped by a signal, everything settled" in lines
    assert "2   wrong usage" in lines


def test_help_imports_neither_rich_nor_sqlalchemy():
    program = (
        "import sys\n"
        "from runledger_runtime.cli._main import runledger\n"
        "runledger(['--help'], standalone_mode=False)\n"
        "print({'rich', 'sqlalchemy'} & set(sys.modules))"
    )

    done = subprocess.run(  # our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "set()"


def test_worker_side_imports_no_command_line():
    program = (
        "import sys\n"
        "import runledger_runtime, runledger_runtime.supervisor\n"
        "print({'click', 'rich', 'sqlalchemy', 'runledger_runtime.cli'} & set(sys.modules))"
    )

    done = subprocess.run(  # our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"


def test_unknown_verb_is_wrong_usage(run_cli):
    result = run_cli("destroy")

    assert result.exit_code == 2
    assert "No such command 'destroy'" in result.stderr


def test_missing_client_library_tells_what_to_install(run_cli, monkeypatch):
    def refuse(name, package=None):
        message = "no pq wrapper available.\nAttempts made:\n- couldn't import ..."
        raise ImportError(message)

    monkeypatch.setattr("runledger_runtime.cli._main.import_module", refuse)

    result = run_cli("jobs", "list")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: cli.missing_package: the PostgreSQL client library libpq is missing:"
        " pip install 'runledger-postgres[binary]'\n"
        " next: install it, then run the command again\n"
    )


def test_missing_package_tells_what_to_install(run_cli, monkeypatch):
    def refuse(name, package=None):
        raise ModuleNotFoundError(name="rich")

    monkeypatch.setattr("runledger_runtime.cli._main.import_module", refuse)

    result = run_cli("demo")

    assert result.exit_code == 1
    assert "cli.missing_package: the package rich is missing" in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [PREVIEW, [*PREVIEW, "--json"], ["--help"]])
def test_output_that_cannot_be_written_is_told_in_words(arguments, unbuffered):
    ended = run_with_output_to(">/dev/full", *arguments, PYTHONUNBUFFERED=unbuffered)

    assert ended.returncode == 1
    assert ended.stderr == (
        "error: cli.output_not_written: the output cannot be written: No space left on device\n"
        " next: make room, or send it elsewhere; what the command did is done\n"
    )


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_closed_output_is_told_before_anything_is_done(options):
    ended = run_with_output_to(">&-", *PREVIEW, *options)

    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "error: cli.output_not_written: the standard output is closed; nothing was done\n"
    )


def test_worker_needs_no_output():
    ended = run_with_output_to(">&-", "worker", "--app", "no_such_module")

    assert ended.stderr.startswith("error: cli.app_not_found: ")


def test_interrupt_ends_with_the_usual_code(run_cli, monkeypatch):
    def interrupt(name, package=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("runledger_runtime.cli._main.import_module", interrupt)

    result = run_cli("demo")

    assert result.exit_code == 130
    assert result.output == ""
