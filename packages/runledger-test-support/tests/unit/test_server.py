from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from runledger_core import UnavailableError, ValidationError
from runledger_test_support.environ import ScopedEnv
from runledger_test_support.server import DatabaseServer, ServerOrigin, provide_server


def dsn_of(admin_dsn: str, database: str) -> str:
    return DatabaseServer(admin_dsn, 180_000, origin=ServerOrigin.ADMIN_URL).dsn(database)


@pytest.mark.parametrize(
    ("admin_dsn", "expected"),
    [
        ("postgresql://me:a%40b@db:5433/postgres", "postgresql://me:a%40b@db:5433/one"),
        ("host=db user=me", "postgresql://me@db/one"),
        (
            "postgresql://me@db/postgres?sslmode=require",
            "postgresql://me@db/one?sslmode=require",
        ),
        ("host=/run/pg user=me", "postgresql://me@/one?host=%2Frun%2Fpg"),
        ("host=a,b port=1,2", "postgresql:///one?host=a%2Cb&port=1%2C2"),
        ("host=::1 port=5", "postgresql:///one?host=%3A%3A1&port=5"),
    ],
)
def test_database_url_keeps_everything_but_the_name(admin_dsn: str, expected: str) -> None:
    assert dsn_of(admin_dsn, "one") == expected


def test_database_url_means_the_same_to_the_driver() -> None:
    admin = "host=db port=6 user='m e' password='p:/@?&' options='-c geqo=off' dbname=postgres"

    assert conninfo_to_dict(dsn_of(admin, "o/ne")) == {
        **conninfo_to_dict(admin),
        "dbname": "o/ne",
    }


def test_unreachable_server_is_refused_without_its_password() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/postgres"

    with (
        ScopedEnv({"RUNLEDGER_TEST_ADMIN_DATABASE_URL": url}),
        pytest.raises(UnavailableError) as refused,
        provide_server(),
    ):
        pass

    assert refused.value.code == "test_support.server_unavailable"
    assert "secret" not in str(refused.value)


def test_senseless_url_is_refused() -> None:
    with (
        ScopedEnv({"RUNLEDGER_TEST_ADMIN_DATABASE_URL": "mysql://nowhere"}),
        pytest.raises(ValidationError) as refused,
        provide_server(),
    ):
        pass

    assert refused.value.code == "test_support.environment_invalid"
