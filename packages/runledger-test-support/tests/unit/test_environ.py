from __future__ import annotations

import os
import threading

import pytest

from runledger_test_support.environ import ScopedEnv


@pytest.fixture(autouse=True)
def known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCOPED_SET", "before")
    monkeypatch.delenv("SCOPED_UNSET", raising=False)


def test_variables_are_set_and_removed_for_the_block() -> None:
    with ScopedEnv({"SCOPED_SET": None, "SCOPED_UNSET": "inside"}):
        inside = (os.environ.get("SCOPED_SET"), os.environ.get("SCOPED_UNSET"))

    assert inside == (None, "inside")


def test_variables_are_put_back() -> None:
    with ScopedEnv({"SCOPED_SET": None, "SCOPED_UNSET": "inside"}):
        pass

    assert os.environ["SCOPED_SET"] == "before"
    assert "SCOPED_UNSET" not in os.environ


def test_variables_are_put_back_after_an_exception() -> None:
    with pytest.raises(RuntimeError), ScopedEnv({"SCOPED_SET": "inside"}):
        raise RuntimeError

    assert os.environ["SCOPED_SET"] == "before"


def test_first_value_counts_when_set_twice() -> None:
    with ScopedEnv({"SCOPED_SET": "one"}) as env:
        env.set("SCOPED_SET", "two")
        env.set("SCOPED_UNSET", "late")
        inside = os.environ["SCOPED_SET"]

    assert inside == "two"
    assert os.environ["SCOPED_SET"] == "before"
    assert "SCOPED_UNSET" not in os.environ


def test_blocks_can_be_nested() -> None:
    with ScopedEnv({"SCOPED_SET": "outer"}):
        with ScopedEnv({"SCOPED_SET": "inner"}):
            inner = os.environ["SCOPED_SET"]
        outer = os.environ["SCOPED_SET"]

    assert (inner, outer) == ("inner", "outer")
    assert os.environ["SCOPED_SET"] == "before"


def test_refused_value_leaves_nothing_behind() -> None:
    with pytest.raises(ValueError, match="null byte"), ScopedEnv({"SCOPED_SET": "a", "X": "\0"}):
        pass

    assert os.environ["SCOPED_SET"] == "before"
    with ScopedEnv({"SCOPED_SET": "again"}):
        assert os.environ["SCOPED_SET"] == "again"


def test_blocks_of_other_threads_wait() -> None:
    seen: list[str] = []

    def other() -> None:
        with ScopedEnv({"SCOPED_UNSET": "other"}):
            seen.append(os.environ["SCOPED_SET"])

    with ScopedEnv({"SCOPED_SET": "mine"}):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        assert seen == []
    thread.join()

    assert seen == ["before"]
