"""Every statement of the distribution fits the schema: this is what sqlx checks in Rust."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import psycopg
import pytest
from psycopg.pq import ExecStatus

import runledger_postgres
from runledger_postgres._rows import NoRow, Statement
from runledger_test_support import TemporaryDatabase

pytestmark = pytest.mark.core

PARAMETER: Final = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class TypeRow:
    job_type: str


def statements() -> Iterator[tuple[str, Statement[Any]]]:
    """Yield the constants of every module, each statement once, under its qualified name."""
    seen: set[int] = set()
    prefix = f"{runledger_postgres.__name__}."
    for info in pkgutil.walk_packages(runledger_postgres.__path__, prefix):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, Statement) and id(value) not in seen:
                seen.add(id(value))
                yield f"{info.name}.{name}", value


def problem_of(connection: psycopg.Connection[Any], statement: Statement[Any]) -> str | None:
    """Return why a statement does not fit the schema or its row class, or None if it does."""
    numbered, names = _numbered(statement.sql)
    prepared = connection.pgconn.prepare(b"", numbered.encode())
    if prepared.status != ExecStatus.COMMAND_OK:
        return prepared.get_error_message()
    described = connection.pgconn.describe_prepared(b"")
    if described.nparams != len(names):
        return f"has {described.nparams} parameters for the names {names}"
    columns = [(described.fname(i) or b"").decode() for i in range(described.nfields)]
    wanted = [] if statement.row is NoRow else [field.name for field in fields(statement.row)]
    if sorted(columns) != sorted(wanted):
        return f"has columns {sorted(columns)}, but its row class has {sorted(wanted)}"
    return None


def _numbered(text: str) -> tuple[str, list[str]]:
    names = list(dict.fromkeys(PARAMETER.findall(text)))
    if not names:
        # Sent as it is.
        return text, names
    numbered = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return numbered.replace("%%", "%"), names


@pytest.mark.core
def test_every_statement_fits_the_schema_and_its_row_class(runledger_database: TemporaryDatabase):
    connection = runledger_database.connect(autocommit=True)

    problems = {name: problem_of(connection, statement) for name, statement in statements()}

    assert len(problems) > 40
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_statements_are_upper_case_constants():
    assert [name for name, _ in statements() if not name.rpartition(".")[2].isupper()] == []


def test_misspelt_column_is_found(runledger_database: TemporaryDatabase):
    wrong = Statement("SELECT d.job_typ AS job_type FROM runledger.job_definitions AS d", TypeRow)

    problem = problem_of(runledger_database.connect(autocommit=True), wrong)

    assert problem is not None
    assert "column d.job_typ does not exist" in problem


def test_parameter_without_a_type_is_found(runledger_database: TemporaryDatabase):
    wrong = Statement(
        """
        SELECT d.job_type
        FROM runledger.job_definitions AS d
        WHERE %(is_filtered)s IS NULL OR d.job_type = %(job_type)s
        """,
        TypeRow,
    )

    problem = problem_of(runledger_database.connect(autocommit=True), wrong)

    assert problem is not None
    assert "could not determine data type of parameter $1" in problem


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (
            Statement("SELECT d.job_type, d.version FROM runledger.job_definitions AS d", TypeRow),
            "has columns ['job_type', 'version'], but its row class has ['job_type']",
        ),
        (
            Statement("SELECT d.version FROM runledger.job_definitions AS d", TypeRow),
            "has columns ['version'], but its row class has ['job_type']",
        ),
        (
            Statement("DELETE FROM runledger.job_definitions AS d", TypeRow),
            "has columns [], but its row class has ['job_type']",
        ),
        (
            Statement("SELECT d.job_type FROM runledger.job_definitions AS d", NoRow),
            "has columns ['job_type'], but its row class has []",
        ),
    ],
)
def test_columns_that_are_not_the_fields_of_the_row_class_are_found(
    runledger_database: TemporaryDatabase, wrong: Statement[Any], problem: str
):
    connection = runledger_database.connect(autocommit=True)

    assert problem_of(connection, wrong) == problem
