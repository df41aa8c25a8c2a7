import asyncio
import functools
import threading
from typing import Any, cast

import pytest

from runledger_core import JobContext, JobType, ValidationError
from runledger_runtime.errors import RegistryError
from runledger_runtime.registry import AsyncHandler as BoundToLoop
from runledger_runtime.registry import JobRegistry

ANYTHING: Any = object()


def handle(context, payload):
    return None


class Handler:
    job_type = "jobs.one"

    def __init__(self, job_type="jobs.one"):
        self.job_type = job_type

    def execute(self, context, payload):
        return None


class HandlerWithHook(Handler):
    def on_dead_letter(self, context, payload, info):
        return None


class AsyncHandler:
    job_type = "jobs.one"

    async def execute(self, context, payload):
        return None


class HandlerWithShortHook(Handler):
    def on_dead_letter(self, context):
        return None


class HandlerWithoutFunction:
    job_type = "jobs.one"
    execute = 5


class CallableHandler:
    def __call__(self, context, payload):
        return None


class AsyncCallableHandler:
    async def __call__(self, context, payload):
        return None


async def handle_async(context, payload):
    return None


async def handle_with_more_async(context, payload, *, more):
    return None


@functools.singledispatch
def handle_by_context(context, payload):
    return None


handle_by_context.register(JobContext)(cast("Any", handle_async))


@functools.wraps(handle_async)
def runs_a_coroutine(context, payload):
    return asyncio.run(handle_async(context, payload))


class RunsACoroutine:
    """As `runs_a_coroutine`, as decorators that are classes have it."""

    def __init__(self):
        functools.update_wrapper(self, handle_async)

    def __call__(self, context, payload):
        return asyncio.run(handle_async(context, payload))


def handle_in_steps(context, payload):
    yield None


async def handle_in_async_steps(context, payload):
    yield None


def refusal(call, *arguments):
    with pytest.raises(RegistryError) as caught:
        call(*arguments)
    assert isinstance(caught.value, ValidationError)
    return caught.value.code


def registered(registry):
    handler = registry.get("jobs.one")
    assert handler is not None
    return handler


def test_a_function_is_found_by_its_type():
    registry = JobRegistry()

    registry.register_function("jobs.one", handle)

    assert registered(registry).job_type == "jobs.one"
    assert type(registered(registry).job_type) is JobType
    assert registered(registry).execute is handle
    assert registered(registry).on_dead_letter is None


def test_an_object_is_found_by_the_type_it_names():
    registry = JobRegistry()
    handler = HandlerWithHook()

    registry.register(handler)

    assert registered(registry).execute == handler.execute
    assert registered(registry).on_dead_letter == handler.on_dead_letter


def test_an_object_without_a_hook_has_none():
    registry = JobRegistry()

    registry.register(Handler())

    assert registered(registry).on_dead_letter is None


def test_an_unknown_type_has_no_handler():
    assert JobRegistry().get("jobs.one") is None


def test_types_are_listed_in_order():
    registry = JobRegistry()
    for job_type in ("b", "c", "a"):
        registry.register_function(job_type, handle)

    assert registry.registered_types() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "function",
    [
        CallableHandler(),
        functools.partial(lambda extra, context, payload: None, 1),
        lambda context, payload, more=None: None,
        lambda *arguments: None,
        CallableHandler().__call__,
        max,
    ],
)
def test_whatever_takes_two_arguments_is_a_function(function):
    registry = JobRegistry()

    registry.register_function("jobs.one", function)

    assert registry.registered_types() == ["jobs.one"]


def test_a_second_handler_is_refused_and_the_first_one_stays():
    registry = JobRegistry()
    registry.register_function("jobs.one", handle)

    assert refusal(registry.register, Handler()) == "registry.duplicate_job_type"
    assert registered(registry).execute is handle


@pytest.mark.parametrize("job_type", ["", "  ", "x" * 201, "a\0", None, 5])
def test_a_type_that_cannot_be_stored_is_refused(job_type):
    registry = JobRegistry()

    assert refusal(registry.register_function, job_type, handle) == "registry.invalid_job_type"
    assert refusal(registry.register, Handler(job_type)) == "registry.invalid_handler_job_type"


def test_an_object_for_another_type_is_refused():
    registry = JobRegistry()

    code = refusal(registry.register_function, "jobs.two", Handler())

    assert code == "registry.handler_job_type_mismatch"


@pytest.mark.parametrize(
    "handler",
    [
        handle_async,
        functools.partial(handle_async),
        functools.partial(handle_with_more_async, more=1),
        AsyncCallableHandler(),
        functools.partial(AsyncCallableHandler()),
        functools.partial(functools.partial(AsyncCallableHandler())),
        AsyncHandler(),
        AsyncHandler().execute,
        staticmethod(handle_async),
        staticmethod(functools.partial(AsyncCallableHandler())),
        functools.singledispatch(handle_async),
    ],
)
def test_async_handlers_of_every_form_run_on_the_loop_of_the_registry(handler):
    registry = JobRegistry()

    registry.register_function("jobs.one", handler)

    bound = registered(registry)
    assert bound.is_async
    assert isinstance(bound.execute, BoundToLoop)
    assert bound.execute.event_loop is registry.event_loop
    coroutine: Any = bound.execute(ANYTHING, {})
    assert registry.event_loop.run(coroutine) is None


@pytest.mark.parametrize("handler", [handle_by_context, functools.lru_cache(handle_async)])
def test_handler_is_async_if_what_a_context_leads_to_is(handler):
    registry = JobRegistry()

    registry.register_function("jobs.one", handler)

    assert registered(registry).is_async


@pytest.mark.parametrize(
    "handler",
    [runs_a_coroutine, functools.partial(runs_a_coroutine), RunsACoroutine()],
)
def test_handler_that_wraps_a_coroutine_and_runs_it_itself_is_no_coroutine(handler):
    registry = JobRegistry()

    registry.register_function("jobs.one", handler)

    bound = registered(registry)
    assert not bound.is_async
    assert bound.execute(ANYTHING, {}) is None


def test_async_hook_is_run_by_a_plain_call():
    told = []

    class Told(Handler):
        async def on_dead_letter(self, context, payload, info):
            told.append((threading.current_thread().name, payload))

    registry = JobRegistry()
    registry.register(Told())
    bound = registered(registry)

    assert not bound.is_async
    assert bound.on_dead_letter is not None
    bound.on_dead_letter(ANYTHING, {"raw": 1}, ANYTHING)
    assert told == [("runledger-event-loop", {"raw": 1})]


@pytest.mark.parametrize(
    "handler",
    [
        None,
        5,
        "jobs.one",
        Handler,
        CallableHandler,
        lambda: None,
        lambda context: None,
        lambda context, payload, more: None,
        lambda *, context, payload: None,
        handle_in_steps,
        handle_in_async_steps,
        HandlerWithShortHook(),
    ],
)
def test_what_cannot_be_called_with_context_and_payload_is_refused(handler):
    registry = JobRegistry()

    assert refusal(registry.register_function, "jobs.one", handler) == "registry.invalid_handler"


def test_an_object_whose_execute_is_no_function_is_refused():
    assert refusal(JobRegistry().register, HandlerWithoutFunction()) == "registry.invalid_handler"


def test_a_function_without_a_type_is_refused():
    assert refusal(JobRegistry().register, handle) == "registry.invalid_handler"


def test_a_retry_delay_applies_to_exactly_its_type_and_code():
    registry = JobRegistry()

    registry.register_retry_delay_override("jobs.one", "rate_limited", 90_000)

    assert registry.retry_delay_override("jobs.one", "rate_limited") == 90_000
    assert registry.retry_delay_override("jobs.one", "other") is None
    assert registry.retry_delay_override("jobs.two", "rate_limited") is None


def test_a_second_retry_delay_replaces_the_first():
    registry = JobRegistry()
    registry.register_retry_delay_override("jobs.one", "rate_limited", 1)

    registry.register_retry_delay_override("jobs.one", "rate_limited", 2)

    assert registry.retry_delay_override("jobs.one", "rate_limited") == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("", "code", 1), "registry.invalid_job_type"),
        (("jobs.one", " ", 1), "registry.invalid_failure_code"),
        (("jobs.one", "x" * 201, 1), "registry.invalid_failure_code"),
        (("jobs.one", None, 1), "registry.invalid_failure_code"),
        (("jobs.one", "code", 0), "registry.invalid_retry_delay"),
        (("jobs.one", "code", -1), "registry.invalid_retry_delay"),
        (("jobs.one", "code", 2**31), "registry.invalid_retry_delay"),
        (("jobs.one", "code", 1.5), "registry.invalid_retry_delay"),
        (("jobs.one", "code", True), "registry.invalid_retry_delay"),
    ],
)
def test_a_retry_delay_that_cannot_be_is_refused(arguments, code):
    assert refusal(JobRegistry().register_retry_delay_override, *arguments) == code


def test_a_frozen_registry_refuses_changes():
    registry = JobRegistry()
    registry.register_function("jobs.one", handle)

    registry.freeze()

    assert refusal(registry.register_function, "jobs.two", handle) == "registry.frozen"
    assert refusal(registry.register, Handler("jobs.two")) == "registry.frozen"
    assert (
        refusal(registry.register_retry_delay_override, "jobs.one", "code", 1) == "registry.frozen"
    )
    assert registry.registered_types() == ["jobs.one"]
