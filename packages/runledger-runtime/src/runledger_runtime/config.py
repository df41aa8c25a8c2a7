"""Settings of the loops, and how the environment gives them."""

from __future__ import annotations

import os
import re
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from runledger_core import ValidationError, WorkerId
from runledger_core.limits import INT32_MAX

from .errors import JobsConfigError

_CLAIM_BATCH_MOST: Final = 1_000
_WORKER_ID_CHARACTERS: Final = 200
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
# Longer texts are out of every range, and `int` refuses very long ones.
_INTEGER_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """Settings of the worker, the reaper and the scheduler.

    A config made directly is checked by `validate`, which `Supervisor.build` calls; `from_env`
    returns a valid one.

    Attributes:
        worker_id: Name of this process in rows, at most 200 characters; a Supervisor appends
            eight hexadecimal digits of its own, so that no two alive share it.
        poll_interval_ms: Longest sleep of an idle worker, in milliseconds, 1 or more.
        claim_batch_size: Most rows taken by one statement of a loop, 1 to 1,000.
        lease_ttl_seconds: Length of a lease, in seconds, 1 or more.
        max_global_concurrency: Handlers that run at once in this process, 1 or more.
        reaper_interval_seconds: Pause between two passes of the reaper, in seconds, 1 or more.
        schedule_poll_interval_seconds: Longest sleep of the scheduler, in seconds, 1 or more.
        reaper_retry_delay_ms: Least delay after an expired lease, in milliseconds, 1 or more.
        wakeups: Whether idle workers are woken by notifications; polling goes on in any case.
        direct_database_url: Where notifications are listened for if the pool's connections go
            through a pooler; None for the pool's own.
        handler_grace_seconds: Time that a handler has to return after it was told to stop, in
            seconds, 0 or more.
        max_stuck_handlers: Handlers, and calls of theirs in threads, that may overstay it before
            the worker gives up, 0 or more.
    """

    worker_id: str = field(default_factory=lambda: f"worker-{_uuid7()}")
    _: KW_ONLY
    poll_interval_ms: int = 500
    claim_batch_size: int = 100
    lease_ttl_seconds: int = 60
    max_global_concurrency: int = 32
    reaper_interval_seconds: int = 15
    schedule_poll_interval_seconds: int = 30
    reaper_retry_delay_ms: int = 30_000
    wakeups: bool = True
    direct_database_url: str | None = field(default=None, repr=False)
    handler_grace_seconds: int = 5
    max_stuck_handlers: int = 8

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> JobsConfig:
        """Read the `JOBS_*` variables; one that is missing or blank has its default.

        Numbers out of range are moved to the nearest bound.

        Args:
            environ: Where to read them; the process's environment if None.

        Raises:
            JobsConfigError: `config.unparsable_variable` or `config.invalid_value`, for the
                first variable whose text cannot be used; `field` names it.
        """
        variables, default = _Variables(os.environ if environ is None else environ), cls()
        return cls(
            variables.worker_id("JOBS_WORKER_ID", default.worker_id),
            poll_interval_ms=variables.integer("JOBS_POLL_INTERVAL_MS", default.poll_interval_ms),
            claim_batch_size=variables.integer(
                "JOBS_CLAIM_BATCH_SIZE", default.claim_batch_size, maximum=_CLAIM_BATCH_MOST
            ),
            lease_ttl_seconds=variables.integer(
                "JOBS_LEASE_TTL_SECONDS", default.lease_ttl_seconds, minimum=10
            ),
            max_global_concurrency=variables.integer(
                "JOBS_MAX_GLOBAL_CONCURRENCY", default.max_global_concurrency
            ),
            reaper_interval_seconds=variables.integer(
                "JOBS_REAPER_INTERVAL_SECONDS", default.reaper_interval_seconds
            ),
            schedule_poll_interval_seconds=variables.integer(
                "JOBS_SCHEDULE_POLL_INTERVAL_SECONDS", default.schedule_poll_interval_seconds
            ),
            reaper_retry_delay_ms=variables.integer(
                "JOBS_REAPER_RETRY_DELAY_MS", default.reaper_retry_delay_ms, minimum=1_000
            ),
            wakeups=variables.switch("JOBS_WAKEUPS", default.wakeups),
            direct_database_url=variables.text("JOBS_DIRECT_DATABASE_URL"),
        )

    def validate(self) -> None:
        """Check every setting.

        Raises:
            JobsConfigError: A `config.*` code for the first that cannot be used; `field` names it.
        """
        self.validate_worker()
        self.validate_reaper()
        self.validate_scheduler()

    def validate_worker(self) -> None:
        """Check what the worker uses.

        Raises:
            JobsConfigError: A `config.*` code for the first that cannot be used.
        """
        _check_worker_id(self.worker_id, field="worker_id")
        self._check("poll_interval_ms", "config.zero_poll_interval")
        self._check_claim_batch_size()
        self._check("lease_ttl_seconds", "config.invalid_lease_ttl_seconds")
        self._check("max_global_concurrency", "config.invalid_max_global_concurrency")
        self._check("handler_grace_seconds", "config.invalid_handler_grace_seconds", minimum=0)
        self._check("max_stuck_handlers", "config.invalid_max_stuck_handlers", minimum=0)
        if type(self.wakeups) is not bool:
            raise _invalid_value("wakeups", "must be True or False")
        url = self.direct_database_url
        if url is not None and (type(url) is not str or not url.strip()):
            raise _invalid_value("direct_database_url", "must be a connection string or None")

    def validate_reaper(self) -> None:
        """Check what the reaper uses.

        Raises:
            JobsConfigError: A `config.*` code for the first that cannot be used.
        """
        self._check_claim_batch_size()
        self._check("reaper_interval_seconds", "config.zero_reaper_interval")
        self._check("reaper_retry_delay_ms", "config.invalid_reaper_retry_delay_ms")

    def validate_scheduler(self) -> None:
        """Check what the scheduler uses.

        Raises:
            JobsConfigError: A `config.*` code for the first that cannot be used.
        """
        self._check_claim_batch_size()
        self._check("schedule_poll_interval_seconds", "config.zero_schedule_poll_interval")

    def _check_claim_batch_size(self) -> None:
        code = "config.invalid_claim_batch_size"
        self._check("claim_batch_size", code)
        if self.claim_batch_size > _CLAIM_BATCH_MOST:
            message = f"claim_batch_size must be 1 to {_CLAIM_BATCH_MOST:,}"
            raise JobsConfigError(code, message, field="claim_batch_size")

    def _check(self, name: str, code: str, *, minimum: int = 1) -> None:
        value: object = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _invalid_value(name, "must be an integer")
        if value < minimum:
            raise JobsConfigError(code, f"{name} must be {minimum} or more", field=name)
        if value > INT32_MAX:
            raise _invalid_value(name, f"must be {INT32_MAX} at most")


def instance_worker_id(config: JobsConfig) -> str:
    """Return the worker id of one live Supervisor: the configured one and eight digits.

    Each call returns another. An id that would become longer than 200 characters is cut.
    """
    suffix = f":{secrets.token_hex(4)}"
    return config.worker_id[: _WORKER_ID_CHARACTERS - len(suffix)] + suffix


def _uuid7() -> uuid.UUID:
    # Milliseconds, version, 12 random bits, variant, 62 random bits.
    milliseconds = time.time_ns() // 1_000_000 & (2**48 - 1)
    bits = milliseconds << 80 | secrets.randbits(80)
    return uuid.UUID(int=bits & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62)


def _invalid_value(name: str, predicate: str) -> JobsConfigError:
    return JobsConfigError("config.invalid_value", f"{name} {predicate}", field=name)


def _check_worker_id(worker_id: object, *, field: str) -> None:
    if isinstance(worker_id, str) and not worker_id.strip():
        raise JobsConfigError("config.empty_worker_id", f"{field} must not be blank", field=field)
    try:
        if len(WorkerId(worker_id)) > _WORKER_ID_CHARACTERS:  # pyright: ignore[reportArgumentType]  # it checks the type
            raise _invalid_value(field, f"is longer than {_WORKER_ID_CHARACTERS} characters")
    except JobsConfigError:
        raise
    except ValidationError as error:
        message = error.client_message.removeprefix("worker_id ")
        raise _invalid_value(field, message) from error


@dataclass(frozen=True, slots=True)
class _Variables:
    _environ: Mapping[str, str]

    def text(self, name: str) -> str | None:
        return self._environ.get(name, "").strip() or None

    def worker_id(self, name: str, default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        _check_worker_id(text, field=name)
        return text

    def integer(
        self, name: str, default: int, *, minimum: int = 1, maximum: int = INT32_MAX
    ) -> int:
        text = self.text(name)
        if text is None:
            return default
        if _INTEGER.fullmatch(text) is None:
            raise _unparsable(name, "an integer")
        if len(text) > _INTEGER_CHARACTERS:
            return minimum if text.startswith("-") else maximum
        return min(max(int(text), minimum), maximum)

    def switch(self, name: str, default: bool) -> bool:  # noqa: FBT001  # as its neighbours
        match self.text(name):
            case None:
                return default
            case text if text.lower() in {"on", "off"}:
                return text.lower() == "on"
            case _:
                raise _unparsable(name, "on or off")


def _unparsable(name: str, wanted: str) -> JobsConfigError:
    # The text itself stays out of the message: it may be a secret in the wrong place.
    return JobsConfigError("config.unparsable_variable", f"{name} must be {wanted}", field=name)
