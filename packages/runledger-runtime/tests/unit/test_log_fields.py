"""Log records of handlers carry the fields of their jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from runledger_runtime.log_fields import JobLogFields
from runledger_runtime.registry import JobRegistry

ORGANIZATION = UUID(int=7)
FIELDS = ("job_id", "job_type", "run_number", "attempt", "organization_id", "worker_id")

logger = logging.getLogger("tests.log_fields")


def context_of(number: int, organization_id: UUID | None = None) -> Any:
    return SimpleNamespace(
        job_id=UUID(int=number),
        job_type="jobs.one",
        run_number=1,
        attempt=number,
        organization_id=organization_id,
        worker_id="worker-1",
    )


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(JobLogFields())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Records of a logging handler that has the filter."""
    collecting = Collecting()
    logger.addHandler(collecting)
    logger.setLevel("INFO")
    yield collecting.records
    logger.removeHandler(collecting)
    logger.setLevel("NOTSET")


def execute(handler: Any, context: Any) -> Any:
    registry = JobRegistry()
    registry.add_middleware(JobLogFields())
    registry.register_function("jobs.one", handler)
    bound = registry.get("jobs.one")
    assert bound is not None
    return bound.execute(context, {})


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def test_record_of_a_handler_has_the_fields_of_its_job(records):
    execute(lambda *_: logger.info("hello"), context_of(1, ORGANIZATION))

    (record,) = records
    assert fields_of(record) == {
        "job_id": str(UUID(int=1)),
        "job_type": "jobs.one",
        "run_number": 1,
        "attempt": 1,
        "organization_id": str(ORGANIZATION),
        "worker_id": "worker-1",
    }


def test_record_outside_of_handlers_is_left_alone(records):
    execute(lambda *_: None, context_of(1))

    logger.info("hello")

    assert fields_of(records[0]) == {}


def test_field_that_a_record_has_already_is_kept(records):
    execute(lambda *_: logger.info("hello", extra={"attempt": "mine"}), context_of(1))

    assert records[0].__dict__["attempt"] == "mine"
    assert records[0].__dict__["organization_id"] is None


def test_handler_that_raises_leaves_no_fields_behind(records):
    def fail(context, payload):
        raise LookupError

    with pytest.raises(LookupError):
        execute(fail, context_of(1))
    logger.info("hello")

    assert fields_of(records[0]) == {}


def test_coroutines_that_take_turns_keep_their_own_fields(records):
    async def handler(context, payload):
        for _ in range(3):
            await asyncio.sleep(0)
            logger.info("turn %d", context.attempt)
        await asyncio.to_thread(logger.info, "turn %d", context.attempt)

    async def both() -> None:
        await asyncio.gather(*[execute(handler, context_of(number)) for number in (1, 2)])

    asyncio.run(both())

    assert len(records) == 8
    for record in records:
        assert record.getMessage() == f"turn {record.__dict__['attempt']}"
    assert {record.threadName for record in records} != {threading.current_thread().name}
