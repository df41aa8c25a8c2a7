"""Change some fields of a definition."""

from __future__ import annotations

from dataclasses import replace

from runledger_core import JobType, check_bool, check_int
from runledger_core.limits import INT32_MAX, INT32_MIN

from .._bounded_write import bounded_write
from .._database import Database
from .._session import DEFAULT_LOCK_TIMEOUT_MS, Bound
from ._read import GET_JOB_DEFINITION
from ._store import DefinitionValues, Stored, store_definitions
from .rows import JobDefinitionRecord


def update_job_definition(
    db: Database,
    job_type: str,
    *,
    version: int | None = None,
    max_attempts: int | None = None,
    default_timeout_seconds: int | None = None,
    default_priority: int | None = None,
    is_enabled: bool | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> JobDefinitionRecord | None:
    """Change the given fields of a definition, and return it as stored.

    If the stored values are those already, nothing is written and `updated_at` stays.

    Args:
        version: 1 or more; None leaves it, as for the fields below.
        max_attempts: 1 or more; jobs enqueued before keep theirs.
        default_timeout_seconds: Time for one attempt in seconds, 1 or more.
        default_priority: Larger runs first.
        is_enabled: Whether jobs of this type can be enqueued.
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Returns:
        The definition, or None if the type has none.

    Raises:
        ValidationError: `job_definition.active_schedule_exists` if this disables a type that an
            active schedule uses; `job_definition.disable_unsupported_isolation`; or an `input.*`
            code that names the field.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one. Locks the definition.
    """
    job_type = JobType(job_type)
    version = _checked(version, "version")
    max_attempts = _checked(max_attempts, "max_attempts")
    default_timeout_seconds = _checked(default_timeout_seconds, "default_timeout_seconds")
    default_priority = _checked(default_priority, "default_priority", minimum=INT32_MIN)
    if is_enabled is not None:
        check_bool(is_enabled, field="is_enabled")

    def patched(values: DefinitionValues) -> DefinitionValues:
        return replace(
            values,
            version=_or(version, values.version),
            max_attempts=_or(max_attempts, values.max_attempts),
            default_timeout_seconds=_or(default_timeout_seconds, values.default_timeout_seconds),
            default_priority=_or(default_priority, values.default_priority),
            is_enabled=values.is_enabled if is_enabled is None else is_enabled,
        )

    def decide(stored: Stored) -> Stored:
        return {name: patched(values) for name, values in stored.items()}

    with bounded_write(db, lock_timeout_ms) as work:
        store_definitions(work, [job_type], decide)
        rows = work.fetch(Bound(GET_JOB_DEFINITION, {"job_type": job_type}))
    return rows[0] if rows else None


def _checked(value: int | None, field: str, *, minimum: int = 1) -> int | None:
    if value is None:
        return None
    return check_int(value, field=field, minimum=minimum, maximum=INT32_MAX)


def _or(value: int | None, stored: int) -> int:
    return stored if value is None else value
