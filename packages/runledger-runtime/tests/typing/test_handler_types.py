"""What users' type checkers see of handlers; run by pyright and mypy, and once by pytest."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, assert_type

from runledger_core import HandlerResult, JobCompletion, JobContext, JsonValue
from runledger_runtime import JobCatalog, JobMiddleware, JobRegistry

catalog = JobCatalog()


@dataclass
class Order:
    number: int


@catalog.job("orders.send")
def send(context: JobContext, payload: Order) -> JobCompletion:
    return JobCompletion.with_output(payload.number)


@catalog.job("orders.fetch", max_attempts=2)
async def fetch(context: JobContext, payload: Order) -> JobCompletion:
    return JobCompletion.with_output(payload.number)


class Import:
    job_type = "orders.import"

    async def execute(self, context: JobContext, payload: list[Order]) -> None:
        del context, payload


class Timing(JobMiddleware):
    @contextmanager
    def around(self, context: JobContext, payload: JsonValue) -> Generator[None]:
        yield

    def execute(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: Callable[[JobContext, JsonValue], HandlerResult],
    ) -> HandlerResult:
        return call_next(context, payload)

    async def execute_async(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: Callable[[JobContext, JsonValue], Awaitable[HandlerResult]],
    ) -> HandlerResult:
        return await call_next(context, payload)


async def check_handlers(context: JobContext) -> None:
    """Decorated handlers stay what they are."""
    assert_type(send(context, Order(1)), JobCompletion)
    assert_type(await fetch(context, Order(1)), JobCompletion)


def test_handlers_of_every_kind_are_taken() -> None:
    registry = JobRegistry()
    registry.register(Import())
    registry.register_function("orders.fetch", fetch)
    registry.add_middleware(Timing())
    plain: Callable[[JobContext, Any], None] = lambda context, payload: None  # noqa: E731  # a lambda is the case
    catalog.job("orders.plain", plain).job("orders.import", Import()).middleware(Timing())

    assert catalog.to_registry().registered_types() == [
        "orders.fetch",
        "orders.import",
        "orders.plain",
        "orders.send",
    ]
