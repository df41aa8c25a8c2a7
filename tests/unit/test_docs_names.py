"""The map from Rust names real Python names only."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/coming-from-rust.md"


def python_names() -> list[str]:
    """Return each name of the second column of the page's tables."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", row)[2] for row in rows]
    return sorted({name for cell in cells for name in re.findall(r"`([^`]+)`", cell)})


def resolve(name: str) -> object | None:
    """Return what a dotted name means: an attribute of a module, or one of its class."""
    module, *attributes = name.split(".")
    found: object | None = import_module(module)
    for attribute in attributes:
        module = f"{module}.{attribute}"
        if not hasattr(found, attribute) and find_spec(module) is not None:
            import_module(module)
        found = getattr(found, attribute, None)
    return found


def test_map_has_names():
    assert len(python_names()) > 40


@pytest.mark.parametrize("name", python_names())
def test_name_in_the_map_imports(name):
    assert resolve(name) is not None


def test_every_row_has_a_name_or_a_reason():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    unexplained = [row for row in rows if re.fullmatch(r"\|[^|]*\| — \|\s*\|", row)]

    assert unexplained == []
