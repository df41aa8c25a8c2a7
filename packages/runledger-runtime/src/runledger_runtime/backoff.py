"""Delays: of retries, of loops whose database fails, and of polls."""

from __future__ import annotations

import random as random_module
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeAlias

from runledger_core import ValidationError, check_int
from runledger_core.limits import INT32_MAX

Random: TypeAlias = Callable[[], float]
"""Return a number from 0 up to, but not including, 1."""

# A generator of our own: threads of ours must not move the state that an application seeded.
_CHANCE: Final[Random] = random_module.Random().random  # noqa: S311  # no secret hangs on it

_BASE_MS: Final = 10_000
_CAP_MS: Final = 300_000
_LAST_DOUBLING: Final = 10
# Beyond it any delay has reached the longest that can be stored.
_MOST_DOUBLINGS: Final = 31

_OUTAGE_FIRST_SECONDS: Final = 0.1
# Expired leases are freed within three seconds of an outage's end.
_OUTAGE_CAP_SECONDS: Final = 2.5
_OUTAGE_LOG_SECONDS: Final = 60.0


def _doubled(base_ms: int, cap_ms: int, attempt: int) -> int:
    return min(base_ms * 2 ** min(max(attempt, 1) - 1, _MOST_DOUBLINGS), cap_ms)


def _default_ms(attempt: int) -> int:
    return _doubled(_BASE_MS, _CAP_MS, attempt)


BACKOFF_MS: Final = tuple(
    _default_ms(attempt)
    for attempt in range(1, _LAST_DOUBLING + 1)
    if attempt == 1 or _default_ms(attempt) > _default_ms(attempt - 1)
)
"""Delay after each attempt before it is spread, in milliseconds; the last for all beyond."""


def retry_delay_ms(attempt: int, *, random: Random = _CHANCE) -> int:
    """Return the milliseconds until a failed attempt is tried again, where no policy tells.

    Args:
        attempt: Number of the attempt that failed, from 1.
        random: Spreads the delay by a tenth each way.
    """
    return round(spread(_default_ms(attempt), random=random))


def spread(value: float, *, random: Random = _CHANCE) -> float:
    """Return the value, moved by up to a tenth each way, so that many do not act at once."""
    return value * (0.9 + 0.2 * random())


class BackoffPolicy(ABC):
    """Choose how long a failed attempt waits for the next; subclass it for a rule of your own.

    The worker asks between two rounds, so answer at once: no I/O, no locks. If it raises, or its
    answer is no integer from 1 to 2,147,483,647, that is logged and `DEFAULT_BACKOFF` is asked.
    """

    @abstractmethod
    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait.

        Args:
            attempt: Number of the attempt that failed, from 1.
        """


@dataclass(frozen=True, slots=True)
class ExponentialBackoff(BackoffPolicy):
    """Wait twice as long after each attempt, a tenth more or less by chance.

    Attributes:
        base_ms: Delay after the first attempt, in milliseconds, 1 or more.
        cap_ms: Longest delay before it is spread, in milliseconds, `base_ms` or more.
    """

    base_ms: int = _BASE_MS
    cap_ms: int = _CAP_MS
    _: KW_ONLY
    random: Random = field(default=_CHANCE, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check both delays.

        Raises:
            ValidationError: `backoff.invalid_delay` or `backoff.invalid_cap`.
        """
        _check_range(self.base_ms, self.cap_ms)

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait; see `BackoffPolicy.delay_ms`."""
        delay = spread(_doubled(self.base_ms, self.cap_ms, attempt), random=self.random)
        return min(max(1, round(delay)), INT32_MAX)


@dataclass(frozen=True, slots=True)
class FullJitterBackoff(BackoffPolicy):
    """Wait any time, by chance, up to a bound that doubles with each attempt.

    Many jobs that failed together come back evenly spread, the first of them at once.

    Attributes:
        base_ms: Bound after the first attempt, in milliseconds, 1 or more.
        cap_ms: Highest bound, in milliseconds, `base_ms` or more.
    """

    base_ms: int = _BASE_MS
    cap_ms: int = _CAP_MS
    _: KW_ONLY
    random: Random = field(default=_CHANCE, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check both bounds.

        Raises:
            ValidationError: `backoff.invalid_delay` or `backoff.invalid_cap`.
        """
        _check_range(self.base_ms, self.cap_ms)

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait; see `BackoffPolicy.delay_ms`."""
        return max(1, round(_doubled(self.base_ms, self.cap_ms, attempt) * self.random()))


@dataclass(frozen=True, slots=True)
class FixedBackoff(BackoffPolicy):
    """Wait the same time after every attempt, exactly.

    Attributes:
        fixed_ms: The delay in milliseconds, 1 or more.
    """

    fixed_ms: int

    def __post_init__(self) -> None:
        """Check the delay.

        Raises:
            ValidationError: `backoff.invalid_delay`.
        """
        _check_delay(self.fixed_ms, field="fixed_ms")

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait; see `BackoffPolicy.delay_ms`."""
        del attempt
        return self.fixed_ms


@dataclass(frozen=True, slots=True)
class ListBackoff(BackoffPolicy):
    """Wait the first delay after the first attempt, and so on, exactly; the last for all beyond.

    Attributes:
        delays_ms: Delays in milliseconds, each 1 or more; at least one.
    """

    delays_ms: Sequence[int]

    def __post_init__(self) -> None:
        """Check the delays and keep a copy.

        Raises:
            ValidationError: `backoff.invalid_delay` with the index of the one that is refused.
        """
        if isinstance(self.delays_ms, str) or not isinstance(self.delays_ms, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # not all callers are checked
            raise ValidationError(
                "backoff.invalid_delay", "must be a sequence of delays", field="delays_ms"
            )
        delays = tuple(self.delays_ms)
        if not delays:
            raise ValidationError("backoff.invalid_delay", "must not be empty", field="delays_ms")
        for index, delay in enumerate(delays):
            _check_delay(delay, field=f"delays_ms[{index}]")
        object.__setattr__(self, "delays_ms", delays)

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait; see `BackoffPolicy.delay_ms`."""
        return self.delays_ms[min(max(attempt, 1), len(self.delays_ms)) - 1]


def _check_delay(delay_ms: object, *, field: str) -> None:
    try:
        check_int(delay_ms, field=field, minimum=1, maximum=INT32_MAX)
    except ValidationError as refused:
        raise ValidationError(
            "backoff.invalid_delay", refused.client_message, field=field
        ) from refused


def _check_range(base_ms: int, cap_ms: int) -> None:
    _check_delay(base_ms, field="base_ms")
    _check_delay(cap_ms, field="cap_ms")
    if cap_ms < base_ms:
        raise ValidationError(
            "backoff.invalid_cap", "the cap must not be below the base", field="cap_ms"
        )


DEFAULT_BACKOFF: Final[BackoffPolicy] = ExponentialBackoff()
"""Of a job type without a policy: 10, 20, 40, 80, 160, then 300 seconds, spread by a tenth."""


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
