"""What the pages restate is what the code says: commands, settings, names of tests."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import click
import pytest

from runledger_runtime import JobsConfig
from runledger_runtime.cli._main import runledger
from runledger_tui.cli import _parse

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
# Commands, which the guides show, and packages whose modules are shown one by one.
EXPLAINED = ("runledger_runtime.cli", "runledger_tui.")
SETTINGS = ROOT / "docs/guides/workers.md"


# Read on GitHub, in editors and by assistants too, where no Sphinx resolves anything.
PLAIN_PAGES = sorted({*PAGES, ROOT / "llms.txt"})


def commands() -> list[str]:
    """Return each line of the pages' shell blocks that calls a command of ours."""
    texts = [page.read_text("utf-8") for page in PAGES]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    lines = {line.strip() for block in blocks for line in block.splitlines()}
    return sorted(line for line in lines if line.startswith(("runledger ", "runledger-tui ")))


def settings() -> list[list[str]]:
    """Return the cells of the table of settings."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in SETTINGS.read_text("utf-8").splitlines()
        if line.startswith(("| `JOBS_", "| — | `"))
    ]
    assert rows
    return rows


def test_pages_show_commands():
    assert len(commands()) > 10


@pytest.mark.parametrize("line", commands())
def test_command_of_a_page_is_understood(line):
    program, *arguments = shlex.split(line, comments=True)
    if program == "runledger-tui":
        _parse(arguments)
        return
    command: click.Command = runledger
    # With its settings: click keeps the help option that it makes first, for the whole process.
    context = click.Context(command, **command.context_settings)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments.pop(0))
        assert found is not None
        command = found

    command.make_context("command", arguments, parent=context)


def test_table_of_settings_is_complete():
    assert [row[1] for row in settings()] == [field.name for field in fields(JobsConfig)]


@pytest.mark.parametrize(("variable", "field", "default", "least"), [row[:4] for row in settings()])
def test_setting_has_the_default_and_the_bound_of_the_table(variable, field, default, least):
    value = getattr(JobsConfig(), field)

    match value:
        case bool():
            assert (default, value) == ("on", True)
            assert getattr(JobsConfig.from_env({variable: "off"}), field) is False
        case int():
            assert int(default) == value
        case str():
            assert default.partition("`")[0] == value[:7]
        case _:
            assert (default, value) == ("", None)
            assert getattr(JobsConfig.from_env({variable: "host=there"}), field) == "host=there"
    if variable.startswith("JOBS_") and least:
        assert getattr(JobsConfig.from_env({variable: "-1"}), field) == int(least)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_tests_that_a_page_names_exist(page):
    paths = [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/**/test_*.py")]
    text = "".join(path.read_text("utf-8") for path in paths)
    known = set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)

    named = set(re.findall(r"`(test_[a-z0-9_]+)`", prose))

    assert sorted(named - known) == []


@pytest.mark.parametrize(
    "page", PLAIN_PAGES, ids=[str(page.relative_to(ROOT)) for page in PLAIN_PAGES]
)
def test_links_of_a_page_lead_somewhere(page):
    text = page.read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    paths = [link.partition("#") for link in links if "://" not in link]

    assert "{doc}" not in text
    for path, _, anchor in paths:
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_every_public_module_is_in_the_reference():
    pages = "".join(page.read_text("utf-8") for page in ROOT.glob("docs/reference/*.md"))
    shown = set(re.findall(r"automodule:: ([\w.]+)", pages))
    modules = {
        ".".join(path.with_suffix("").parts).partition(".src.")[2].removesuffix(".__init__")
        for path in ROOT.glob("packages/*/src/**/*.py")
    }
    public = {name for name in modules if not any(part[0] == "_" for part in name.split("."))}

    # A package that is shown shows what its modules give it, or is shown module by module.
    missing = {
        name
        for name in public
        if "." in name
        and not any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in shown)
    }

    assert sorted(name for name in missing if not name.startswith(EXPLAINED)) == []
