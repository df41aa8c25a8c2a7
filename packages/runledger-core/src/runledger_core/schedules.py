"""The request for a cron schedule."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from runledger_core import codes
from runledger_core.cron import CronExpression
from runledger_core.errors import ValidationError
from runledger_core.identifiers import JobType, ScheduleName
from runledger_core.jsonvalue import JsonInput, encode_json
from runledger_core.limits import current_limits
from runledger_core.text import check_bool, check_instant, check_int, check_uuid

MAX_JITTER_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class JobScheduleUpsert:
    """Ask for a schedule: at each fire of the cron expression it makes one job.

    Attributes:
        name: What the schedule is known by, without outer blanks; kept as a `ScheduleName`.
        job_type: Type of the jobs; kept as a `JobType`.
        cron_expr: When it fires, in UTC; kept as a `CronExpression`.
        payload_template: Payload of the jobs. An object gets one more key, `_schedule`, which tells
            `schedule_id`, `schedule_name` and `scheduled_for`; anything else becomes `payload`
            beside that key. It is encoded at once: changing it later does not change the request.
        is_active: Whether it fires. An active schedule needs an enabled job definition.
        organization_id: Owner of the jobs; None for global jobs.
        max_jitter_seconds: Most seconds by which a job may run later than its fire, 0 to 86,400.
        next_fire_at: The first fire, kept in UTC; None for the database's clock when it is stored.
        payload_template_json: The template as it will be stored.
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
    payload_template_json: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field and encode the template.

        Raises:
            ValidationError: `job_schedule.invalid_name`, `job_schedule.invalid_cron`,
                `job_schedule.invalid_jitter`, or an `input.*` code that names the field or the JSON
                path.
        """
        store = object.__setattr__
        store(self, "name", _checked_name(self.name))
        store(self, "job_type", JobType(self.job_type))
        store(self, "cron_expr", CronExpression(self.cron_expr))
        template = encode_json(
            self.payload_template,
            field="payload_template",
            max_bytes=current_limits().payload_bytes,
        )
        store(self, "payload_template_json", template)
        check_bool(self.is_active, field="is_active")
        if self.organization_id is not None:
            owner = check_uuid(self.organization_id, field="organization_id")
            store(self, "organization_id", owner)
        store(self, "max_jitter_seconds", _checked_jitter(self.max_jitter_seconds))
        if self.next_fire_at is not None:
            store(self, "next_fire_at", check_instant(self.next_fire_at, field="next_fire_at"))


def _checked_name(value: str) -> ScheduleName:
    try:
        name = ScheduleName(value)
    except ValidationError as error:
        message = error.client_message.removeprefix("schedule_")
        raise _refusal(
            error, codes.JOB_SCHEDULE_INVALID_NAME, message=message, field="name"
        ) from None
    if name != name.strip():
        raise ValidationError(
            codes.JOB_SCHEDULE_INVALID_NAME,
            "name must not begin or end with white space",
            field="name",
        )
    return name


def _checked_jitter(value: int) -> int:
    name = "max_jitter_seconds"
    try:
        return check_int(value, field=name, minimum=0, maximum=MAX_JITTER_SECONDS)
    except ValidationError as error:
        message = error.client_message
        raise _refusal(
            error, codes.JOB_SCHEDULE_INVALID_JITTER, message=message, field=name
        ) from None


def _refusal(error: ValidationError, code: str, *, message: str, field: str) -> ValidationError:
    # A wrong type is a fault of the program, not of a value.
    is_wrong_type = error.code == codes.INPUT_WRONG_TYPE
    return ValidationError(error.code if is_wrong_type else code, message, field=field)
