"""What one application owns, for exact syncs."""

from __future__ import annotations

from collections.abc import Iterable

from runledger_core import JobType, ScheduleName, ValidationError

from ..errors import CatalogError


class JobCatalogSyncScope:
    """The job types that one application owns, for an exact sync."""

    __slots__ = ("job_types",)

    job_types: frozenset[str]
    """The owned types."""

    def __init__(self, job_types: Iterable[str]) -> None:
        """Take the owned types.

        Raises:
            CatalogError: `catalog.invalid_exact_sync_scope` if there are none, or it is no list,
                `catalog.invalid_exact_sync_scope_job_type` if one is blank or not storable.
        """
        if not (names := _listed(job_types)):
            raise CatalogError(
                "catalog.invalid_exact_sync_scope", "name one job type or more", field="job_types"
            )
        try:
            self.job_types = frozenset(str(JobType(name)) for name in names)
        except ValidationError as error:
            raise CatalogError(
                "catalog.invalid_exact_sync_scope_job_type",
                error.client_message,
                field="job_types",
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.job_types)!r})"


class JobCatalogScheduleSyncScope:
    """The schedule names that one deployment owns, for an exact sync."""

    __slots__ = ("names",)

    names: frozenset[str]
    """The owned names."""

    def __init__(self, names: Iterable[str]) -> None:
        """Take the owned names.

        Raises:
            CatalogError: `catalog.invalid_exact_schedule_sync_scope` if there are none, or it is
                no list, `catalog.invalid_exact_schedule_sync_scope_name` if no schedule can have
                one of them, `catalog.duplicate_exact_schedule_sync_scope_name` if one is given
                twice.
        """
        if not (given := _listed(names)):
            raise CatalogError(
                "catalog.invalid_exact_schedule_sync_scope",
                "name one schedule or more",
                field="names",
            )
        found: set[str] = set()
        for name in given:
            known = _checked_schedule_name(name)
            if known in found:
                raise CatalogError(
                    "catalog.duplicate_exact_schedule_sync_scope_name",
                    f"the schedule {known} is named twice",
                    field="names",
                )
            found.add(known)
        self.names = frozenset(found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.names)!r})"


def _listed(names: Iterable[str]) -> list[str]:
    # A single text would be taken for its letters.
    if isinstance(names, str) or not isinstance(names, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]  # not all callers are checked
        return []
    return list(names)


def _checked_schedule_name(name: str) -> str:
    code = "catalog.invalid_exact_schedule_sync_scope_name"
    try:
        known = ScheduleName(name)
    except ValidationError as error:
        raise CatalogError(code, error.client_message, field="names") from error
    # No schedule has such a name, so the one that is meant would never be found.
    if known != known.strip():
        message = "a schedule's name neither begins nor ends with white space"
        raise CatalogError(code, message, field="names")
    return str(known)
