"""How long to wait for the result of a run."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final

from runledger_core import ValidationError, codes

DEFAULT_WORKFLOW_RUN_WAIT_TIMEOUT: Final = 300.0

_SHORTEST_POLL_SECONDS: Final = 0.001
# A good 30 years; what waits at most so long waits for ever.
_LONGEST_SECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class WorkflowRunWaitOptions:
    """How long to wait for a result, and how often to look whatever is notified.

    Values beyond 1,000,000,000 seconds count as that many.

    Attributes:
        timeout: Longest wait, in seconds; 0 looks once, None waits for ever.
        poll_interval: Longest time between two looks, in seconds; at least 0.001 is used.
    """

    _: KW_ONLY
    timeout: float | None = DEFAULT_WORKFLOW_RUN_WAIT_TIMEOUT
    poll_interval: float = 1.0

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            ValidationError: `input.wrong_type` (a bool too), or `input.out_of_range` if it is
                negative or not a number.
        """
        if self.timeout is not None:
            object.__setattr__(self, "timeout", _seconds(self.timeout, field="timeout"))
        poll_interval = _seconds(self.poll_interval, field="poll_interval")
        object.__setattr__(self, "poll_interval", max(poll_interval, _SHORTEST_POLL_SECONDS))


def _seconds(value: object, *, field: str) -> float:
    # Only these two: what else compares with numbers may be NaN, or no time at all.
    if not isinstance(value, int | float) or isinstance(value, bool):
        message = f"{field} must be a number of seconds"
        raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field)
    # NaN is less than nothing, and not more either.
    if not value >= 0:
        message = f"{field} must be 0 seconds or more"
        raise ValidationError(codes.INPUT_OUT_OF_RANGE, message, field=field)
    return float(min(value, _LONGEST_SECONDS))
