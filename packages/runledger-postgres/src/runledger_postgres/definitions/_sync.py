"""Bring the stored definitions in line with a program's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from runledger_core import ErrorCategory, JobDefinitionSpec, JobType

from .._arguments import check_kinds, check_list
from .._bounded_write import bounded_write
from .._database import Database
from .._session import DEFAULT_LOCK_TIMEOUT_MS
from ..errors import QueryError, refusal
from ._store import DefinitionValues, Stored, store_definitions, values_of
from .rows import DefinitionSyncReport, ExactDefinitionSyncReport


def sync_job_definitions(
    db: Database,
    specs: Sequence[JobDefinitionSpec],
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> DefinitionSyncReport:
    """Write the given definitions, all or none, and leave all others alone.

    A type that an operator disabled stays disabled; everything else becomes as given. Where nothing
    differs, nothing is locked or written.

    Args:
        specs: Any number, each type once; none is no work and no SQL.
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Returns:
        Which of the given types this call disabled, or inserted as disabled.

    Raises:
        ValidationError: `job_definition.active_schedule_exists` if an active schedule uses a type
            to be disabled, `job_definition.duplicate_job_type`,
            `job_definition.disable_unsupported_isolation`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks what it changes, in
        the order of types.
    """
    specs = check_kinds(specs, JobDefinitionSpec, field="specs")
    given = _by_type(specs)
    if not given:
        return DefinitionSyncReport()

    def decide(stored: Stored) -> Stored:
        return {
            job_type: replace(values, is_enabled=False)
            if job_type in stored and not stored[job_type].is_enabled
            else values
            for job_type, values in given.items()
        }

    with bounded_write(db, lock_timeout_ms) as work:
        _, disabled = store_definitions(work, given, decide)
    return DefinitionSyncReport(tuple(disabled))


def sync_job_definitions_exact(
    db: Database,
    specs: Sequence[JobDefinitionSpec],
    *,
    scope: Collection[str],
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> ExactDefinitionSyncReport:
    """Write the given definitions and disable the others in scope, all or none.

    Every given type becomes as given: one that an operator disabled is enabled again. Types in
    scope that are not given are disabled, never deleted. Types outside scope are left alone.

    Args:
        specs: At least one, each type once, all in scope.
        scope: The types that this program owns, at least one.
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Returns:
        Which types this call disabled.

    Raises:
        ValidationError: `job_definition.empty_job_type_list`,
            `job_definition.type_outside_sync_scope`, or as `sync_job_definitions`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the types in scope if
        any differs, in the order of types.
    """
    specs = check_kinds(specs, JobDefinitionSpec, field="specs")
    given = _by_type(specs)
    owned = _checked_scope(scope)
    if not given:
        raise _empty_list("specs")
    for index, spec in enumerate(specs):
        if spec.job_type not in owned:
            raise refusal(
                ErrorCategory.VALIDATION,
                "job_definition.type_outside_sync_scope",
                f"the job type {spec.job_type} is given but not in scope",
                field="scope",
                entry_index=index,
            )

    def decide(stored: Stored) -> Stored:
        absent = {
            job_type: replace(values, is_enabled=False)
            for job_type, values in stored.items()
            if job_type not in given and values.is_enabled
        }
        return given | absent

    with bounded_write(db, lock_timeout_ms) as work:
        _, disabled = store_definitions(work, owned, decide)
    return ExactDefinitionSyncReport(
        tuple(job_type for job_type in disabled if job_type in given),
        tuple(job_type for job_type in disabled if job_type not in given),
    )


def _by_type(specs: Sequence[JobDefinitionSpec]) -> dict[str, DefinitionValues]:
    found: dict[str, DefinitionValues] = {}
    for index, spec in enumerate(specs):
        if spec.job_type in found:
            raise refusal(
                ErrorCategory.VALIDATION,
                "job_definition.duplicate_job_type",
                f"the job type {spec.job_type} is given twice",
                field="job_type",
                entry_index=index,
            )
        found[spec.job_type] = values_of(spec)
    return found


def _checked_scope(scope: Collection[str]) -> set[str]:
    scope = check_list(scope, field="scope")
    if not scope:
        raise _empty_list("scope")
    return {JobType(job_type) for job_type in scope}


def _empty_list(field: str) -> QueryError:
    return refusal(
        ErrorCategory.VALIDATION,
        "job_definition.empty_job_type_list",
        "an exact sync needs at least one job type",
        field=field,
    )
