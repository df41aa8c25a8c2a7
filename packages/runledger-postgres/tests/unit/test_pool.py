from __future__ import annotations

import math

import pytest

from runledger_core import RunledgerError
from runledger_postgres import connect_pool
from runledger_test_support import ScopedEnv


@pytest.mark.parametrize("conninfo", [None, "", "  "])
@pytest.mark.parametrize("variable", [None, "", " "])
def test_missing_connection_string_is_refused(conninfo, variable):
    with ScopedEnv({"DATABASE_URL": variable}), pytest.raises(RunledgerError) as caught:
        connect_pool(conninfo)

    assert (caught.value.code, caught.value.field) == (
        "config.database_url_missing",
        "DATABASE_URL",
    )


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql+psycopg://user:hidden@host/db",
        "mysql://user:hidden@host/db",
        "hidden",
        "host=localhost password='hidden",
        "postgresql://user:hidden@[host/db",
        "unheard_of=hidden",
    ],
)
def test_malformed_connection_string_is_refused_and_not_shown(conninfo):
    with pytest.raises(RunledgerError) as caught:
        connect_pool(conninfo)

    assert caught.value.code == "config.database_url_invalid"
    assert "hidden" not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("conninfo", "code"),
    [
        (5, "input.wrong_type"),
        (b"dbname=hidden", "input.wrong_type"),
        ("dbname=hidden\0b", "input.invalid_characters"),
        ("dbname=hidden\ud800", "input.invalid_characters"),
    ],
)
def test_what_can_be_no_connection_string_is_refused_and_not_shown(conninfo, code):
    with pytest.raises(RunledgerError) as caught:
        connect_pool(conninfo)

    assert (caught.value.code, caught.value.field) == (code, "conninfo")
    assert "hidden" not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"


def test_variable_with_bytes_that_are_no_text_is_refused():
    with ScopedEnv({"DATABASE_URL": "dbname=\udcff"}), pytest.raises(RunledgerError) as caught:
        connect_pool()

    assert (caught.value.code, caught.value.field) == (
        "input.invalid_characters",
        "DATABASE_URL",
    )


@pytest.mark.parametrize(
    ("sizes", "field", "code"),
    [
        ({"max_size": 0}, "max_size", "input.out_of_range"),
        ({"min_size": -1}, "min_size", "input.out_of_range"),
        ({"min_size": 3, "max_size": 2}, "min_size", "input.out_of_range"),
        ({"max_size": "2"}, "max_size", "input.wrong_type"),
        ({"max_size": True}, "max_size", "input.wrong_type"),
        ({"prepare_threshold": -1}, "prepare_threshold", "input.out_of_range"),
        ({"timeout_seconds": 0}, "timeout_seconds", "input.out_of_range"),
        ({"timeout_seconds": -1}, "timeout_seconds", "input.out_of_range"),
        ({"timeout_seconds": math.nan}, "timeout_seconds", "input.out_of_range"),
        ({"timeout_seconds": math.inf}, "timeout_seconds", "input.out_of_range"),
        ({"timeout_seconds": 10**400}, "timeout_seconds", "input.out_of_range"),
        ({"timeout_seconds": "5"}, "timeout_seconds", "input.wrong_type"),
        ({"timeout_seconds": None}, "timeout_seconds", "input.wrong_type"),
        ({"timeout_seconds": True}, "timeout_seconds", "input.wrong_type"),
    ],
)
def test_impossible_sizes_and_waits_are_refused(sizes, field, code):
    with pytest.raises(RunledgerError) as caught:
        connect_pool("host=127.0.0.1 port=1", **sizes)

    assert (caught.value.code, caught.value.field) == (code, field)
