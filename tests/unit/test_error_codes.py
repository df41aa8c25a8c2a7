"""Codes are owned, explained, provoked by a test, and listed in the reference."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/reference/error-codes.md"

# Codes that no test provokes, and why.
UNPROVOKED = {
    "cli.demo_failed": "the demo raises it if its own numbers do not add up, which would be a bug",
    "job.handler_not_registered": "a worker claims the types that it has handlers for",
}


def load_script():
    spec = importlib.util.spec_from_file_location("error_codes", ROOT / "scripts/error_codes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


error_codes = load_script()
OWNED = {wheel: error_codes.entries(wheel) for wheel in error_codes.OWNERS}
CODES = sorted(code for codes in OWNED.values() for code in codes)
MAPPINGS = {name for names in error_codes.OWNERS.values() for name in names}


def source_files() -> list[Path]:
    """Return the modules of all wheels but those that hold the meanings."""
    paths = ROOT.glob("packages/*/src/**/*.py")
    module_names = {path: ".".join(path.with_suffix("").parts) for path in paths}
    return [path for path, name in module_names.items() if not name.endswith(tuple(MAPPINGS))]


def literals() -> set[str]:
    """Return every string literal of the source."""
    return {
        node.value
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def composed() -> set[str]:
    """Return the codes that registry and catalog compose of their area and a name."""
    text = "".join(path.read_text("utf-8") for path in source_files())
    names = re.findall(r'refuse\(\s*\w+,\s*"(\w+)"|name(?:: str)? ?= ?"(\w+_job_type)"', text)
    return {f"{area}.{''.join(name)}" for area in ("catalog", "registry") for name in names}


def constants() -> set[str]:
    """Return the codes of constants that the source names."""
    names = {
        name.id if isinstance(name, ast.Name) else name.attr
        for path in source_files()
        for name in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(name, ast.Name | ast.Attribute)
    }
    modules = [importlib.import_module(name) for name in MAPPINGS]
    values = [(name, value) for module in modules for name, value in vars(module).items()]
    return {value for name, value in values if isinstance(value, str) and name in names}


def test_no_code_has_two_owners():
    assert len(CODES) == len(set(CODES))


def test_every_code_written_in_the_source_has_a_meaning():
    areas = "|".join({code.partition(".")[0] for code in CODES})
    form = re.compile(rf"({areas})\.[a-z_]+[a-z]")

    written = {text for text in literals() if form.fullmatch(text)} | composed()

    assert sorted(written - set(CODES)) == []


def test_every_string_given_to_an_error_class_has_a_meaning():
    form = re.compile(r"[a-z_]+\.[a-z_]+")
    given = {
        text
        for path in source_files()
        for text, name in error_codes.Finder(ast.parse(path.read_text("utf-8")), {}).found
        if name.endswith("Error") and form.fullmatch(text)
    }

    assert sorted(given - set(CODES)) == []


def test_every_code_with_a_meaning_is_used():
    assert sorted(set(CODES) - literals() - composed() - constants()) == []


@pytest.mark.parametrize("wheel", OWNED)
def test_meanings_and_next_steps_are_sentences_about_known_codes(wheel):
    steps = error_codes.entries(wheel, "NEXT_STEPS")

    assert sorted(set(steps) - set(OWNED[wheel])) == []
    assert [text for text in (*OWNED[wheel].values(), *steps.values()) if text[-1] != "."] == []


def test_every_code_is_provoked_by_a_test_or_has_a_reason():
    texts = [path.read_text("utf-8") for path in ROOT.glob("packages/*/tests/**/*.py")]
    provoked = {code for text in texts for code in re.findall(r"[a-z_]+\.[a-z_]+", text)}

    assert sorted(set(CODES) - provoked) == sorted(UNPROVOKED)


def test_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == error_codes.written()


def test_codes_that_do_not_occur_here_do_not():
    tail = PAGE.read_text("utf-8").partition(error_codes.END)[2]
    cells = [row.split("|")[1] for row in tail.splitlines() if row.startswith("| `")]
    named = {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}

    assert named
    assert sorted(named & set(CODES)) == []
