from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    SpanContext,
    TraceFlags,
    TraceState,
    use_span,
)

from runledger_core import JobEnqueue
from runledger_runtime.telemetry.otel import with_trace

REQUEST = JobEnqueue("test.job", {})
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C


def remote_span(state: list[tuple[str, str]]) -> NonRecordingSpan:
    return NonRecordingSpan(
        SpanContext(TRACE_ID, 0xB7AD6B7169203331, True, TraceFlags(1), TraceState(state))
    )


def test_without_an_sdk_the_request_is_left_as_it_is():
    assert with_trace(REQUEST, tracer_provider=NoOpTracerProvider()) is REQUEST


def test_without_an_sdk_a_context_from_elsewhere_is_passed_on():
    with use_span(remote_span([("vendor", "a b")])):
        request = with_trace(REQUEST, tracer_provider=NoOpTracerProvider())

    assert request.trace_context == (
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=a b"
    )


def test_trace_context_of_the_caller_is_kept():
    request = JobEnqueue("test.job", {}, trace_context="mine")

    assert with_trace(request, tracer_provider=TracerProvider()) is request


@pytest.mark.parametrize("length", [100, 256])
def test_state_that_is_too_long_is_left_out_whole(length):
    state = [(f"vendor{number}", "x" * length) for number in range(20)]

    with use_span(remote_span(state)):
        request = with_trace(REQUEST, tracer_provider=TracerProvider())

    assert request.trace_context is not None
    assert len(request.trace_context) == 55
    assert request.trace_context.startswith("00-0af7651916cd43dd8448eb211c80319c-")


def test_traced_request_keeps_the_payload_that_was_encoded():
    payload = {"n": 1}
    request = JobEnqueue("test.job", payload, idempotency_key="key")
    payload["n"] = 2

    traced = with_trace(request, tracer_provider=TracerProvider())

    assert traced.payload_json == '{"n":1}'
    assert traced.trace_context is not None


def test_traced_request_is_equal_and_keeps_what_it_asks_for():
    request = JobEnqueue("test.job", {"n": 1}, priority=3, idempotency_key="key")

    traced = with_trace(request, tracer_provider=TracerProvider())

    assert traced == request
    assert traced.payload_json == request.payload_json
    assert traced.trace_context is not None
