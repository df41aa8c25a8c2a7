from __future__ import annotations

import copy
import pickle

import psycopg
import psycopg_pool
import pytest

from runledger_core import (
    ConflictError,
    ErrorCategory,
    ForbiddenError,
    InternalError,
    NotFoundError,
    RunledgerError,
    UnavailableError,
    ValidationError,
)
from runledger_postgres.errors import (
    ConstraintSpec,
    QueryConflictError,
    QueryError,
    QueryForbiddenError,
    QueryInternalError,
    QueryNotFoundError,
    QueryUnavailableError,
    QueryValidationError,
    classify_framework_constraint,
    classify_query_error,
    outcome_unknown,
    refusal,
)

CLASSES = [
    (ErrorCategory.CONFLICT, QueryConflictError, ConflictError),
    (ErrorCategory.VALIDATION, QueryValidationError, ValidationError),
    (ErrorCategory.NOT_FOUND, QueryNotFoundError, NotFoundError),
    (ErrorCategory.FORBIDDEN, QueryForbiddenError, ForbiddenError),
    (ErrorCategory.INTERNAL, QueryInternalError, InternalError),
    (ErrorCategory.UNAVAILABLE, QueryUnavailableError, UnavailableError),
]


REPR_OF_TAKEN = (
    "QueryValidationError(code='app.taken', client_message='the name is taken',"
    " field='payload', entry_index=3)"
)


def full_error(kind: type[QueryError]) -> QueryError:
    return kind(
        "app.code",
        "shown to clients",
        field="payload",
        entry_index=3,
        internal_message="Key (k)=(secret) already exists.",
        sqlstate="23505",
        constraint="uq_app",
    )


def parts(error: QueryError) -> tuple[object, ...]:
    return (
        type(error),
        error.code,
        error.client_message,
        error.field,
        error.entry_index,
        error.internal_message,
        error.sqlstate,
        error.constraint,
        str(error),
        repr(error),
    )


@pytest.mark.parametrize(("category", "kind", "core_kind"), CLASSES)
def test_refusal_of_a_category_is_caught_as_that_and_as_a_query_error(category, kind, core_kind):
    error = refusal(category, "test.code", "text", field="field", entry_index=2)

    assert type(error) is kind
    assert isinstance(error, core_kind)
    assert isinstance(error, QueryError)
    assert isinstance(error, RunledgerError)
    assert (error.category, error.code, error.field, error.entry_index) == (
        category,
        "test.code",
        "field",
        2,
    )
    assert (error.internal_message, error.sqlstate, error.constraint) == ("text", None, None)


@pytest.mark.parametrize("kind", [kind for _, kind, _ in CLASSES])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_pickles_with_all_its_parts(kind, protocol):
    error = full_error(kind)

    again = pickle.loads(pickle.dumps(error, protocol))  # just made

    assert parts(again) == parts(error)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_error_copies_with_all_its_parts(copier):
    error = full_error(QueryConflictError)

    assert parts(copier(error)) == parts(error)


def test_error_with_a_cause_pickles_without_it():
    error = classify_query_error(psycopg.OperationalError("secret"))

    again = pickle.loads(pickle.dumps(error))  # just made

    assert parts(again) == parts(error)
    assert again.__cause__ is None


def test_printed_forms_hold_neither_the_databases_words_nor_values():
    error = full_error(QueryConflictError)

    assert str(error) == "app.code: shown to clients"
    assert repr(error) == (
        "QueryConflictError(code='app.code', client_message='shown to clients',"
        " field='payload', entry_index=3)"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (psycopg.OperationalError("consuming input failed"), "db.unavailable"),
        (psycopg.errors.ConnectionTimeout("expired"), "db.unavailable"),
        (psycopg.errors.PipelineAborted("aborted"), "db.unavailable"),
        (psycopg_pool.PoolTimeout("no connection"), "db.unavailable"),
        (psycopg_pool.PoolClosed("closed"), "db.unavailable"),
        (psycopg_pool.TooManyRequests("too many"), "db.unavailable"),
        (psycopg.InterfaceError("the cursor is closed"), "db.query_failed"),
        (psycopg.ProgrammingError("cannot adapt type"), "db.query_failed"),
        (psycopg.DataError("NUL"), "db.query_failed"),
        (psycopg.NotSupportedError("no pipeline"), "db.query_failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_without_sqlstate_is_judged_by_its_class(error, code):
    classified = classify_query_error(error)

    assert (classified.code, classified.sqlstate) == (code, None)
    assert classified.is_transient is (code == "db.unavailable")
    assert classified.__cause__ is error
    assert classified.internal_message == str(error)
    assert str(error) not in f"{classified} {classified!r}"


def test_unknown_outcome_is_transient_and_says_that_it_is_unknown():
    error = outcome_unknown(psycopg.OperationalError("server closed the connection"))

    assert (error.code, error.category) == ("db.outcome_unknown", ErrorCategory.UNAVAILABLE)
    assert error.is_transient


def test_reclassified_error_keeps_everything_but_code_category_and_text():
    error = full_error(QueryConflictError)
    cause = error.__cause__ = psycopg.IntegrityError("driver")
    spec = ConstraintSpec("app.taken", ErrorCategory.VALIDATION, "the name is taken")

    again = error.reclassified({"uq_app": spec}.get)

    assert parts(again) == (
        QueryValidationError,
        "app.taken",
        "the name is taken",
        "payload",
        3,
        "Key (k)=(secret) already exists.",
        "23505",
        "uq_app",
        "app.taken: the name is taken",
        REPR_OF_TAKEN,
    )
    assert again.__cause__ is cause


def test_error_of_a_constraint_that_the_application_does_not_know_is_unchanged():
    error = full_error(QueryConflictError)

    assert error.reclassified({}.get) is error


def test_error_without_a_constraint_is_not_put_to_the_application():
    error = refusal(ErrorCategory.INTERNAL, "test.code", "text")

    assert error.reclassified(lambda name: pytest.fail(f"asked for {name}")) is error


@pytest.mark.parametrize(
    ("constraint", "code", "category"),
    [
        ("uq_job_queue_type_idempotency_org", "job.already_enqueued", ErrorCategory.CONFLICT),
        ("uq_job_queue_type_idempotency_global", "job.already_enqueued", ErrorCategory.CONFLICT),
        (
            "fk_job_runtime_configs_job_type",
            "job.definition_not_found",
            ErrorCategory.VALIDATION,
        ),
    ],
)
def test_constraint_of_the_framework_has_a_code(constraint, code, category):
    spec = classify_framework_constraint(constraint)

    assert spec is not None
    assert (spec.code, spec.category) == (code, category)


def test_constraint_of_somebody_else_has_none():
    assert classify_framework_constraint("uq_app") is None
