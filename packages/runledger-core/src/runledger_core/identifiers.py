"""Validated names: strings that are known to be storable.

Each is equal to the plain string of the same characters, hashes like it and is stored like it.
"""

from typing import ClassVar, Self

from runledger_core.limits import current_limits
from runledger_core.text import check_text


class _Identifier(str):
    """A name that is not blank, not too long and storable."""

    __slots__ = ()

    _field: ClassVar[str]

    def __new__(cls, value: str) -> Self:
        """Check the text and return it as an identifier.

        Raises:
            ValidationError: `input.wrong_type`, `input.blank`, `input.too_long` (over
                `Limits.identifier_characters`) or `input.invalid_characters`.
        """
        if type(value) is cls:
            return value
        limit = current_limits().identifier_characters
        return super().__new__(cls, check_text(value, field=cls._field, max_characters=limit))


class JobType(_Identifier):
    """Name a kind of job, such as `jobs.email.send`."""

    __slots__ = ()
    _field = "job_type"


class WorkflowType(_Identifier):
    """Name a kind of workflow."""

    __slots__ = ()
    _field = "workflow_type"


class StepKey(_Identifier):
    """Name a step within its workflow run."""

    __slots__ = ()
    _field = "step_key"


class ScheduleName(_Identifier):
    """Name a cron schedule."""

    __slots__ = ()
    _field = "schedule_name"


class WorkerId(_Identifier):
    """Name one live worker; no two alive share it."""

    __slots__ = ()
    _field = "worker_id"
