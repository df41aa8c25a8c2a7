"""What a job type is, apart from its code."""

from dataclasses import KW_ONLY, dataclass

from runledger_core.identifiers import JobType
from runledger_core.limits import INT32_MAX, INT32_MIN
from runledger_core.text import check_bool, check_int


@dataclass(frozen=True, slots=True)
class JobDefinitionSpec:
    """Describe a job type and the defaults of its jobs.

    Attributes:
        job_type: Name of the type; kept as a `JobType`.
        version: For people; neither copied into jobs nor compared, 1 or more.
        max_attempts: Attempts of a job before it is dead-lettered, 1 or more.
        default_timeout_seconds: Time for one attempt, in seconds, 1 or more.
        default_priority: Larger runs first; may be negative.
        is_enabled: Whether jobs of this type can be enqueued.
    """

    job_type: str
    _: KW_ONLY
    version: int = 1
    max_attempts: int = 3
    default_timeout_seconds: int = 300
    default_priority: int = 0
    is_enabled: bool = True

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        store = object.__setattr__
        store(self, "job_type", JobType(self.job_type))
        for name in ("version", "max_attempts", "default_timeout_seconds"):
            number = check_int(getattr(self, name), field=name, minimum=1, maximum=INT32_MAX)
            store(self, name, number)
        priority = check_int(
            self.default_priority, field="default_priority", minimum=INT32_MIN, maximum=INT32_MAX
        )
        store(self, "default_priority", priority)
        check_bool(self.is_enabled, field="is_enabled")
