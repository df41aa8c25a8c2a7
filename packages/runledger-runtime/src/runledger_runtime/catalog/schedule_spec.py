"""A schedule that a catalog owns."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from uuid import UUID

from runledger_core import JobScheduleUpsert, JsonInput, ValidationError

from ..errors import CatalogError


@dataclass(frozen=True, slots=True)
class CatalogJobScheduleSpec:
    """A schedule as the catalog wants it; each sync makes the stored one so.

    Attributes:
        name: Of at most 200 characters, without blanks around it; unique in the database.
        job_type: Type of the jobs that it makes; the catalog must have and enable it.
        cron_expr: When it fires, in UTC.
        payload_template: What the handler receives, with a `_schedule` that tells the fire.
        is_active: Whether it fires. A sync overwrites what was stored, an operator's pause too.
        organization_id: Owner of the jobs, from the first insert on; None for global jobs.
        max_jitter_seconds: Delay the jobs of a fire by chance, at most by this; 0 to 86,400.
        next_fire_at: First fire of a new schedule or a new `cron_expr`; None for the time of the
            sync. While the expression is the same a sync keeps what is stored.
        upsert: The same for the database.
    """

    name: str
    job_type: str
    _: KW_ONLY
    cron_expr: str
    payload_template: JsonInput = field(
        default_factory=dict[str, JsonInput], repr=False, hash=False
    )
    is_active: bool = True
    organization_id: UUID | None = None
    max_jitter_seconds: int = 0
    next_fire_at: datetime | None = None
    upsert: JobScheduleUpsert = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            CatalogError: `catalog.invalid_schedule_spec`; `field` names it.
        """
        try:
            upsert = JobScheduleUpsert(
                self.name,
                self.job_type,
                cron_expr=self.cron_expr,
                payload_template=self.payload_template,
                is_active=self.is_active,
                organization_id=self.organization_id,
                max_jitter_seconds=self.max_jitter_seconds,
                next_fire_at=self.next_fire_at,
            )
        except ValidationError as error:
            # A name that is refused itself may be anything.
            subject = "" if error.field == "name" else f"schedule {self.name}: "
            raise CatalogError(
                "catalog.invalid_schedule_spec",
                f"{subject}{error.client_message}",
                field=error.field,
            ) from error
        object.__setattr__(self, "upsert", upsert)
