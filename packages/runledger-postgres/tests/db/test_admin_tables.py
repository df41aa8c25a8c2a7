from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.pool import NullPool

from runledger_core import JobEnqueue
from runledger_postgres import enqueue_job
from runledger_postgres.admin import tables

VIEWS = {"job_timeline", "job_metrics_rollup"}
TABLES = {name.partition(".")[2] for name in tables.metadata.tables} - VIEWS


@pytest.fixture
def engine(runledger_database) -> Engine:
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(runledger_database.dsn),
        poolclass=NullPool,
    )


def shape_of(type_, dialect) -> str:
    if isinstance(type_, ENUM):
        return f"{type_.schema}.{type_.name} {type_.enums}"
    return type_.compile(dialect=dialect)


def test_every_table_and_view_of_the_database_is_described(engine):
    inspector = inspect(engine)

    assert set(inspector.get_table_names(schema="runledger")) == TABLES
    assert set(inspector.get_view_names(schema="runledger")) == VIEWS


@pytest.mark.parametrize("name", sorted(TABLES | VIEWS))
def test_columns_are_those_of_the_database(engine, name):
    table = tables.metadata.tables[f"runledger.{name}"]
    described = [
        (column.name, shape_of(column.type, engine.dialect), column.nullable)
        for column in table.columns
    ]

    stored = [
        (column["name"], shape_of(column["type"], engine.dialect), column["nullable"])
        for column in inspect(engine).get_columns(name, schema="runledger")
    ]

    assert described == stored


@pytest.mark.parametrize("name", sorted(TABLES))
def test_primary_keys_are_those_of_the_database(engine, name):
    table = tables.metadata.tables[f"runledger.{name}"]

    stored = inspect(engine).get_pk_constraint(name, schema="runledger")["constrained_columns"]

    assert {column.name for column in table.primary_key} == set(stored)


def test_a_report_of_your_own_runs_on_your_engine(engine, runledger_pool):
    with runledger_pool.connection() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
    enqueue_job(runledger_pool, JobEnqueue("test.job", {"country": "PT"}))
    job = tables.job_queue.c
    country = job.payload["country"].astext.label("country")
    report = select(job.status, country, func.count()).where(job.status == "PENDING")

    with engine.connect() as connection:
        rows = connection.execute(report.group_by(job.status, "country")).all()

    assert [tuple(row) for row in rows] == [("PENDING", "PT", 1)]
