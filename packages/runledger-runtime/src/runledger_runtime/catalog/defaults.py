"""Defaults and overrides of the job definitions that a catalog writes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import TypedDict, TypeVar

from runledger_core import JobDefinitionSpec, JobType, ValidationError, check_bool, check_int
from runledger_core.limits import INT32_MAX, INT32_MIN

from ..errors import CatalogError

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class JobCatalogDefaults:
    """What the jobs of a catalog have unless they override it.

    Attributes:
        max_attempts: Attempts of a job before it is dead-lettered, 1 or more.
        timeout_seconds: Time for one attempt, in seconds, 1 or more.
        priority: Larger runs first; may be negative.
        version: For people, 1 or more.
        enabled: Whether jobs can be enqueued.
    """

    _: KW_ONLY
    max_attempts: int = 3
    timeout_seconds: int = 300
    priority: int = 0
    version: int = 1
    enabled: bool = True

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            CatalogError: `catalog.invalid_definition_value`; `field` names it.
        """
        for field in fields(self):
            try:
                check_value(field.name, getattr(self, field.name))
            except ValidationError as error:
                raise CatalogError(
                    "catalog.invalid_definition_value", error.client_message, field=field.name
                ) from error

    def definition(
        self, job_type: JobType, overrides: JobCatalogDefinitionOverrides
    ) -> JobDefinitionSpec:
        """Return the definition of a job: its own values, and these where it has none."""

        def chosen(own: ValueT | None, default: ValueT) -> ValueT:
            return default if own is None else own

        return JobDefinitionSpec(
            job_type,
            version=chosen(overrides.version, self.version),
            max_attempts=chosen(overrides.max_attempts, self.max_attempts),
            default_timeout_seconds=chosen(overrides.timeout_seconds, self.timeout_seconds),
            default_priority=chosen(overrides.priority, self.priority),
            is_enabled=chosen(overrides.enabled, self.enabled),
        )


class JobDefinitionValues(TypedDict, total=False):
    """What `JobCatalog.job` takes besides type and handler; None leaves the default."""

    max_attempts: int | None
    timeout_seconds: int | None
    priority: int | None
    version: int | None
    enabled: bool | None


@dataclass(frozen=True, slots=True)
class JobCatalogDefinitionOverrides:
    """What one job has instead of the defaults; None leaves the default.

    Checked when a catalog takes it.

    Attributes:
        max_attempts: Attempts of a job before it is dead-lettered, 1 or more.
        timeout_seconds: Time for one attempt, in seconds, 1 or more.
        priority: Larger runs first; may be negative.
        version: For people, 1 or more.
        enabled: Whether jobs can be enqueued.
    """

    _: KW_ONLY
    max_attempts: int | None = None
    timeout_seconds: int | None = None
    priority: int | None = None
    version: int | None = None
    enabled: bool | None = None

    def check_for(self, job_type: str) -> None:
        """Refuse values that no definition can have.

        Raises:
            CatalogError: `catalog.invalid_job_definition_value`; `field` names it.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            try:
                check_value(field.name, value)
            except ValidationError as error:
                raise CatalogError(
                    "catalog.invalid_job_definition_value",
                    f"{job_type}: {error.client_message}",
                    field=field.name,
                ) from error


def check_value(name: str, value: object) -> None:
    """Refuse a value that a definition cannot have.

    Raises:
        ValidationError: An `input.*` code that names the field.
    """
    match name:
        case "enabled":
            check_bool(value, field=name)
        case "priority":
            check_int(value, field=name, minimum=INT32_MIN, maximum=INT32_MAX)
        case _:
            check_int(value, field=name, minimum=1, maximum=INT32_MAX)
