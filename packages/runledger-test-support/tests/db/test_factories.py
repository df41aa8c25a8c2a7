from __future__ import annotations

import psycopg
import pytest

from runledger_core import JobDefinitionSpec, JobEnqueue
from runledger_test_support.databases import TemporaryDatabase
from runledger_test_support.factories import assert_enqueued, make_definition, make_enqueue


@pytest.fixture
def conn(runledger_database: TemporaryDatabase) -> psycopg.Connection[tuple[object, ...]]:
    conn = runledger_database.connect()
    conn.execute(
        "INSERT INTO runledger.job_queue (job_type, max_attempts, payload) VALUES"
        """ ('mail', 3, '{"to": "a", "n": 1}'), ('mail', 3, 'null'), ('bill', 3, 'true')"""
    )
    return conn


def test_definition_has_defaults_and_overrides() -> None:
    assert make_definition(max_attempts=9) == JobDefinitionSpec("test.job", max_attempts=9)


def test_enqueue_has_defaults_and_overrides() -> None:
    assert make_enqueue() == JobEnqueue("test.job", {})
    assert make_enqueue("mail", None, priority=3) == JobEnqueue("mail", None, priority=3)


def test_enqueued_jobs_are_counted(conn) -> None:
    assert_enqueued(conn, "mail", count=2)
    assert_enqueued(conn, "bill")
    assert_enqueued(conn, "none", count=0)


def test_payload_is_compared_as_json(conn) -> None:
    assert_enqueued(conn, "mail", payload={"n": 1.0, "to": "a"})
    assert_enqueued(conn, "mail", payload=None)
    assert_enqueued(conn, "bill", payload=1, count=0)


def test_difference_shows_what_is_there(conn) -> None:
    with pytest.raises(AssertionError) as found:
        assert_enqueued(conn, "mail", payload={"to": "b"})

    assert str(found.value) == (
        'expected 1 jobs of type \'mail\' with payload {"to":"b"}, found 0; '
        "payloads of that type (2):\n"
        '  {"n": 1, "to": "a"}\n'
        "  null"
    )


def test_pool_sees_committed_jobs(conn, runledger_pool) -> None:
    assert_enqueued(runledger_pool, "bill", count=0)
    conn.commit()

    assert_enqueued(runledger_pool, "bill")
