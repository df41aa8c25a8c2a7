"""Tells scripts/mutants.py how tests failed: a pytest plugin, loaded by its runs only."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

REPORT = "RUNLEDGER_MUTANTS_REPORT"
PROOFS = frozenset({"AssertionError", "Failed"})


# Named without a case; one case of it that fails is enough.
_proven: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out further cases of a test that has failed by an assertion."""
    if item.nodeid.partition("[")[0] in _proven:
        pytest.skip("it has failed")


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object]
) -> None:
    """Note which test failed, at which stage and by what."""
    if call.excinfo is None:
        return
    kinds = [kind.__name__ for kind in call.excinfo.type.__mro__]
    if call.excinfo.exconly().startswith("Failed: Timeout"):
        # A test that hangs has asserted nothing.
        kinds = ["Timeout"]
    _note(test=node.nodeid, when=call.when, kinds=kinds)
    if PROOFS.intersection(kinds):
        _proven.update({node.nodeid.partition("[")[0]}.intersection(node.config.args))


def pytest_sessionfinish() -> None:
    """Note modules of the packages under test that were not imported from the copy."""
    packages = {path.name: path for path in Path.cwd().glob("packages/*/src/*")}
    for name, module in list(sys.modules.items()):
        package, file = packages.get(name.partition(".")[0]), getattr(module, "__file__", None)
        if package is not None and file is not None and not Path(file).is_relative_to(package):
            _note(test=file, when="import", kinds=["not of the copy"])


def _note(**record: object) -> None:
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
        report.write(json.dumps(record) + "\n")
