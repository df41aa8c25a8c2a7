"""Runtime configuration of job types: one JSON object each, with the version of its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import (
    ErrorCategory,
    JobType,
    JsonInput,
    JsonValue,
    ValidationError,
    check_int,
    check_text,
    check_uuid,
    codes,
    current_limits,
    decode_json,
    encode_json,
)
from runledger_core.limits import INT32_MAX

from ._arguments import check_lock_timeout
from ._database import Database
from ._paging import require_page
from ._rows import Statement, column
from ._session import DEFAULT_LOCK_TIMEOUT_MS, Bound, run
from .errors import QueryError, refusal


@dataclass(frozen=True, slots=True)
class JobRuntimeConfigRecord:
    """The configuration of a job type, as stored."""

    job_type: str
    schema_version: int
    _: KW_ONLY
    config: JsonValue = column(decode_json)
    updated_by_user_id: UUID | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class _TypeRow:
    job_type: str


_COLUMNS: Final = """
    c.job_type, c.schema_version, c.config, c.updated_by_user_id, c.created_at, c.updated_at
"""

_INSERT: Final = """
    INSERT INTO runledger.job_runtime_configs AS c (
        job_type, schema_version, config, updated_by_user_id, created_at, updated_at
    )
    VALUES (
        %(job_type)s::text, %(schema_version)s::int4, %(config)s::jsonb,
        %(updated_by_user_id)s::uuid, clock_timestamp(), clock_timestamp()
    )
"""

GET_JOB_RUNTIME_CONFIG: Final = Statement(
    f"""
    SELECT {_COLUMNS}
    FROM runledger.job_runtime_configs AS c
    WHERE c.job_type = %(job_type)s
    """,
    JobRuntimeConfigRecord,
)

LIST_JOB_RUNTIME_CONFIGS: Final = Statement(
    f"""
    SELECT {_COLUMNS}
    FROM runledger.job_runtime_configs AS c
    WHERE (%(job_type)s::text IS NULL OR c.job_type = %(job_type)s::text)
        AND (%(after)s::text IS NULL OR c.job_type > %(after)s::text)
    ORDER BY c.job_type
    LIMIT %(limit)s::int8
    """,
    JobRuntimeConfigRecord,
)

INSERT_JOB_RUNTIME_CONFIG_IF_MISSING: Final = Statement(
    f"""
    {_INSERT}
    ON CONFLICT (job_type) DO NOTHING
    RETURNING job_type
    """,
    _TypeRow,
)

# No row comes back if the stored one has these values already.
UPSERT_JOB_RUNTIME_CONFIG: Final = Statement(
    f"""
    {_INSERT}
    ON CONFLICT (job_type) DO UPDATE
    SET
        schema_version = EXCLUDED.schema_version,
        config = EXCLUDED.config,
        updated_by_user_id = EXCLUDED.updated_by_user_id,
        updated_at = clock_timestamp()
    WHERE (c.schema_version, c.config, c.updated_by_user_id)
        IS DISTINCT FROM (EXCLUDED.schema_version, EXCLUDED.config, EXCLUDED.updated_by_user_id)
    RETURNING {_COLUMNS}
    """,
    JobRuntimeConfigRecord,
)


def get_job_runtime_config(db: Database, job_type: str) -> JobRuntimeConfigRecord | None:
    """Return the configuration of a job type, or None if it has none.

    Transaction: joins the caller's or opens one.
    """
    rows = run(db, Bound(GET_JOB_RUNTIME_CONFIG, {"job_type": JobType(job_type)}))
    return rows[0] if rows else None


def require_job_runtime_config(db: Database, job_type: str) -> JobRuntimeConfigRecord:
    """Return the configuration of a job type.

    Raises:
        NotFoundError: `job.runtime_config_not_found` if it has none.

    Transaction: joins the caller's or opens one.
    """
    found = get_job_runtime_config(db, job_type)
    if found is None:
        raise _not_found()
    return found


def list_job_runtime_configs(
    db: Database, *, job_type: str | None = None, limit: int = 100, after: str | None = None
) -> list[JobRuntimeConfigRecord]:
    """Return configurations in the order of their job types.

    Args:
        job_type: Only the one of exactly this type.
        limit: Most configurations to return, 1 to 1,000.
        after: Only types behind this one, which was the last of the page before.

    Raises:
        ValidationError: `job.invalid_pagination` for such a limit, or an `input.*` code.

    Transaction: joins the caller's or opens one.
    """
    require_page(limit)
    if after is not None:
        check_text(after, field="after", allow_blank=True)
    chosen = None if job_type is None else JobType(job_type)
    params = {"job_type": chosen, "limit": limit, "after": after}
    return run(db, Bound(LIST_JOB_RUNTIME_CONFIGS, params))


def insert_job_runtime_config_if_missing(
    db: Database,
    job_type: str,
    *,
    schema_version: int,
    config: Mapping[str, JsonInput],
    updated_by_user_id: UUID | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> bool:
    """Store a configuration unless the job type has one, which is left as it is.

    Args:
        schema_version: Version of the shape of `config`, 1 or more.
        config: A JSON object, at most `Limits.metadata_bytes`.
        updated_by_user_id: Who stores it; not interpreted.
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Returns:
        Whether this call stored it.

    Raises:
        ValidationError: `job.definition_not_found` if the type has no definition, or an `input.*`
            code that names the argument or the path in `config`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    params = _parameters(job_type, schema_version, config, updated_by_user_id)
    bound = Bound(INSERT_JOB_RUNTIME_CONFIG_IF_MISSING, params)
    return bool(run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms)))


def upsert_job_runtime_config(
    db: Database,
    job_type: str,
    *,
    schema_version: int,
    config: Mapping[str, JsonInput],
    updated_by_user_id: UUID | None = None,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
) -> JobRuntimeConfigRecord:
    """Store a configuration as given, and return it as stored.

    If it is stored with these values already, nothing is written and `updated_at` stays.

    Args:
        schema_version: Version of the shape of `config`, 1 or more.
        config: A JSON object, at most `Limits.metadata_bytes`.
        updated_by_user_id: Who stores it; not interpreted.
        lock_timeout_ms: Longest wait for a row, in milliseconds.

    Raises:
        ValidationError: `job.definition_not_found` if the type has no definition, or an `input.*`
            code that names the argument or the path in `config`.
        UnavailableError: `db.lock_timeout`, `db.unavailable`, `db.outcome_unknown`.

    Transaction: joins the caller's, inside a savepoint, or opens one.
    """
    params = _parameters(job_type, schema_version, config, updated_by_user_id)
    bound = Bound(UPSERT_JOB_RUNTIME_CONFIG, params)
    rows = run(db, bound, lock_timeout_ms=check_lock_timeout(lock_timeout_ms))
    return rows[0] if rows else require_job_runtime_config(db, job_type)


def _parameters(
    job_type: str,
    schema_version: int,
    config: Mapping[str, JsonInput],
    updated_by_user_id: UUID | None,
) -> dict[str, object]:
    if not isinstance(config, dict):
        raise ValidationError(
            codes.INPUT_WRONG_TYPE, "config must be a JSON object (a dict)", field="config"
        )
    if updated_by_user_id is not None:
        updated_by_user_id = check_uuid(updated_by_user_id, field="updated_by_user_id")
    return {
        "job_type": JobType(job_type),
        "schema_version": check_int(
            schema_version, field="schema_version", minimum=1, maximum=INT32_MAX
        ),
        "config": encode_json(config, field="config", max_bytes=current_limits().metadata_bytes),
        "updated_by_user_id": updated_by_user_id,
    }


def _not_found() -> QueryError:
    return refusal(
        ErrorCategory.NOT_FOUND,
        "job.runtime_config_not_found",
        "the job type has no runtime configuration",
        field="job_type",
    )
