"""Storage errors: what PostgreSQL and the connection report, as stable codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg

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

from ._whole import KEPT_BACK

_READ_ONLY: Final = "25006"
_FEATURE_NOT_SUPPORTED: Final = "0A000"
_SETTING_CHECK: Final = "call_bool_check_hook"
_ENDS_SESSION: Final = frozenset({"FATAL", "PANIC"})


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What a violated constraint means to callers: a stable code, a category and a text."""

    code: str
    category: ErrorCategory
    client_message: str


ConstraintClassifier = Callable[[str], ConstraintSpec | None]


class QueryError(RunledgerError):
    """Mixin of every error that storage raises; `except QueryError` catches them all.

    `str()` and `repr()` are safe to show.

    Attributes:
        internal_message: The database's own words, for logs: they may quote values.
        sqlstate: What PostgreSQL reported, if it did.
        constraint: The violated constraint, if one was.
    """

    def __init__(
        self,
        code: str,
        client_message: str,
        *,
        field: str | None = None,
        entry_index: int | None = None,
        internal_message: str | None = None,
        sqlstate: str | None = None,
        constraint: str | None = None,
    ) -> None:
        """Make the error; the database's words stay in `internal_message`."""
        super().__init__(code, client_message, field=field, entry_index=entry_index)
        self.internal_message: str = internal_message or client_message
        self.sqlstate = sqlstate
        self.constraint = constraint

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later: the server or the link was the trouble.

        True for `db.outcome_unknown` too, where the call may have succeeded already.
        """
        return self.category is ErrorCategory.UNAVAILABLE

    def reclassified(self, classifier: ConstraintClassifier) -> QueryError:
        """Return this error under the application's own constraint code, or unchanged."""
        spec = None if self.constraint is None else classifier(self.constraint)
        if spec is None:
            return self
        error = _CLASSES[spec.category](
            spec.code,
            spec.client_message,
            field=self.field,
            entry_index=self.entry_index,
            internal_message=self.internal_message,
            sqlstate=self.sqlstate,
            constraint=self.constraint,
        )
        error.__cause__ = self.__cause__
        return error


class QueryConflictError(QueryError, ConflictError):
    """The request meets an existing row or a concurrent change."""


class QueryValidationError(QueryError, ValidationError):
    """The request is not valid, or not in the target's present state."""


class QueryNotFoundError(QueryError, NotFoundError):
    """The target does not exist in the given scope."""


class QueryForbiddenError(QueryError, ForbiddenError):
    """The caller is not, or no longer, allowed to do this."""


class QueryInternalError(QueryError, InternalError):
    """Something that should not happen happened in the database."""


class QueryUnavailableError(QueryError, UnavailableError):
    """The database cannot be reached or cannot serve the call now."""


_CLASSES: Final[dict[ErrorCategory, type[QueryError]]] = {
    ErrorCategory.CONFLICT: QueryConflictError,
    ErrorCategory.VALIDATION: QueryValidationError,
    ErrorCategory.NOT_FOUND: QueryNotFoundError,
    ErrorCategory.FORBIDDEN: QueryForbiddenError,
    ErrorCategory.INTERNAL: QueryInternalError,
    ErrorCategory.UNAVAILABLE: QueryUnavailableError,
}

_C, _V, _F, _I, _U = (
    ErrorCategory.CONFLICT,
    ErrorCategory.VALIDATION,
    ErrorCategory.FORBIDDEN,
    ErrorCategory.INTERNAL,
    ErrorCategory.UNAVAILABLE,
)

_CONTRADICTION: Final = ConstraintSpec(
    "workflow.internal_state", _I, "the counters of a workflow run do not fit its steps"
)
_CONSTRAINTS: Final[dict[str, ConstraintSpec]] = {
    "chk_workflow_runs_counters": _CONTRADICTION,
    "chk_workflow_steps_counts": _CONTRADICTION,
    "uq_job_queue_type_idempotency_org": ConstraintSpec(
        "job.already_enqueued", _C, "a job with this key exists"
    ),
    "uq_job_queue_type_idempotency_global": ConstraintSpec(
        "job.already_enqueued", _C, "a job with this key exists"
    ),
    "fk_job_runtime_configs_job_type": ConstraintSpec(
        "job.definition_not_found", _V, "no job definition has this type"
    ),
}

# Our statements name nothing but our schema, so what is undefined is of it.
_SCHEMA_MISSING: Final = ConstraintSpec(
    "schema.missing_migration_history",
    _C,
    "the database has no Runledger schema, or an older one; run: runledger migrate",
)

_SQLSTATES: Final[dict[str, ConstraintSpec]] = {
    "23505": ConstraintSpec("db.unique_violation", _C, "a row with these values exists"),
    "23503": ConstraintSpec("db.related_resource_missing", _V, "a related row does not exist"),
    "23001": ConstraintSpec(
        "db.related_resource_still_referenced", _V, "the row is still referenced"
    ),
    "23514": ConstraintSpec("db.business_rule_violation", _V, "a value breaks a schema rule"),
    "23502": ConstraintSpec("db.required_field_missing", _V, "a required value is missing"),
    "42501": ConstraintSpec("db.permission_denied", _F, "the database role may not do this"),
    "3F000": _SCHEMA_MISSING,
    "42P01": _SCHEMA_MISSING,
    "42703": _SCHEMA_MISSING,
    "42883": _SCHEMA_MISSING,
    "55P03": ConstraintSpec("db.lock_timeout", _U, "a row is locked by another transaction; retry"),
    "57014": ConstraintSpec("db.statement_timeout", _U, "the statement was cancelled or timed out"),
    "25P04": ConstraintSpec(
        "db.transaction_timeout",
        _U,
        "the transaction took longer than transaction_timeout allows; raise it for this role",
    ),
    _READ_ONLY: ConstraintSpec("db.read_only", _U, "the database accepts no writes now"),
}

_SQLSTATE_CLASSES: Final[dict[str, ConstraintSpec]] = {
    "08": ConstraintSpec("db.unavailable", _U, "the database cannot be reached"),
    "57": ConstraintSpec("db.unavailable", _U, "the database is shutting down or restarting"),
    "53": ConstraintSpec("db.out_of_resources", _U, "the database is out of resources"),
    "40": ConstraintSpec("db.serialization_failure", _U, "transactions collided; retry"),
    "55": ConstraintSpec("db.object_not_ready", _U, "the object is in use; retry"),
}

_INVALID_TEXT: Final = "22P02"
_ROWS_KEPT_BACK: Final = ConstraintSpec(
    "db.rows_kept_back", _I, "a trigger of the database keeps rows back; nothing was changed"
)

_UNAVAILABLE: Final = _SQLSTATE_CLASSES["08"]
_OUTCOME_UNKNOWN: Final = ConstraintSpec(
    "db.outcome_unknown", _U, "the connection was lost while committing; the outcome is unknown"
)
_QUERY_FAILED: Final = ConstraintSpec("db.query_failed", _I, "the database refused the statement")


def refusal(
    category: ErrorCategory,
    code: str,
    client_message: str,
    *,
    field: str | None = None,
    entry_index: int | None = None,
) -> QueryError:
    """Return a storage refusal of the given category."""
    return _CLASSES[category](code, client_message, field=field, entry_index=entry_index)


def classify_framework_constraint(name: str) -> ConstraintSpec | None:
    """Return what a violated constraint of the Runledger schema means; None if it is not ours."""
    return _CONSTRAINTS.get(name)


def classify_query_error(
    error: psycopg.Error, *, classifier: ConstraintClassifier | None = None
) -> QueryError:
    """Return a driver error as a coded storage error.

    Args:
        classifier: Maps the application's own constraint names; asked before the framework's.

    Returns:
        An error whose cause is `error`; nothing of the driver's text is in its `str()`.
    """
    sqlstate, constraint = error.sqlstate, error.diag.constraint_name
    spec = None
    if constraint is not None:
        spec = classifier(constraint) if classifier else None
        spec = spec or classify_framework_constraint(constraint)
    return _storage_error(error, spec or _by_sqlstate(error, sqlstate), sqlstate, constraint)


def is_end_of_session(error: psycopg.Error) -> bool:
    """Whether the server ended the session with this error, or the link is lost."""
    if error.sqlstate is None:
        # The driver's own: of a link that is lost, or of what it could not send.
        return isinstance(error, psycopg.OperationalError)
    return error.diag.severity_nonlocalized in _ENDS_SESSION


def outcome_unknown(error: psycopg.Error) -> QueryError:
    """Return the error of a connection that died while its COMMIT was under way."""
    return _storage_error(error, _OUTCOME_UNKNOWN, None, None)


def _by_sqlstate(error: psycopg.Error, sqlstate: str | None) -> ConstraintSpec:
    if sqlstate is None:
        # A killed link and an empty pool have none: the driver's class tells.
        return _UNAVAILABLE if isinstance(error, psycopg.OperationalError) else _QUERY_FAILED
    found = _SQLSTATES.get(sqlstate) or _SQLSTATE_CLASSES.get(sqlstate[:2])
    if found is not None:
        return found
    if sqlstate == _FEATURE_NOT_SUPPORTED and error.diag.source_function == _SETTING_CHECK:
        # BEGIN READ WRITE, on a standby behind a pooler that had been told of a primary.
        return _SQLSTATES[_READ_ONLY]
    if sqlstate == _INVALID_TEXT and KEPT_BACK in (error.diag.message_primary or ""):
        return _ROWS_KEPT_BACK
    # The server ended the session, for a reason of any class: idle in a transaction is 25P03.
    return _UNAVAILABLE if is_end_of_session(error) else _QUERY_FAILED


def _storage_error(
    error: psycopg.Error, spec: ConstraintSpec, sqlstate: str | None, constraint: str | None
) -> QueryError:
    made = _CLASSES[spec.category](
        spec.code,
        spec.client_message,
        internal_message=str(error),
        sqlstate=sqlstate,
        constraint=constraint,
    )
    made.__cause__ = error
    return made
