from __future__ import annotations

import sys
from types import ModuleType

import pytest

from runledger_core import UnavailableError
from runledger_test_support import drain as module


def test_drain_is_that_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, testing = ModuleType("runledger_runtime"), ModuleType("runledger_runtime.testing")
    vars(testing)["drain"] = print
    vars(runtime)["testing"] = testing
    monkeypatch.setitem(sys.modules, "runledger_runtime", runtime)
    monkeypatch.setitem(sys.modules, "runledger_runtime.testing", testing)

    assert module.drain is print


def test_missing_runtime_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    # None is how the import system marks a module as absent.
    monkeypatch.setitem(sys.modules, "runledger_runtime", None)

    with pytest.raises(UnavailableError) as refused:
        _ = module.drain

    assert refused.value.code == "test_support.runtime_missing"
    assert "pip install 'runledger-test-support[runtime]'" in refused.value.client_message


def test_other_names_are_no_attributes() -> None:
    assert not hasattr(module, "drain_all")
