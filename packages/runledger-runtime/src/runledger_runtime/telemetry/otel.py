"""OpenTelemetry: a trace that begins before the enqueue goes on in the handler.

Needs the extra `[otel]`: the API of OpenTelemetry; without an SDK in the process nothing is traced.
Spans follow the conventions for messaging. Names and attributes hold types, ids and codes, never
payloads, messages of failures, or tracebacks.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from runledger_core import (
    HandlerResult,
    JobCancelled,
    JobContext,
    JobEnqueue,
    JobFailure,
    JsonValue,
    check_trace_context,
    with_fields,
)

from .._version import __version__
from ..middleware import Execute, ExecuteAsync, JobMiddleware

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as _error:
    raise ImportError(
        "tracing needs an extra: pip install 'runledger-runtime[otel]'", name=_error.name
    ) from _error

_SYSTEM: Final = "runledger"
# What `JobEnqueue` takes as a trace context.
_MOST_CHARACTERS: Final = 1_024
_TRACEPARENT: Final = "traceparent"
_TRACESTATE: Final = "tracestate"
# The format of the column is ours, whatever format the process uses between its services.
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def with_trace(request: JobEnqueue, *, tracer_provider: TracerProvider | None = None) -> JobEnqueue:
    """Return the request with the context of a new producer span, a child of the current one.

    The span tells that the job was asked for, and by whom. It does not cover the enqueue: whether
    that happened is decided by a commit that may be yours. For many requests call it for each.

    Args:
        request: One that has a trace context already is returned as it is, without a span.
        tracer_provider: The one of the process if None.

    Returns:
        The request as it is if there is no trace to go on with.
    """
    if request.trace_context is not None:
        return request
    span = _tracer(tracer_provider).start_span(
        f"create {request.job_type}",
        kind=SpanKind.PRODUCER,
        attributes=_attributes("create", request.job_type),
    )
    try:
        text = _trace_context_of(span)
    finally:
        span.end()
    if text is None:
        return request
    return with_fields(request, trace_context=check_trace_context(text))


class OpenTelemetryMiddleware(JobMiddleware):
    """Run each attempt in a consumer span of its own; add it first, so that it is outermost.

    The span is a child of the producer's, and links to it: one trace leads from the request to
    every attempt. Without a context in the row, or with one that cannot be read, it begins a trace.
    A failure, returned or raised, sets the status to an error with the failure's code; a handler
    that left because it was told to sets it with the reason, another exception with its class.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None) -> None:
        """Trace by the provider of the process, or by another one."""
        self._tracer = _tracer(tracer_provider)

    def execute(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: Execute,
    ) -> HandlerResult:
        """Run an attempt of a `def` handler in its span."""
        with self._attempt(context) as span:
            return _noted(span, call_next(context, payload))

    async def execute_async(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: ExecuteAsync,
    ) -> HandlerResult:
        """Run an attempt of an `async def` handler in its span."""
        with self._attempt(context) as span:
            return _noted(span, await call_next(context, payload))

    @contextmanager
    def _attempt(self, context: JobContext) -> Generator[Span]:
        parent = _stored_context(context.trace_context)
        creation = trace.get_current_span(parent).get_span_context()
        with self._tracer.start_as_current_span(
            f"process {context.job_type}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=_attributes("process", context.job_type) | _fields(context),
            links=[trace.Link(creation)] if creation.is_valid else None,
            # Its text and its traceback may hold the payload.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _failed(span, _kind_of(error, context))
                raise


def _noted(span: Span, result: HandlerResult) -> HandlerResult:
    if isinstance(result, JobFailure):
        _failed(span, result.code)
    return result


def _failed(span: Span, kind: str) -> None:
    span.set_status(Status(StatusCode.ERROR, kind))
    span.set_attribute("error.type", kind)


def _kind_of(error: BaseException, context: JobContext) -> str:
    if isinstance(error, JobFailure):
        return error.code
    if isinstance(error, (JobCancelled, CancelledError)) and context.cancel_reason is not None:
        return context.cancel_reason.value
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer("runledger_runtime", __version__, tracer_provider=provider)


def _attributes(operation: str, job_type: str) -> dict[str, AttributeValue]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": str(job_type),
    }


def _fields(context: JobContext) -> dict[str, AttributeValue]:
    fields: dict[str, AttributeValue] = {
        "messaging.message.id": str(context.job_id),
        "messaging.client.id": str(context.worker_id),
        "runledger.run_number": context.run_number,
        "runledger.attempt": context.attempt,
        "runledger.max_attempts": context.max_attempts,
    }
    if context.organization_id is not None:
        fields["runledger.organization_id"] = str(context.organization_id)
    return fields


def _trace_context_of(span: Span) -> str | None:
    if not span.get_span_context().is_valid:
        # Without an SDK; a context that came from elsewhere is passed on nevertheless.
        span = trace.get_current_span()
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    parent, state = carrier.get(_TRACEPARENT), carrier.get(_TRACESTATE)
    if parent is None:
        return None
    # A state that is too long may be left out, but not cut.
    text = f"{parent} {state}" if state else parent
    return text if len(text) <= _MOST_CHARACTERS else parent


def _stored_context(text: str | None) -> Context:
    # Not the current one: what was current when the worker started is no parent of its jobs.
    if text is None:
        return Context()
    parent, _, state = text.partition(" ")
    carrier = {_TRACEPARENT: parent}
    if state:
        carrier[_TRACESTATE] = state
    return _PROPAGATOR.extract(carrier, Context())
