from __future__ import annotations

from typing import Any

import psycopg
import pytest

from runledger_core import JobDefinitionSpec, RunledgerError
from runledger_postgres.definitions import (
    get_job_definition,
    list_job_definitions,
    sync_job_definitions,
)
from runledger_test_support import TemporaryDatabase

TYPES = ["Mail.Send", "mail.digest", "mail_100%", "mailx100y", "sms"]


@pytest.fixture
def connection(runledger_database: TemporaryDatabase) -> psycopg.Connection[Any]:
    connection = runledger_database.connect(autocommit=True)
    sync_job_definitions(connection, [JobDefinitionSpec(job_type) for job_type in TYPES])
    return connection


def listed(db: psycopg.Connection[Any], **options: Any) -> set[str]:
    return {row.job_type for row in list_job_definitions(db, **options)}


def test_absent_definition_is_none(connection: psycopg.Connection[Any]):
    assert get_job_definition(connection, "fax") is None


def test_pages_follow_each_other_without_gap_or_repeat(connection: psycopg.Connection[Any]):
    pages: list[list[str]] = []
    after: str | None = None

    while page := list_job_definitions(connection, limit=2, after=after):
        pages.append([row.job_type for row in page])
        after = page[-1].job_type

    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(name for page in pages for name in page) == sorted(TYPES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mail", {"Mail.Send", "mail.digest", "mail_100%", "mailx100y"}),
        ("SEND", {"Mail.Send"}),
        ("l_1", {"mail_100%"}),
        ("%", {"mail_100%"}),
        ("\\", set()),
        ("", set(TYPES)),
    ],
)
def test_filter_is_a_plain_substring(
    connection: psycopg.Connection[Any], text: str, found: set[str]
):
    assert listed(connection, job_type_contains=text) == found


def test_filter_and_page_go_together(connection: psycopg.Connection[Any]):
    first = list_job_definitions(connection, job_type_contains="mail", limit=3)

    rest = listed(connection, job_type_contains="mail", after=first[-1].job_type)

    assert {row.job_type for row in first} | rest == set(TYPES) - {"sms"}
    assert len(rest) == 1


@pytest.mark.parametrize("limit", [0, -1, 1001, True, "1"])
def test_limit_outside_its_bounds_is_refused_before_any_sql(limit: Any):
    with pytest.raises(RunledgerError) as caught:
        list_job_definitions(psycopg.Connection, limit=limit)  # pyright: ignore[reportArgumentType]  # not touched

    assert (caught.value.code, caught.value.field) == ("job.invalid_pagination", "limit")
