"""Handlers by job type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, cast

from runledger_core import (
    HandlerResult,
    JobContext,
    JobDeadLetterInfo,
    JsonValue,
    ValidationError,
    check_int,
    check_text,
    current_limits,
)
from runledger_core.limits import INT32_MAX

from .backoff import DEFAULT_BACKOFF, BackoffPolicy
from .binding import (
    DeadLetterFunction,
    HandlerFunction,
    HandlerObject,
    Refusals,
    RegisteredHandler,
    bind_handler,
    bind_object,
    check_middleware,
    check_sees,
    checked_job_type,
    is_async_function,
    refuse,
)
from .errors import RegistryError
from .event_loop import EventLoop
from .middleware import ExecuteAsync, JobMiddleware, wrapped, wrapped_async
from .payloads import decoding, decoding_async

DEAD_LETTER_SECONDS: Final = 10.0
"""How long a dead-letter hook is waited for."""


class AsyncHandler:
    """An `async def` handler and the event loop that it runs on."""

    __slots__ = ("_execute", "event_loop")

    def __init__(self, execute: ExecuteAsync, event_loop: EventLoop) -> None:
        """Take both."""
        self._execute = execute
        self.event_loop: EventLoop = event_loop

    def __call__(self, context: JobContext, payload: JsonValue) -> Awaitable[HandlerResult]:
        """Return the coroutine of one attempt."""
        return self._execute(context, payload)


class JobRegistry:
    """Hold the handlers of a worker; a `JobCatalog` makes one for most applications.

    Once a worker uses it, it no longer changes.

    Attributes:
        event_loop: Where its `async def` handlers and hooks run.
    """

    def __init__(self) -> None:
        self._added: list[RegisteredHandler] = []
        self._middlewares: list[JobMiddleware] = []
        # As a worker runs them: with middleware around.
        self._handlers: dict[str, RegisteredHandler] = {}
        self._retry_delays_ms: dict[tuple[str, str], int] = {}
        self._backoffs: dict[str, BackoffPolicy] = {}
        self._is_frozen = False
        self.event_loop: EventLoop = EventLoop()

    def add(self, handler: RegisteredHandler) -> None:
        """Take a handler that a catalog has checked.

        Raises:
            RegistryError: `registry.duplicate_job_type`, `registry.invalid_middleware` or
                `registry.frozen`.
        """
        self._check_not_frozen()
        if handler.job_type in self._handlers:
            refuse(
                RegistryError,
                "duplicate_job_type",
                f"{handler.job_type} has a handler already",
                field="job_type",
            )
        for middleware in self._middlewares:
            check_sees(middleware, handler, error=RegistryError)
        self._added.append(handler)
        self._handlers[handler.job_type] = self._composed(handler)

    def add_middleware(self, middleware: JobMiddleware) -> None:
        """Put a middleware around all handlers, those added later too; the first is outermost.

        Raises:
            RegistryError: `registry.invalid_middleware` if it is none, or overrides `execute` for
                one kind of handlers while there are others; `registry.frozen`.
        """
        self._check_not_frozen()
        check_middleware(middleware, error=RegistryError)
        for handler in self._added:
            check_sees(middleware, handler, error=RegistryError)
        self._middlewares.append(middleware)
        for handler in self._added:
            self._handlers[handler.job_type] = self._composed(handler)

    def register(self, handler: HandlerObject) -> None:
        """Take an object with `job_type`, `execute` and, if it wishes, `on_dead_letter`.

        Raises:
            RegistryError: `registry.duplicate_job_type`, `registry.invalid_handler`,
                `registry.invalid_handler_job_type`, `registry.unusable_payload_annotation`,
                `registry.invalid_middleware` or `registry.frozen`.
        """
        self.add(bind_object(handler, error=RegistryError))

    def register_function(self, job_type: str, function: HandlerFunction) -> None:
        """Take a function of a context and a payload.

        Raises:
            RegistryError: `registry.duplicate_job_type`, `registry.invalid_job_type`,
                `registry.invalid_handler`, `registry.unusable_payload_annotation`,
                `registry.invalid_middleware` or `registry.frozen`.
        """
        self.add(bind_handler(job_type, function, error=RegistryError))

    def register_retry_delay_override(
        self, job_type: str, failure_code: str, delay_ms: int
    ) -> None:
        """Fix the delay before retries of one job type after one failure code.

        Args:
            delay_ms: Milliseconds, 1 or more; an earlier override of the same pair is replaced.

        Raises:
            RegistryError: `registry.invalid_job_type`, `registry.invalid_failure_code`,
                `registry.invalid_retry_delay` or `registry.frozen`.
        """
        self._check_not_frozen()
        job_type = checked_job_type(job_type, error=RegistryError)
        check_retry_delay(failure_code, delay_ms, error=RegistryError)
        self._retry_delays_ms[job_type, failure_code] = delay_ms

    def register_backoff(self, job_type: str, policy: BackoffPolicy) -> None:
        """Choose how long failed attempts of one job type wait for the next.

        A delay of `register_retry_delay_override` goes before. What expired leases wait for is the
        reaper's rule, whatever the policy.

        Args:
            policy: An earlier one of the same type is replaced.

        Raises:
            RegistryError: `registry.invalid_job_type`, `registry.invalid_backoff` or
                `registry.frozen`.
        """
        self._check_not_frozen()
        job_type = checked_job_type(job_type, error=RegistryError)
        check_backoff(policy, error=RegistryError)
        self._backoffs[job_type] = policy

    def get(self, job_type: str) -> RegisteredHandler | None:
        """Return the handler of a type, None if there is none."""
        return self._handlers.get(job_type)

    def registered_types(self) -> list[str]:
        """Return the job types that have a handler, sorted."""
        return sorted(self._handlers)

    def retry_delay_override(self, job_type: str, failure_code: str) -> int | None:
        """Return the fixed delay of exactly this type and code in milliseconds, or None."""
        return self._retry_delays_ms.get((job_type, failure_code))

    def backoff(self, job_type: str) -> BackoffPolicy:
        """Return the policy of a type, `DEFAULT_BACKOFF` if it has none."""
        return self._backoffs.get(job_type, DEFAULT_BACKOFF)

    def freeze(self) -> None:
        """Refuse changes from now on; a worker does this when it starts."""
        self._is_frozen = True

    def _composed(self, handler: RegisteredHandler) -> RegisteredHandler:
        """Return the handler as a worker runs it; itself if there is nothing to add."""
        execute: Callable[[JobContext, Any], Any] = handler.execute
        decode, middlewares = handler.decode, self._middlewares
        if handler.is_async:
            if decode is not None:
                execute = decoding_async(execute, decode)
            execute = AsyncHandler(wrapped_async(execute, middlewares), self.event_loop)
        else:
            if decode is not None:
                execute = decoding(execute, decode)
            execute = wrapped(execute, middlewares)
        hook = handler.on_dead_letter
        if hook is not None and is_async_function(hook):
            hook = self._run_hook(hook)
        if execute is handler.execute and hook is handler.on_dead_letter:
            return handler
        return replace(handler, execute=execute, on_dead_letter=hook, decode=None)

    def _run_hook(self, hook: DeadLetterFunction) -> DeadLetterFunction:
        def run(context: JobContext, payload: JsonValue, info: JobDeadLetterInfo) -> None:
            # A coroutine function: that is why it comes here.
            coroutine = cast("Any", hook(context, payload, info))
            self.event_loop.run(coroutine, seconds=DEAD_LETTER_SECONDS)

        return run

    def _check_not_frozen(self) -> None:
        if self._is_frozen:
            refuse(RegistryError, "frozen", "a worker uses this registry; it no longer changes")


def check_retry_delay(failure_code: object, delay_ms: object, *, error: Refusals) -> None:
    """Refuse a failure code or a delay that no failure can have."""
    try:
        limit = current_limits().identifier_characters
        check_text(failure_code, field="failure_code", max_bytes=limit)
    except ValidationError as refused:
        refuse(error, "invalid_failure_code", refused.client_message, field="failure_code")
    try:
        check_int(delay_ms, field="delay_ms", minimum=1, maximum=INT32_MAX)
    except ValidationError as refused:
        refuse(error, "invalid_retry_delay", refused.client_message, field="delay_ms")


def check_backoff(policy: object, *, error: Refusals) -> None:
    """Refuse what is no policy for delays."""
    if not isinstance(policy, BackoffPolicy):
        refuse(
            error,
            "invalid_backoff",
            "a backoff is an instance of BackoffPolicy, such as FixedBackoff(5_000)",
            field="backoff",
        )
