"""How definitions are written: nothing if nothing differs, else in one order, checked at the end.

Missing rows are inserted first, then the others are locked, both in the order of their types, so
that writers of overlapping sets cannot deadlock. Whether a disabled type is still scheduled is
looked up after its row is locked, by a statement of its own: an activation that held the lock is
visible then, and a later one waits and finds the type disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from runledger_core import ErrorCategory, JobDefinitionSpec

from .._rows import NoRow, Statement
from .._session import IS_READ_COMMITTED, Bound, Transaction
from ..errors import QueryValidationError, refusal


class ActiveScheduleExistsError(QueryValidationError):
    """A job type cannot be disabled while an active schedule uses it.

    Attributes:
        job_types: The types in question, sorted.
    """

    def __init__(self, job_types: Sequence[str]) -> None:
        """Make the error from the types that are scheduled."""
        names = tuple(sorted(job_types))
        super().__init__(
            "job_definition.active_schedule_exists",
            "active schedules use job types that would be disabled; deactivate them first:"
            f" {', '.join(names)}",
            field="is_enabled",
        )
        self.job_types = names


@dataclass(frozen=True, slots=True)
class DefinitionValues:
    """What of a definition is written."""

    job_type: str
    version: int
    _: KW_ONLY
    max_attempts: int
    default_timeout_seconds: int
    default_priority: int
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class _TypeRow:
    job_type: str


@dataclass(frozen=True, slots=True)
class ActiveSchedulesRow:
    """Which of the types are scheduled, as a snapshot taken after the locks shows it."""

    is_read_committed: bool
    job_types: list[str]


Stored = Mapping[str, DefinitionValues]
Decide = Callable[[Stored], Stored]

_VALUE_COLUMNS: Final = """
    job_type, version, max_attempts, default_timeout_seconds, default_priority, is_enabled
"""

_WANTED: Final = f"""
    unnest(
        %(job_types)s::text[], %(versions)s::int4[], %(max_attempts)s::int4[],
        %(timeouts)s::int4[], %(priorities)s::int4[], %(enabled)s::bool[]
    ) AS w({_VALUE_COLUMNS})
"""

READ_DEFINITIONS: Final = Statement(
    f"""
    SELECT {_VALUE_COLUMNS}
    FROM runledger.job_definitions
    WHERE job_type = ANY (%(job_types)s::text[])
    """,
    DefinitionValues,
)

# Against other definition writes and schedule activation; enqueues take no lock on definitions.
LOCK_DEFINITIONS: Final = Statement(
    f"""
    SELECT {_VALUE_COLUMNS}
    FROM runledger.job_definitions
    WHERE job_type = ANY (%(job_types)s::text[])
    ORDER BY job_type
    FOR NO KEY UPDATE
    """,
    DefinitionValues,
)

INSERT_DEFINITIONS: Final = Statement(
    f"""
    INSERT INTO runledger.job_definitions ({_VALUE_COLUMNS}, created_at, updated_at)
    SELECT {_VALUE_COLUMNS}, statement_timestamp(), statement_timestamp()
    FROM {_WANTED}
    ORDER BY w.job_type
    ON CONFLICT (job_type) DO NOTHING
    RETURNING job_type
    """,
    _TypeRow,
)

UPDATE_DEFINITIONS: Final = Statement(
    f"""
    UPDATE runledger.job_definitions AS d
    SET
        version = w.version,
        max_attempts = w.max_attempts,
        default_timeout_seconds = w.default_timeout_seconds,
        default_priority = w.default_priority,
        is_enabled = w.is_enabled,
        updated_at = clock_timestamp()
    FROM {_WANTED}
    WHERE d.job_type = w.job_type
    """,
    NoRow,
)

FIND_ACTIVE_SCHEDULES: Final = Statement(
    f"""
    SELECT
        {IS_READ_COMMITTED} AS is_read_committed,
        ARRAY(
            SELECT DISTINCT s.job_type
            FROM runledger.job_schedules AS s
            WHERE s.is_active AND s.job_type = ANY (%(job_types)s::text[])
        ) AS job_types
    """,
    ActiveSchedulesRow,
)


def store_definitions(
    work: Transaction, job_types: Iterable[str], decide: Decide
) -> tuple[set[str], list[str]]:
    """Bring definitions to what `decide` wants.

    Args:
        job_types: Every type that may be read or written.
        decide: Returns the wanted values by type, from those stored; asked again under the locks.

    Returns:
        The types that were inserted, and those that are disabled by this call, sorted.

    Raises:
        ValidationError: `job_definition.active_schedule_exists` if an active schedule uses a type
            disabled by this call; `job_definition.disable_unsupported_isolation`.
    """
    types = list(job_types)
    before = _by_type(work.fetch(Bound(READ_DEFINITIONS, {"job_types": types})))
    wanted = decide(before)
    if all(before.get(job_type) == values for job_type, values in wanted.items()):
        return set(), []
    missing = [values for job_type, values in wanted.items() if job_type not in before]
    inserted: set[str] = set()
    if missing:
        rows = work.fetch(Bound(INSERT_DEFINITIONS, _parameters(missing)))
        inserted = {row.job_type for row in rows}
    # With what another writer committed since the first look.
    others = [job_type for job_type in types if job_type not in inserted]
    before = _by_type(work.fetch(Bound(LOCK_DEFINITIONS, {"job_types": others})))
    wanted = decide(before)
    changed = [v for v in wanted.values() if v.job_type in before and before[v.job_type] != v]
    if changed:
        work.fetch(Bound(UPDATE_DEFINITIONS, _parameters(changed)))
    disabled = sorted(
        values.job_type
        for values in wanted.values()
        if not values.is_enabled
        and (values.job_type in inserted or _is_enabled(before.get(values.job_type)))
    )
    if disabled:
        _refuse_scheduled(work, disabled)
    return inserted, disabled


def values_of(spec: JobDefinitionSpec) -> DefinitionValues:
    """Return what a spec wants stored."""
    return DefinitionValues(
        spec.job_type,
        spec.version,
        max_attempts=spec.max_attempts,
        default_timeout_seconds=spec.default_timeout_seconds,
        default_priority=spec.default_priority,
        is_enabled=spec.is_enabled,
    )


def _by_type(rows: Sequence[DefinitionValues]) -> dict[str, DefinitionValues]:
    return {row.job_type: row for row in rows}


def _is_enabled(values: DefinitionValues | None) -> bool:
    return values is not None and values.is_enabled


def _refuse_scheduled(work: Transaction, disabled: Sequence[str]) -> None:
    (found,) = work.fetch(Bound(FIND_ACTIVE_SCHEDULES, {"job_types": list(disabled)}))
    if not found.is_read_committed:
        # An older snapshot would miss a schedule that was activated meanwhile.
        raise refusal(
            ErrorCategory.VALIDATION,
            "job_definition.disable_unsupported_isolation",
            "disabling a job type needs READ COMMITTED",
            field="db",
        )
    if found.job_types:
        raise ActiveScheduleExistsError(found.job_types)


def _parameters(values: Sequence[DefinitionValues]) -> dict[str, object]:
    return {
        "job_types": [value.job_type for value in values],
        "versions": [value.version for value in values],
        "max_attempts": [value.max_attempts for value in values],
        "timeouts": [value.default_timeout_seconds for value in values],
        "priorities": [value.default_priority for value in values],
        "enabled": [value.is_enabled for value in values],
    }
