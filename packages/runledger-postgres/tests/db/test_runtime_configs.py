from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from runledger_core import ErrorCategory, JobDefinitionSpec, RunledgerError
from runledger_postgres import connect_pool
from runledger_postgres.definitions import sync_job_definitions
from runledger_postgres.runtime_configs import (
    get_job_runtime_config,
    insert_job_runtime_config_if_missing,
    list_job_runtime_configs,
    require_job_runtime_config,
    upsert_job_runtime_config,
)
from runledger_test_support import TemporaryDatabase

USER = UUID(int=7)
CONNECTIONS = 16


@pytest.fixture
def connection(runledger_database: TemporaryDatabase) -> psycopg.Connection[Any]:
    connection = runledger_database.connect(autocommit=True)
    specs = [JobDefinitionSpec(job_type) for job_type in ("fax", "mail", "sms")]
    sync_job_definitions(connection, specs)
    return connection


@pytest.mark.core
def test_configuration_comes_back_as_given(connection: psycopg.Connection[Any]):
    config = {"retries": 3, "hosts": ["a", "b"], "deep": {"on": True, "none": None}}

    stored = upsert_job_runtime_config(
        connection, "mail", schema_version=2, config=config, updated_by_user_id=USER
    )

    assert (stored.job_type, stored.schema_version) == ("mail", 2)
    assert stored.config == config
    assert stored.updated_by_user_id == USER
    assert get_job_runtime_config(connection, "mail") == stored
    assert require_job_runtime_config(connection, "mail") == stored


def test_absent_configuration_is_none_or_an_error(connection: psycopg.Connection[Any]):
    assert get_job_runtime_config(connection, "mail") is None
    with pytest.raises(RunledgerError) as caught:
        require_job_runtime_config(connection, "mail")

    assert caught.value.code == "job.runtime_config_not_found"
    assert caught.value.category is ErrorCategory.NOT_FOUND


def test_upsert_overwrites_what_differs(connection: psycopg.Connection[Any]):
    before = upsert_job_runtime_config(
        connection, "mail", schema_version=1, config={"a": 1}, updated_by_user_id=USER
    )

    after = upsert_job_runtime_config(connection, "mail", schema_version=1, config={"a": 2})

    assert after.config == {"a": 2}
    assert after.updated_by_user_id is None
    assert after.created_at == before.created_at
    assert after.updated_at > before.updated_at


def test_upsert_of_the_same_writes_nothing(connection: psycopg.Connection[Any]):
    before = upsert_job_runtime_config(
        connection, "mail", schema_version=1, config={"a": 1, "b": 2}
    )

    after = upsert_job_runtime_config(connection, "mail", schema_version=1, config={"b": 2, "a": 1})

    assert after == before


def test_insert_leaves_an_existing_one(connection: psycopg.Connection[Any]):
    assert insert_job_runtime_config_if_missing(
        connection, "mail", schema_version=1, config={"a": 1}
    )
    assert not insert_job_runtime_config_if_missing(
        connection, "mail", schema_version=2, config={"a": 2}
    )

    assert require_job_runtime_config(connection, "mail").config == {"a": 1}


def test_of_many_inserts_at_the_same_time_one_inserts(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    barrier = threading.Barrier(CONNECTIONS)

    def insert(number: int) -> bool:
        with runledger_database.connect(autocommit=True) as db:
            barrier.wait(30)
            return insert_job_runtime_config_if_missing(
                db, "mail", schema_version=1, config={"number": number}
            )

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        inserted = list(threads.map(insert, range(CONNECTIONS)))

    assert inserted.count(True) == 1
    config = require_job_runtime_config(connection, "mail").config
    assert config == {"number": inserted.index(True)}


def test_type_without_a_definition_is_refused_and_the_transaction_goes_on(
    connection: psycopg.Connection[Any],
):
    with connection.transaction():
        with pytest.raises(RunledgerError) as caught:
            upsert_job_runtime_config(connection, "pager", schema_version=1, config={})
        upsert_job_runtime_config(connection, "mail", schema_version=1, config={})

    assert caught.value.code == "job.definition_not_found"
    assert caught.value.category is ErrorCategory.VALIDATION
    assert [row.job_type for row in list_job_runtime_configs(connection)] == ["mail"]


def test_joined_write_is_the_callers_to_commit(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    caller = runledger_database.connect()

    upsert_job_runtime_config(caller, "mail", schema_version=1, config={})
    insert_job_runtime_config_if_missing(caller, "sms", schema_version=1, config={})
    caller.rollback()

    assert list_job_runtime_configs(connection) == []


def test_pool_owns_the_transaction(
    runledger_database: TemporaryDatabase, connection: psycopg.Connection[Any]
):
    with connect_pool(runledger_database.dsn, max_size=1) as pool:
        upsert_job_runtime_config(pool, "mail", schema_version=1, config={})

    assert get_job_runtime_config(connection, "mail") is not None


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"config": [1]}, "input.wrong_type", "config"),
        ({"config": None}, "input.wrong_type", "config"),
        ({"config": "{}"}, "input.wrong_type", "config"),
        ({"config": {"a": {"b": {1}}}}, "input.json_unsupported_type", "config.a.b"),
        ({"config": {"a": "x" * 2**20}}, "input.json_too_large", "config"),
        ({"schema_version": 0}, "input.out_of_range", "schema_version"),
        ({"schema_version": 2**31}, "input.out_of_range", "schema_version"),
        ({"updated_by_user_id": "7"}, "input.wrong_type", "updated_by_user_id"),
        ({"job_type": " "}, "input.blank", "job_type"),
    ],
)
def test_invalid_input_is_refused_before_any_sql(change: dict[str, Any], code: str, field: str):
    given = {"job_type": "mail", "schema_version": 1, "config": {}} | change

    for function in (upsert_job_runtime_config, insert_job_runtime_config_if_missing):
        with pytest.raises(RunledgerError) as caught:
            function(psycopg.Connection, **given)  # pyright: ignore[reportArgumentType]  # not touched
        assert (caught.value.code, caught.value.field) == (code, field)


def test_list_is_ordered_paged_and_filtered_by_the_exact_type(
    connection: psycopg.Connection[Any],
):
    for job_type in ("sms", "fax", "mail"):
        upsert_job_runtime_config(connection, job_type, schema_version=1, config={})

    def listed(**options: Any) -> list[str]:
        return [row.job_type for row in list_job_runtime_configs(connection, **options)]

    assert listed() == ["fax", "mail", "sms"]
    assert listed(limit=2) == ["fax", "mail"]
    assert listed(limit=2, after="mail") == ["sms"]
    assert listed(job_type="mail") == ["mail"]
    assert listed(job_type="mai") == []
    with pytest.raises(RunledgerError, match=r"job\.invalid_pagination"):
        listed(limit=0)
