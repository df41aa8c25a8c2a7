"""Handlers that cannot be started, for want of threads or descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runledger_core import HandlerResult, JobContext, JobFailure, JsonValue
from runledger_runtime.event_loop import EventLoop
from runledger_runtime.registry import AsyncHandler
from runledger_runtime.worker._execution import Ending, Execution, Outcome
from runledger_runtime.worker._slots import HandlerSlots

from ..._descriptors import no_descriptor_to_be_had


async def handler(_context: JobContext, _payload: JsonValue) -> HandlerResult:
    return None


def test_coroutine_without_a_descriptor_for_its_loop_is_not_started_and_ends_nothing_else(
    start_execution: Callable[..., Execution],
):
    delivered: list[tuple[Execution, Ending, Outcome | None]] = []
    slots = HandlerSlots(lambda *end: delivered.append(end))
    execution = start_execution()
    starts: Any = AsyncHandler(handler, EventLoop())

    with no_descriptor_to_be_had():
        slots.start(execution, starts)

    ((ended, ending, outcome),) = delivered
    assert (ended, ending) == (execution, Ending.RETURNED)
    assert outcome is not None
    assert isinstance(outcome.result, JobFailure)
    assert outcome.result.code == "job.handler_not_started"
