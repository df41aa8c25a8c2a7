from __future__ import annotations

import subprocess
import sys

import pytest

import runledger_test_support


def test_every_exported_name_exists() -> None:
    for name in runledger_test_support.__all__:
        assert getattr(runledger_test_support, name).__name__ == name


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError):
        _ = runledger_test_support.nothing_such


def test_plugin_imports_neither_driver_nor_engine() -> None:
    program = (
        "import sys, runledger_test_support.pytest_plugin\n"
        "print({'psycopg', 'runledger_postgres', 'runledger_core'} & sys.modules.keys())"
    )

    done = subprocess.run(  # Our own program.
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
