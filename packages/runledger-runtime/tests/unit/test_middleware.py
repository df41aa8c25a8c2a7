"""Middleware goes around handlers of every kind, in the order in which it was added."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from runledger_core import JobFailure
from runledger_runtime import JobCatalog
from runledger_runtime.errors import CatalogError, RegistryError
from runledger_runtime.middleware import JobMiddleware
from runledger_runtime.registry import JobRegistry

CONTEXT: Any = object()


class Watching(JobMiddleware):
    """Notes when it is entered and left."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    @contextmanager
    def around(self, context: Any, payload: Any) -> Generator[None]:
        self.seen.append(f"{self.name} in")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"{self.name} {type(error).__name__}")
            raise
        self.seen.append(f"{self.name} out")


class Doubling(JobMiddleware):
    """Changes payloads and results of handlers of both kinds."""

    def execute(self, context: Any, payload: Any, call_next: Any) -> Any:
        return call_next(context, payload * 2) * 10

    async def execute_async(self, context: Any, payload: Any, call_next: Any) -> Any:
        return await call_next(context, payload * 2) * 10


class OnlySync(JobMiddleware):
    def execute(self, context: Any, payload: Any, call_next: Any) -> Any:
        return call_next(context, payload)


class OnlyAsync(JobMiddleware):
    async def execute_async(self, context: Any, payload: Any, call_next: Any) -> Any:
        return await call_next(context, payload)


class AroundAndSync(Watching):
    def execute(self, context: Any, payload: Any, call_next: Any) -> Any:
        return call_next(context, payload)


def handle(context, payload):
    return payload


async def handle_async(context, payload):
    await asyncio.sleep(0)
    return payload


def run(registry: JobRegistry, payload: Any) -> Any:
    handler = registry.get("jobs.one")
    assert handler is not None
    result = handler.execute(CONTEXT, payload)
    return asyncio.run(cast("Any", result)) if handler.is_async else result


@pytest.fixture(params=[handle, handle_async])
def registry(request: pytest.FixtureRequest) -> JobRegistry:
    """A registry with a handler of each kind in turn."""
    registry = JobRegistry()
    registry.register_function("jobs.one", request.param)
    return registry


def test_first_that_is_added_is_outermost(registry: JobRegistry):
    seen: list[str] = []
    registry.add_middleware(Watching("outer", seen))
    registry.add_middleware(Watching("inner", seen))

    assert run(registry, 7) == 7
    assert seen == ["outer in", "inner in", "inner out", "outer out"]


def test_payload_and_result_may_be_changed(registry: JobRegistry):
    registry.add_middleware(Doubling())

    assert run(registry, 1) == 20


def test_middleware_without_anything_changes_nothing(registry: JobRegistry):
    registry.add_middleware(JobMiddleware())

    assert run(registry, 7) == 7


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_raises_is_seen_from_the_inside_out(is_async: bool):
    def fail(context, payload):
        raise JobFailure.terminal("test.no", "no")

    async def fail_async(context, payload):
        fail(context, payload)

    seen: list[str] = []
    registry = JobRegistry()
    registry.add_middleware(Watching("outer", seen))
    registry.add_middleware(Watching("inner", seen))
    registry.register_function("jobs.one", fail_async if is_async else fail)

    with pytest.raises(JobFailure):
        run(registry, 7)
    assert seen == ["outer in", "inner in", "inner JobFailure", "outer JobFailure"]


def test_handler_that_is_added_later_is_inside_too(registry: JobRegistry):
    seen: list[str] = []
    registry.add_middleware(Watching("one", seen))
    registry.register_function("jobs.later", handle)

    later = registry.get("jobs.later")
    assert later is not None
    later.execute(CONTEXT, 7)

    assert seen == ["one in", "one out"]


def test_without_middleware_the_handler_itself_is_run():
    registry = JobRegistry()
    registry.register_function("jobs.one", handle)

    handler = registry.get("jobs.one")

    assert handler is not None
    assert handler.execute is handle


def test_catalog_carries_middleware_over():
    seen: list[str] = []
    catalog = JobCatalog().middleware(Watching("one", seen)).job("jobs.one", handle)
    catalog.middleware(Watching("two", seen))

    assert run(catalog.to_registry(), 7) == 7
    assert seen == ["one in", "two in", "two out", "one out"]


@pytest.mark.parametrize(
    ("middleware", "handler"), [(OnlySync(), handle_async), (OnlyAsync(), handle)]
)
def test_middleware_that_would_be_left_out_silently_is_refused_in_either_order(
    middleware: JobMiddleware, handler: Any
):
    registry = JobRegistry()
    registry.register_function("jobs.one", handler)
    with pytest.raises(RegistryError) as late:
        registry.add_middleware(middleware)
    early = JobRegistry()
    early.add_middleware(middleware)
    with pytest.raises(RegistryError) as at_once:
        early.register_function("jobs.one", handler)
    with pytest.raises(CatalogError) as in_catalog:
        JobCatalog().middleware(middleware).job("jobs.one", handler)
    with pytest.raises(CatalogError) as added_later:
        JobCatalog().job("jobs.one", handler).middleware(middleware)

    assert late.value.code == at_once.value.code == "registry.invalid_middleware"
    assert in_catalog.value.code == added_later.value.code == "catalog.invalid_middleware"
    assert "jobs.one" in str(late.value)


def test_middleware_with_around_is_never_left_out():
    registry = JobRegistry()
    registry.register_function("jobs.one", handle_async)
    seen: list[str] = []

    registry.add_middleware(AroundAndSync("one", seen))

    run(registry, 7)
    assert seen == ["one in", "one out"]


@pytest.mark.parametrize("thing", [None, JobMiddleware, handle])
def test_what_is_no_middleware_is_refused(thing: Any):
    with pytest.raises(RegistryError) as refused:
        JobRegistry().add_middleware(thing)
    with pytest.raises(CatalogError) as refused_by_catalog:
        JobCatalog().middleware(thing)

    assert refused.value.code == "registry.invalid_middleware"
    assert refused_by_catalog.value.code == "catalog.invalid_middleware"


def test_registry_and_catalog_in_use_take_no_middleware():
    registry, catalog = JobRegistry(), JobCatalog()
    registry.freeze()
    catalog.freeze()

    with pytest.raises(RegistryError) as refused:
        registry.add_middleware(JobMiddleware())
    with pytest.raises(CatalogError) as refused_by_catalog:
        catalog.middleware(JobMiddleware())

    assert refused.value.code == "registry.frozen"
    assert refused_by_catalog.value.code == "catalog.frozen"
