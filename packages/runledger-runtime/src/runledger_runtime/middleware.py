"""Middleware: what goes around every handler of a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from runledger_core import HandlerResult, JobContext, JsonValue

Execute: TypeAlias = Callable[[JobContext, JsonValue], HandlerResult]
"""Runs one attempt of a `def` handler, or what goes around it."""

ExecuteAsync: TypeAlias = Callable[[JobContext, JsonValue], Awaitable[HandlerResult]]
"""Runs one attempt of an `async def` handler, or what goes around it."""


class JobMiddleware:
    """Go around the attempts of all handlers; override what is needed.

    `around` is for what only watches: logging, tracing, metrics. `execute` and `execute_async` may
    change payload and result too. The one that is added first is outermost. All of them see the
    payload as it is stored, before it is made what the handler's annotation says. What a middleware
    raises counts as raised by the handler.
    """

    def around(
        self,
        context: JobContext,
        payload: JsonValue,
    ) -> AbstractContextManager[object]:
        """Return what is entered before the handler and left after it, with what it raised.

        A context manager that swallows an exception makes the attempt a success.
        """
        del context, payload
        return nullcontext()

    def execute(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: Execute,
    ) -> HandlerResult:
        """Run an attempt of a `def` handler; `call_next` does the rest.

        Returns:
            What a handler may return.
        """
        with self.around(context, payload):
            return call_next(context, payload)
        return None

    async def execute_async(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: ExecuteAsync,
    ) -> HandlerResult:
        """Run an attempt of an `async def` handler; awaiting `call_next` does the rest.

        Returns:
            What a handler may return.
        """
        with self.around(context, payload):
            return await call_next(context, payload)
        return None


def is_blind_to(middleware: JobMiddleware, *, is_async: bool) -> bool:
    """Tell whether a middleware overrides `execute` for the other kind of handlers only."""
    kind = type(middleware)
    has_sync = kind.execute is not JobMiddleware.execute
    has_async = kind.execute_async is not JobMiddleware.execute_async
    has_around = kind.around is not JobMiddleware.around
    if has_around or has_sync == has_async:
        return False
    return has_sync if is_async else has_async


def wrapped(execute: Execute, middlewares: Sequence[JobMiddleware]) -> Execute:
    """Return what runs a `def` handler inside of all middlewares."""
    for middleware in reversed(middlewares):
        execute = _around(execute, middleware)
    return execute


def wrapped_async(execute: ExecuteAsync, middlewares: Sequence[JobMiddleware]) -> ExecuteAsync:
    """Return what runs an `async def` handler inside of all middlewares."""
    for middleware in reversed(middlewares):
        execute = _around_async(execute, middleware)
    return execute


def _around(call_next: Execute, middleware: JobMiddleware) -> Execute:
    execute = middleware.execute
    return lambda context, payload: execute(context, payload, call_next)


def _around_async(call_next: ExecuteAsync, middleware: JobMiddleware) -> ExecuteAsync:
    execute = middleware.execute_async
    return lambda context, payload: execute(context, payload, call_next)
