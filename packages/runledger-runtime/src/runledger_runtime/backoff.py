"""Delays: of retries, of loops whose database fails, and of polls."""

from __future__ import annotations

import random as random_module
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, TypeAlias

Random: TypeAlias = Callable[[], float]
"""Return a number from 0 up to, but not including, 1."""

# A generator of our own: threads of ours must not move the state that an application seeded.
_CHANCE: Final[Random] = random_module.Random().random  # noqa: S311  # no secret hangs on it

_BASE_MS: Final = 5_000
_CAP_MS: Final = 300_000
_FLOOR_MS: Final = 1_000
_LAST_DOUBLING: Final = 10

_OUTAGE_FIRST_SECONDS: Final = 0.1
# Expired leases are freed within three seconds of an outage's end.
_OUTAGE_CAP_SECONDS: Final = 2.5
_OUTAGE_LOG_SECONDS: Final = 60.0


def _base_ms(attempt: int) -> int:
    return min(_BASE_MS * 2 ** min(max(attempt, 1), _LAST_DOUBLING), _CAP_MS)


BACKOFF_MS: Final = tuple(
    _base_ms(attempt)
    for attempt in range(1, _LAST_DOUBLING + 1)
    if attempt == 1 or _base_ms(attempt) > _base_ms(attempt - 1)
)
"""Delay after each attempt before it is spread, in milliseconds; the last for all beyond."""


def retry_delay_ms(attempt: int, *, random: Random = _CHANCE) -> int:
    """Return the milliseconds until a failed attempt is tried again.

    Args:
        attempt: Number of the attempt that failed, from 1.
        random: Spreads the delay by a tenth each way.
    """
    return max(_FLOOR_MS, round(spread(_base_ms(attempt), random=random)))


def spread(value: float, *, random: Random = _CHANCE) -> float:
    """Return the value, moved by up to a tenth each way, so that many do not act at once."""
    return value * (0.9 + 0.2 * random())


@dataclass(frozen=True, slots=True)
class OutageStep:
    """What to do after a failure of the database."""

    delay_seconds: float
    is_worth_logging: bool
    _: KW_ONLY
    failures: int


class Outage:
    """Count failures in a row: growing pauses with rare log lines, for ever. Not thread-safe."""

    def __init__(
        self,
        *,
        random: Random = _CHANCE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._random = random
        self._monotonic = monotonic
        self._failures = 0
        self._logged_at = 0.0

    @property
    def is_going_on(self) -> bool:
        """Whether the last use failed."""
        return self._failures > 0

    def failed(self) -> OutageStep:
        """Count a failure and tell how long to pause, from 0.1 to 2.5 seconds.

        The first is worth a log line, later ones once a minute.
        """
        self._failures += 1
        # The exponent is bounded, as an outage may last for months.
        doublings = min(self._failures - 1, _LAST_DOUBLING)
        longest = min(_OUTAGE_FIRST_SECONDS * 2**doublings, _OUTAGE_CAP_SECONDS)
        delay = max(_OUTAGE_FIRST_SECONDS, longest * (0.5 + 0.5 * self._random()))
        now = self._monotonic()
        is_worth_logging = self._failures == 1 or now - self._logged_at >= _OUTAGE_LOG_SECONDS
        if is_worth_logging:
            self._logged_at = now
        return OutageStep(delay, is_worth_logging, failures=self._failures)

    def ended(self) -> int:
        """Count a success and return how many failures went before it."""
        failures, self._failures = self._failures, 0
        return failures
