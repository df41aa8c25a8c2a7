"""Handlers as applications write them, checked and made what a worker runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

from runledger_core import (
    HandlerResult,
    JobContext,
    JobDeadLetterInfo,
    JobType,
    JsonValue,
    ValidationError,
)

from .errors import CatalogError, RegistryError
from .middleware import JobMiddleware, is_blind_to
from .payloads import Decode, UnusableAnnotationError, payload_decoder

# Any: a handler annotates the payload as what its jobs carry.
HandlerFunction: TypeAlias = Callable[[JobContext, Any], HandlerResult | Awaitable[HandlerResult]]
"""A `def` or `async def` of a context and a payload, which runs one attempt."""

DeadLetterFunction: TypeAlias = Callable[[JobContext, JsonValue, JobDeadLetterInfo], object]
"""Is told of a job that was given up."""

_MOST_WRAPPERS: Final = 32

Refusals: TypeAlias = type[CatalogError] | type[RegistryError]
"""Whose codes a refusal has."""


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
        """Run one attempt; an `async def` will do."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredHandler:
    """What runs the jobs of one type.

    Attributes:
        job_type: The type.
        execute: Runs one attempt; what a registry returns takes the payload as it is stored.
        on_dead_letter: Is told when a job is given up; None if nobody wants to know.
        is_async: Whether `execute` returns a coroutine.
        decode: Makes of a stored payload what `execute` takes; None if that is the same.
    """

    job_type: JobType
    execute: Callable[[JobContext, Any], HandlerResult | Awaitable[HandlerResult]]
    _: KW_ONLY
    on_dead_letter: DeadLetterFunction | None = None
    is_async: bool = False
    decode: Decode | None = None


def refuse(
    error: Refusals, name: str, client_message: str, *, field: str | None = None
) -> NoReturn:
    """Raise a refusal under the code that registry or catalog has for it."""
    raise error(f"{error.area}.{name}", client_message, field=field)


def checked_job_type(
    job_type: object, *, error: Refusals, name: str = "invalid_job_type"
) -> JobType:
    """Return the job type, or refuse it under `name`."""
    try:
        return JobType(job_type)  # pyright: ignore[reportArgumentType]  # it checks the type
    except ValidationError as refused:
        refuse(error, name, refused.client_message, field="job_type")


def check_middleware(middleware: object, *, error: Refusals) -> None:
    """Refuse what is no middleware."""
    if not isinstance(middleware, JobMiddleware):
        refuse(
            error,
            "invalid_middleware",
            "a middleware is an instance of a subclass of JobMiddleware",
            field="middleware",
        )


def check_sees(middleware: JobMiddleware, handler: RegisteredHandler, *, error: Refusals) -> None:
    """Refuse a middleware that would silently be left out of a handler's attempts."""
    if is_blind_to(middleware, is_async=handler.is_async):
        written, missing = (
            ("execute", "execute_async") if handler.is_async else ("execute_async", "execute")
        )
        refuse(
            error,
            "invalid_middleware",
            f"{type(middleware).__name__} has {written} but not {missing}, which"
            f" {handler.job_type} needs",
            field="middleware",
        )


def is_async_function(function: object) -> bool:
    """Tell whether a call with a context returns a coroutine."""
    inner = _unwrapped(function)
    # The second is for an instance whose class has an async `__call__`.
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(_call_of(inner))


def bind_handler(job_type: object, handler: object, *, error: Refusals) -> RegisteredHandler:
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
    # What it returns is looked at after each call.
    return _bound(declared, cast("HandlerFunction", handler), error=error)


def bind_object(handler: object, *, error: Refusals) -> RegisteredHandler:
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
    if on_dead_letter is not None:
        _check_function(on_dead_letter, arguments=3, error=error)
    return _bound(job_type, execute, on_dead_letter=on_dead_letter, error=error)


def _bound(
    job_type: JobType,
    execute: HandlerFunction,
    *,
    on_dead_letter: DeadLetterFunction | None = None,
    error: Refusals,
) -> RegisteredHandler:
    _check_function(execute, arguments=2, error=error)
    try:
        decode = payload_decoder(execute)
    except UnusableAnnotationError as unusable:
        refuse(error, "unusable_payload_annotation", str(unusable), field="handler")
    return RegisteredHandler(
        job_type,
        execute,
        on_dead_letter=on_dead_letter,
        is_async=is_async_function(execute),
        decode=decode,
    )


def _unwrapped(function: object) -> object:
    """Return what is called in the end, under what only passes calls on."""
    for _ in range(_MOST_WRAPPERS):
        inner = _inner(function)
        if inner is function:
            break
        function = inner
    return function


def _inner(function: Any) -> object:
    if isinstance(function, functools.partial):
        return cast("object", function.func)
    if isinstance(function, staticmethod) or inspect.ismethod(function):
        return cast("object", function.__func__)
    if inspect.isfunction(function):
        # A Python function that wraps another may run its coroutine itself. What `singledispatch`
        # made returns what the function that it chooses returns.
        is_dispatched = isinstance(getattr(function, "registry", None), MappingProxyType)
        return cast("Any", function).dispatch(JobContext) if is_dispatched else function
    # So may an instance of a Python class. One written in C, such as what `lru_cache` makes, only
    # calls what it wraps.
    is_written_in_python = inspect.isfunction(_call_of(function))
    return function if is_written_in_python else getattr(function, "__wrapped__", function)


def _call_of(function: object) -> object:
    return getattr(type(function), "__call__", None)  # noqa: B004  # the method, not whether


def _check_function(function: object, *, arguments: int, error: Refusals) -> None:
    if not callable(function):
        refuse(error, "invalid_handler", "the handler cannot be called", field="handler")
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
