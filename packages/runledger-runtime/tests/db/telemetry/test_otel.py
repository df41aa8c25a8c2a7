from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from psycopg_pool import ConnectionPool

from runledger_core import JobCompletion, JobEnqueue, JobFailure
from runledger_postgres import enqueue_job, enqueue_jobs
from runledger_runtime import JobCatalog
from runledger_runtime.telemetry.otel import OpenTelemetryMiddleware, with_trace
from runledger_runtime.testing import drain

SECRET = "do-not-tell"  # noqa: S105  # what payloads and messages of these tests hold


class Spans:
    """A provider that keeps ended spans in memory."""

    def __init__(self, eventually: Callable[[Callable[[], bool]], None]) -> None:
        self._eventually = eventually
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    def wait_for_attempts(self, count: int) -> None:
        self._eventually(lambda: len(self.of(SpanKind.CONSUMER)) == count)

    def traced(self, request: JobEnqueue) -> JobEnqueue:
        return with_trace(request, tracer_provider=self.provider)


@pytest.fixture
def spans(eventually) -> Spans:
    return Spans(eventually)


@pytest.fixture
def catalog(spans: Spans) -> JobCatalog:
    """Handlers of both kinds, in spans; `test.flaky` fails once with each kind of failure."""
    catalog = JobCatalog().middleware(OpenTelemetryMiddleware(tracer_provider=spans.provider))

    @catalog.job("test.plain")
    def plain(context, payload) -> None:
        del context, payload

    @catalog.job("test.async")
    async def run_async(context, payload) -> JobCompletion:
        await asyncio.sleep(0)
        with spans.tracer.start_as_current_span("inside"):
            return JobCompletion.success()

    @catalog.job("test.flaky", max_attempts=4)
    def flaky(context, payload):
        match context.attempt:
            case 1:
                raise JobFailure.retryable("test.raised", SECRET)
            case 2:
                return JobFailure.retryable("test.returned", SECRET)
            case 3:
                raise LookupError(SECRET)
        return None

    for code in ("test.raised", "test.returned", "job.handler_exception"):
        catalog.retry_delay_override("test.flaky", code, 1)
    return catalog


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("job_type", ["test.plain", "test.async"])
def test_attempt_is_a_child_of_the_producer_in_one_trace(
    runledger_pool: ConnectionPool[Any],
    start_supervisor,
    spans: Spans,
    catalog: JobCatalog,
    job_type: str,
):
    start_supervisor(catalog)

    with spans.tracer.start_as_current_span("request") as request:
        job = enqueue_job(runledger_pool, spans.traced(JobEnqueue(job_type, {"to": SECRET})))

    spans.wait_for_attempts(1)
    (producer,), (consumer,) = spans.of(SpanKind.PRODUCER), spans.of(SpanKind.CONSUMER)
    assert producer.name == f"create {job_type}"
    assert producer.parent == request.get_span_context()
    assert attributes_of(producer) == {
        "messaging.system": "runledger",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": job_type,
    }
    assert consumer.name == f"process {job_type}"
    assert context_of(consumer).trace_id == request.get_span_context().trace_id
    assert consumer.parent is not None
    assert consumer.parent.span_id == context_of(producer).span_id
    assert [link.context.span_id for link in consumer.links] == [context_of(producer).span_id]
    assert consumer.status.status_code is StatusCode.UNSET
    fields = attributes_of(consumer)
    assert fields.pop("messaging.client.id").startswith("worker:")
    assert fields == {
        "messaging.system": "runledger",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": job_type,
        "messaging.message.id": str(job.id),
        "runledger.run_number": 1,
        "runledger.attempt": 1,
        "runledger.max_attempts": 3,
    }


def test_spans_of_an_async_handler_are_children_of_its_attempt(
    runledger_pool, start_supervisor, spans: Spans, catalog
):
    start_supervisor(catalog)

    enqueue_jobs(runledger_pool, [spans.traced(JobEnqueue("test.async", n)) for n in range(5)])

    spans.wait_for_attempts(5)
    attempts = {context_of(span).span_id: span for span in spans.of(SpanKind.CONSUMER)}
    inside = spans.of(SpanKind.INTERNAL)
    assert sorted(span.parent.span_id for span in inside if span.parent) == sorted(attempts)


def test_each_retry_is_a_span_of_the_same_trace_that_tells_how_it_ended(
    runledger_pool, start_supervisor, spans: Spans, catalog
):
    start_supervisor(catalog)

    enqueue_job(runledger_pool, spans.traced(JobEnqueue("test.flaky", {"to": SECRET})))

    spans.wait_for_attempts(4)
    (producer,), attempts = spans.of(SpanKind.PRODUCER), spans.of(SpanKind.CONSUMER)
    assert {context_of(span).trace_id for span in attempts} == {context_of(producer).trace_id}
    assert {span.parent.span_id for span in attempts if span.parent} == {
        context_of(producer).span_id
    }
    assert [attributes_of(span)["runledger.attempt"] for span in attempts] == [1, 2, 3, 4]
    assert [attributes_of(span).get("error.type") for span in attempts] == [
        "test.raised",
        "test.returned",
        "LookupError",
        None,
    ]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR] * 3 + [
        StatusCode.UNSET
    ]
    assert not any(SECRET in span.to_json() for span in (producer, *attempts))


def test_each_job_of_a_batch_has_a_producer_span_of_its_own(
    runledger_pool, start_supervisor, spans: Spans, catalog
):
    start_supervisor(catalog)
    requests = [JobEnqueue("test.plain", n) for n in range(3)]

    with spans.tracer.start_as_current_span("request") as request:
        enqueue_jobs(runledger_pool, [spans.traced(each) for each in requests])

    spans.wait_for_attempts(3)
    producers, consumers = spans.of(SpanKind.PRODUCER), spans.of(SpanKind.CONSUMER)
    assert sorted(span.parent.span_id for span in consumers if span.parent) == sorted(
        context_of(span).span_id for span in producers
    )
    assert {context_of(span).trace_id for span in consumers} == {
        request.get_span_context().trace_id
    }


def test_repeat_of_a_key_leaves_the_job_in_the_trace_of_the_first_request(
    runledger_pool, start_supervisor, spans: Spans, catalog
):
    request = JobEnqueue("test.plain", {}, idempotency_key="once")
    catalog.sync_definitions(runledger_pool)

    first = enqueue_job(runledger_pool, spans.traced(request))
    again = enqueue_job(runledger_pool, spans.traced(request))
    start_supervisor(catalog)

    assert again.id == first.id
    spans.wait_for_attempts(1)
    (consumer,) = spans.of(SpanKind.CONSUMER)
    assert consumer.parent is not None
    assert consumer.parent.span_id == context_of(spans.of(SpanKind.PRODUCER)[0]).span_id


GARBAGE = [
    "",
    " ",
    "no context",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    "00-00000000000000000000000000000000-0000000000000000-01",
    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-" + "é" * 40,
    "\n\t\x01{}",
    "x" * 100_000,
]


@pytest.mark.parametrize("stored", [None, *GARBAGE], ids=lambda text: repr(text)[:20])
def test_attempt_without_a_usable_context_begins_a_trace(
    runledger_pool, spans: Spans, catalog, stored
):
    catalog.sync_definitions(runledger_pool)
    job = enqueue_job(runledger_pool, JobEnqueue("test.plain", {}))
    with runledger_pool.connection() as connection:
        connection.execute(
            "UPDATE runledger.job_queue SET trace_context = %s WHERE id = %s", [stored, job.id]
        )

    # What is current where jobs are run is no parent of theirs.
    with spans.tracer.start_as_current_span("main"):
        drain(runledger_pool, catalog)

    (consumer,) = spans.of(SpanKind.CONSUMER)
    assert consumer.parent is None
    assert not consumer.links
    assert consumer.status.status_code is StatusCode.UNSET


def test_attempt_that_timed_out_tells_so(runledger_pool, start_supervisor, spans: Spans, catalog):
    @catalog.job("test.slow", timeout_seconds=1, max_attempts=1)
    async def slow(context, payload) -> None:
        await asyncio.sleep(60)

    start_supervisor(catalog)

    enqueue_job(runledger_pool, spans.traced(JobEnqueue("test.slow", {})))

    spans.wait_for_attempts(1)
    (consumer,) = spans.of(SpanKind.CONSUMER)
    assert attributes_of(consumer)["error.type"] == "TIMEOUT"


def test_handlers_own_spans_end_up_in_the_producers_trace(
    runledger_pool, start_supervisor, spans: Spans
):
    catalog = JobCatalog().middleware(OpenTelemetryMiddleware(tracer_provider=spans.provider))

    @catalog.job("test.parent")
    def parent(context, payload) -> None:
        with context.connection() as connection:
            enqueue_job(connection, spans.traced(JobEnqueue("test.child", {})))

    @catalog.job("test.child")
    def child(context, payload) -> None:
        assert trace.get_current_span().is_recording()

    start_supervisor(catalog)

    enqueue_job(runledger_pool, spans.traced(JobEnqueue("test.parent", {})))

    spans.wait_for_attempts(2)
    everything = [*spans.of(SpanKind.PRODUCER), *spans.of(SpanKind.CONSUMER)]
    assert len({context_of(span).trace_id for span in everything}) == 1
