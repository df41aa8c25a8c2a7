"""One definition: written as given, or inserted where it is missing."""

from __future__ import annotations

from runledger_core import ErrorCategory, JobDefinitionSpec

from .._arguments import check_kind
from .._bounded_write import bounded_write
from .._database import Database
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ..errors import refusal
from ._read import GET_JOB_DEFINITION
from ._store import Stored, store_definitions, values_of
from .rows import JobDefinitionRecord


def upsert_job_definition(
    db: Database, spec: JobDefinitionSpec, *, lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS
) -> JobDefinitionRecord:
    """Write a definition as given, and return it as stored.

    If it is stored with these values already, nothing is written and `updated_at` stays.

    Args:
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Raises:
        ValidationError: `job_definition.active_schedule_exists` if this disables a type that an
            active schedule uses; `job_definition.disable_unsupported_isolation`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the definition.
    """
    check_kind(spec, JobDefinitionSpec, field="spec")
    wanted = {spec.job_type: values_of(spec)}
    with bounded_write(db, lock_timeout_ms) as work:
        store_definitions(work, wanted, lambda _stored: wanted)
        rows = work.fetch(Bound(GET_JOB_DEFINITION, {"job_type": spec.job_type}))
        if not rows:
            raise refusal(
                ErrorCategory.UNAVAILABLE,
                "db.serialization_failure",
                "the definition was deleted meanwhile; retry",
            )
        return rows[0]


def insert_job_definition_if_missing(
    db: Database, spec: JobDefinitionSpec, *, lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS
) -> bool:
    """Insert a definition unless its type has one, which is left as it is.

    Returns:
        Whether this call inserted it; of any number of calls at the same time, one does.

    Raises:
        ValidationError: As `upsert_job_definition`, for a spec that is disabled.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    check_kind(spec, JobDefinitionSpec, field="spec")
    wanted = {spec.job_type: values_of(spec)}

    def decide(stored: Stored) -> Stored:
        return {} if spec.job_type in stored else wanted

    with bounded_write(db, lock_timeout_ms) as work:
        inserted, _ = store_definitions(work, wanted, decide)
    return spec.job_type in inserted
