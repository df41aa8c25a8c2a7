"""Handlers by job type."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, NoReturn, Protocol, TypeAlias, cast

from runledger_core import (
    HandlerResult,
    JobContext,
    JobDeadLetterInfo,
    JobType,
    JsonValue,
    ValidationError,
    check_int,
    check_text,
    current_limits,
)
from runledger_core.limits import INT32_MAX

from .errors import CatalogError, RegistryError

# Any: a handler annotates the payload as what its jobs carry, which no checker can prove.
HandlerFunction: TypeAlias = Callable[[JobContext, Any], HandlerResult]
"""A plain function that runs one attempt; it may annotate the payload as it likes."""

_Refusals: TypeAlias = type[CatalogError] | type[RegistryError]


class HandlerObject(Protocol):
    """A `JobHandler` whose payload may be annotated as it likes."""

    @property
    def job_type(self) -> str:
        """Return the type; a class attribute will do."""
        ...

    def execute(
        self,
        context: JobContext,
        payload: Any,
        /,
    ) -> HandlerResult | Awaitable[HandlerResult]:
        """Run one attempt."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    """What runs the jobs of one type.

    Attributes:
        job_type: The type.
        execute: Runs one attempt.
        on_dead_letter: Is told when a job is given up; None if nobody wants to know.
    """

    job_type: JobType
    execute: Callable[[JobContext, JsonValue], HandlerResult]
    _: KW_ONLY
    on_dead_letter: Callable[[JobContext, JsonValue, JobDeadLetterInfo], object] | None = None


class JobRegistry:
    """Hold the handlers of a worker; a `JobCatalog` makes one for most applications.

    Once a worker uses it, it no longer changes.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, RegisteredHandler] = {}
        self._retry_delays_ms: dict[tuple[str, str], int] = {}
        self._is_frozen = False

    def add(self, handler: RegisteredHandler) -> None:
        """Take a handler that another registry or a catalog has checked.

        Raises:
            RegistryError: `registry.duplicate_job_type` or `registry.frozen`.
        """
        self._check_not_frozen()
        if handler.job_type in self._handlers:
            refuse(
                RegistryError,
                "duplicate_job_type",
                f"{handler.job_type} has a handler already",
                field="job_type",
            )
        self._handlers[handler.job_type] = handler

    def register(self, handler: HandlerObject) -> None:
        """Take an object with `job_type`, `execute` and, if it wishes, `on_dead_letter`.

        Raises:
            RegistryError: `registry.duplicate_job_type`, `registry.invalid_handler`,
                `registry.invalid_handler_job_type`, `registry.async_handler_unsupported` or
                `registry.frozen`.
        """
        self.add(bind_object(handler, error=RegistryError))

    def register_function(self, job_type: str, function: HandlerFunction) -> None:
        """Take a function of a context and a payload.

        Raises:
            RegistryError: `registry.duplicate_job_type`, `registry.invalid_job_type`,
                `registry.invalid_handler`, `registry.async_handler_unsupported` or
                `registry.frozen`.
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

    def get(self, job_type: str) -> RegisteredHandler | None:
        """Return the handler of a type, None if there is none."""
        return self._handlers.get(job_type)

    def registered_types(self) -> list[str]:
        """Return the job types that have a handler, sorted."""
        return sorted(self._handlers)

    def retry_delay_override(self, job_type: str, failure_code: str) -> int | None:
        """Return the fixed delay of exactly this type and code in milliseconds, or None."""
        return self._retry_delays_ms.get((job_type, failure_code))

    def freeze(self) -> None:
        """Refuse changes from now on; a worker does this when it starts."""
        self._is_frozen = True

    def _check_not_frozen(self) -> None:
        if self._is_frozen:
            refuse(RegistryError, "frozen", "a worker uses this registry; it no longer changes")


def refuse(
    error: _Refusals, name: str, client_message: str, *, field: str | None = None
) -> NoReturn:
    """Raise a refusal under the code that registry or catalog has for it."""
    raise error(f"{error.area}.{name}", client_message, field=field)


def checked_job_type(
    job_type: object, *, error: _Refusals, name: str = "invalid_job_type"
) -> JobType:
    """Return the job type, or refuse it under `name`."""
    try:
        return JobType(job_type)  # pyright: ignore[reportArgumentType]  # it checks the type
    except ValidationError as refused:
        refuse(error, name, refused.client_message, field="job_type")


def check_retry_delay(failure_code: object, delay_ms: object, *, error: _Refusals) -> None:
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


def bind_handler(job_type: object, handler: object, *, error: _Refusals) -> RegisteredHandler:
    """Return what runs the jobs of a type: a function, or an object for the same type."""
    declared = checked_job_type(job_type, error=error)
    if inspect.isclass(handler) or not callable(handler) or hasattr(handler, "execute"):
        bound = bind_object(handler, error=error)
        if bound.job_type != declared:
            refuse(
                error,
                "handler_job_type_mismatch",
                f"the handler is for {bound.job_type}, not for {declared}",
                field="job_type",
            )
        return bound
    _check_function(handler, arguments=2, error=error)
    # What it returns is looked at after each call.
    return RegisteredHandler(declared, cast("HandlerFunction", handler))


def bind_object(handler: object, *, error: _Refusals) -> RegisteredHandler:
    """Return what runs the jobs of the type that an object names."""
    if inspect.isclass(handler) or not hasattr(handler, "execute"):
        refuse(
            error,
            "invalid_handler",
            "a handler is a function, or an object with job_type and execute; no class",
            field="handler",
        )
    execute = getattr(handler, "execute")  # noqa: B009  # the object's class is not known
    on_dead_letter = getattr(handler, "on_dead_letter", None)
    job_type = checked_job_type(
        getattr(handler, "job_type", None), error=error, name="invalid_handler_job_type"
    )
    _check_function(execute, arguments=2, error=error)
    if on_dead_letter is not None:
        _check_function(on_dead_letter, arguments=3, error=error)
    return RegisteredHandler(job_type, execute, on_dead_letter=on_dead_letter)


def _check_function(function: object, *, arguments: int, error: _Refusals) -> None:
    if not callable(function):
        refuse(error, "invalid_handler", "the handler cannot be called", field="handler")
    # The second is for an instance whose class is callable.
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__):
        refuse(
            error,
            "async_handler_unsupported",
            "an async def cannot be run yet; write a plain def",
            field="handler",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        refuse(error, "invalid_handler", "a handler returns, it does not yield", field="handler")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Written in C without a signature: the first call will tell.
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        refuse(
            error,
            "invalid_handler",
            f"the handler must take {arguments} positional arguments",
            field="handler",
        )
