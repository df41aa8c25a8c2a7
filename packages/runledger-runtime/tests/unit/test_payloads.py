"""Payloads become what handlers annotate, or a terminal failure that shows nothing of them."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import datetime as dt
import functools
import subprocess
import sys
import uuid
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    cast,
)

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
import typing_extensions

from runledger_core import JobFailure, JobFailureKind, JsonValue
from runledger_runtime import JobCatalog
from runledger_runtime.errors import CatalogError, RegistryError
from runledger_runtime.registry import JobRegistry

if TYPE_CHECKING:
    from decimal import Decimal  # for the type checker only: that is the case

CONTEXT: Any = object()
WHEN = "2026-01-02T03:04:05Z"
ID = "00000000-0000-0000-0000-000000000007"
SHOWN = "the-customers-own"


@dataclasses.dataclass
class Line:
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    lines: list[Line]
    notes: dict[str, int] = dataclasses.field(default_factory=dict)


class OrderDict(TypedDict):
    id: uuid.UUID
    lines: list[Line]


class OrderDictOfExtensions(typing_extensions.TypedDict):
    id: uuid.UUID
    count: typing_extensions.NotRequired[int]


class OrderStruct(msgspec.Struct):
    id: uuid.UUID
    at: dt.datetime


class Inner(pydantic.BaseModel):
    sku: str


class OrderModel(pydantic.BaseModel):
    id: uuid.UUID
    inner: Inner | None = None
    notes: dict[str, int] = {}


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: uuid.UUID


@pydantic.dataclasses.dataclass
class ValidatedLine:
    sku: str
    count: pydantic.PositiveInt = 1


@dataclasses.dataclass
class Checked:
    name: str

    def __post_init__(self) -> None:
        if self.name != "good":
            raise ValueError(self.name)


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


def registered(handler: Any) -> Any:
    registry = JobRegistry()
    registry.register_function("jobs.one", handler)
    bound = registry.get("jobs.one")
    assert bound is not None
    return bound


def received(annotation: Any, payload: JsonValue) -> Any:
    """Return what a handler gets whose payload has this annotation."""
    seen: list[object] = []

    def handler(context, payload):
        seen.append(payload)

    handler.__annotations__["payload"] = annotation
    registered(handler).execute(CONTEXT, payload)
    return seen[0]


def refused(annotation: Any, payload: JsonValue) -> str:
    """Return the message of the failure that such a handler ends in."""
    with pytest.raises(JobFailure) as failed:
        received(annotation, payload)
    failure = failed.value
    assert (failure.kind, failure.code) == (JobFailureKind.TERMINAL, "job.invalid_payload")
    assert SHOWN not in failure.message
    return failure.message


def test_dataclass_is_made_with_the_types_of_its_fields():
    order = received(Order, {"id": ID, "lines": [{"sku": "a"}], "notes": {"x": 1}})

    assert order == Order(uuid.UUID(ID), [Line("a")], {"x": 1})


def test_typed_dict_is_made_with_the_types_of_its_fields():
    assert received(OrderDict, {"id": ID, "lines": []}) == {"id": uuid.UUID(ID), "lines": []}
    assert received(OrderDictOfExtensions, {"id": ID}) == {"id": uuid.UUID(ID)}


def test_struct_is_made():
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

    assert received(OrderStruct, {"id": ID, "at": WHEN}) == OrderStruct(uuid.UUID(ID), at)


def test_struct_that_names_itself_is_made():
    assert received(Tree, {"value": 1, "children": [{"value": 2}]}) == Tree(1, [Tree(2)])


def test_pydantic_model_is_made_from_json():
    assert received(OrderModel, {"id": ID}) == OrderModel(id=uuid.UUID(ID))
    # A strict model takes a UUID from a string of JSON, though not from one of Python.
    assert received(StrictModel, {"id": ID}) == StrictModel(id=uuid.UUID(ID))


def test_pydantic_dataclass_is_validated_by_pydantic():
    assert received(ValidatedLine, {"sku": "a", "count": 2}) == ValidatedLine("a", 2)
    assert refused(ValidatedLine, {"sku": "a", "count": -1}).endswith("at $.count")


@pytest.mark.parametrize(
    "annotation", [list[Line], Annotated[list[Line], "lines"], list[Line] | None]
)
def test_type_that_is_made_of_models_is_decoded(annotation: Any):
    assert received(annotation, [{"sku": "a", "count": 2}]) == [Line("a", 2)]


LineId = NewType("LineId", Line)
QuotedLineId = NewType("QuotedLineId", "Line")
LineT = TypeVar("LineT", bound=Line)


@pytest.mark.parametrize(
    "annotation",
    [
        Optional["Line"],
        "Optional['Line']",
        Annotated["Line", "a line"],
        LineId,
        "LineId",
        Optional[LineId],  # noqa: UP045  # as users write it
        LineT,
    ],
)
def test_model_behind_another_name_is_decoded(annotation: Any):
    assert received(annotation, {"sku": "a"}) == Line("a")


@pytest.mark.parametrize(
    "annotation", [list["Line"], list["LineId"], "list['Line']", "list[LineT]"]
)
def test_list_of_models_behind_other_names_is_decoded(annotation: Any):
    assert received(annotation, [{"sku": "a"}]) == [Line("a")]


def test_mapping_to_a_quoted_model_is_decoded():
    assert received(dict[str, "Inner"], {"x": {"sku": "a"}}) == {"x": Inner(sku="a")}


@pytest.mark.parametrize(
    "annotation",
    [
        list["Decimal"],
        Optional["Decimal"],
        "dict[str, 'Decimal']",
        NewType("N", "Decimal"),
        TypeVar("T", bound="Decimal"),
    ],
)
def test_name_inside_of_an_annotation_that_cannot_be_resolved_is_refused(annotation: Any):
    with pytest.raises(RegistryError) as failed:
        received(annotation, {})

    assert failed.value.code == "registry.unusable_payload_annotation"
    assert "Decimal" in failed.value.client_message


def test_name_that_no_decoder_would_find_is_refused_at_registration():
    with pytest.raises(RegistryError) as failed:
        received(QuotedLineId, {})

    assert failed.value.code == "registry.unusable_payload_annotation"


@pytest.mark.parametrize(
    "annotation",
    [
        list[Literal["Decimal", "Line"]],
        "Literal['Line']",
        Annotated[str, "Line"],
        NewType("Name", str),
        TypeVar("T"),
        "list[JsonValue]",
        dict[str, "JsonValue"],
        list["JsonValue"],
    ],
)
def test_texts_that_are_no_names_and_other_plain_types_get_the_payload_itself(annotation: Any):
    payload: JsonValue = ["Line"]

    assert received(annotation, payload) is payload


def test_list_of_pydantic_models_is_decoded():
    assert received(list[Inner], [{"sku": "a"}]) == [Inner(sku="a")]


@pytest.mark.parametrize("annotation", [Order, OrderDict, OrderModel])
def test_unknown_fields_are_accepted(annotation: Any):
    received(annotation, {"id": ID, "lines": [], "added_in_version_2": True})


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        dict,
        dict[str, Any],
        dict[str, int],
        list,
        JsonValue,
        str,
        "dict[str, Any]",
        "JsonValue",
        "Any",
        "Mapping[str, Any]",
        "object",
    ],
)
def test_plain_annotation_gets_the_payload_itself(annotation: Any):
    payload: JsonValue = {"any": ["thing"]}

    assert received(annotation, payload) is payload


def test_handler_without_annotation_is_run_as_it_is():
    def handler(context, payload):
        return None

    assert registered(handler).execute is handler


def annotated(context: object, payload: Line) -> None:
    seen.append(payload)


class AnnotatedObject:
    job_type = "jobs.one"

    def execute(self, context: Any, payload: Line) -> None:
        seen.append(payload)


class AnnotatedCallable:
    def __call__(self, context: Any, payload: Line) -> None:
        seen.append(payload)


@functools.wraps(annotated)
def wrapping(*arguments: Any) -> None:
    annotated(*arguments)


async def annotated_async(context: Any, payload: Line) -> None:
    await asyncio.sleep(0)
    seen.append(payload)


seen: list[object] = []


@pytest.mark.parametrize(
    "handler",
    [
        annotated,
        AnnotatedObject().execute,
        AnnotatedCallable(),
        functools.partial(annotated),
        wrapping,
        annotated_async,
    ],
)
def test_annotation_is_found_on_every_kind_of_handler(handler: Any):
    seen.clear()
    bound = registered(handler)

    result = bound.execute(CONTEXT, {"sku": "a"})
    if bound.is_async:
        asyncio.run(cast("Any", result))

    assert seen == [Line("a")]


def test_object_with_a_hook_has_the_hook_unchanged():
    class WithHook(AnnotatedObject):
        def on_dead_letter(self, context, payload, info):
            raised.append(payload)

    raised: list[object] = []
    registry = JobRegistry()
    registry.register(WithHook())
    bound = registry.get("jobs.one")
    assert bound is not None
    assert bound.on_dead_letter is not None

    bound.on_dead_letter(CONTEXT, {"sku": 5}, cast("Any", None))

    assert raised == [{"sku": 5}]


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        (Order, {"id": SHOWN, "lines": []}, "$.id"),
        (Order, {"id": ID, "lines": [{"sku": "a"}, {"sku": SHOWN, "count": SHOWN}]}, None),
        (Order, {"id": ID, "lines": [], "notes": {SHOWN: SHOWN}}, "$.notes[...]"),
        (Order, {"id": ID}, "$"),
        (Order, SHOWN, "$"),
        (Checked, {"name": SHOWN}, "$"),
        (list[Checked], [{"name": SHOWN}], "$"),
        (OrderModel, {"id": SHOWN}, "$.id"),
        (OrderModel, {"id": ID, "inner": {"sku": 5}}, "$.inner.sku"),
        (OrderModel, {"id": ID, "notes": {SHOWN: SHOWN}}, "$.notes[...]"),
        (OrderModel, [SHOWN], "$"),
        (list[Inner], [{"sku": "a"}, {"sku": [SHOWN]}], "$[1].sku"),
    ],
)
def test_payload_that_does_not_fit_is_terminal_and_not_shown(
    annotation: Any, payload: JsonValue, path: str | None
):
    expected = "$.lines[1].count" if path is None else path

    assert refused(annotation, payload) == (
        f"the payload does not fit the handler's type, at {expected}"
    )


def test_fault_of_the_application_in_its_own_class_is_not_the_payloads():
    @dataclasses.dataclass
    class Faulty:
        name: str

        def __post_init__(self) -> None:
            raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        received(Faulty, {"name": "a"})


@pytest.mark.parametrize("annotation", ["Decimal", "NoSuchName", "list[", "Line.nothing"])
def test_annotation_that_cannot_be_resolved_is_refused_at_registration(annotation: str):
    with pytest.raises(RegistryError) as failed:
        received(annotation, {})

    assert failed.value.code == "registry.unusable_payload_annotation"
    assert annotation in failed.value.client_message


class Opaque:
    """No type of JSON."""


@dataclasses.dataclass
class WithOpaque:
    inner: Opaque


@dataclasses.dataclass
class WithOwnOpaque:
    number: int
    inner: Opaque | None = None
    owner: WithOwnOpaque | None = None


@pytest.mark.parametrize("annotation", [WithOpaque, list[WithOpaque]])
def test_type_with_a_part_that_no_payload_can_have_is_refused_at_registration(annotation: Any):
    with pytest.raises(RegistryError) as failed:
        received(annotation, {})

    assert failed.value.code == "registry.unusable_payload_annotation"
    assert "JSON cannot be decoded to Opaque" in failed.value.client_message


def test_part_that_a_payload_may_leave_out_can_be_of_any_type():
    payload = {"number": 1, "owner": {"number": 2}}

    assert received(WithOwnOpaque, payload) == WithOwnOpaque(1, owner=WithOwnOpaque(2))


def test_type_that_cannot_be_decoded_is_refused_at_registration():
    with pytest.raises(RegistryError) as failed:
        # Nothing in the JSON would tell one from the other.
        received(Line | Order, {})

    assert failed.value.code == "registry.unusable_payload_annotation"
    assert "Line" in failed.value.client_message


@pytest.mark.parametrize("annotation", [Line, OrderDict, OrderStruct, OrderModel])
def test_missing_extra_is_refused_at_registration_with_the_command(
    annotation: Any, monkeypatch: pytest.MonkeyPatch
):
    real_import = builtins.__import__

    def refuse_import(name: str, *arguments: Any) -> Any:
        if name in {"msgspec", "pydantic"}:
            raise ModuleNotFoundError(name)
        return real_import(name, *arguments)

    def handler(context, payload):
        return None

    handler.__annotations__["payload"] = annotation
    monkeypatch.setattr(builtins, "__import__", refuse_import)
    with pytest.raises(CatalogError) as failed:
        JobCatalog().job("jobs.one", handler)

    assert failed.value.code == "catalog.unusable_payload_annotation"
    assert "pip install 'runledger-runtime[typed]'" in failed.value.client_message


def test_worker_without_typed_handlers_loads_neither_library():
    program = (
        "import sys; from runledger_runtime import JobCatalog, Supervisor;"
        "JobCatalog().job('jobs.one', lambda context, payload: None);"
        "print(sorted({'msgspec', 'pydantic'} & set(sys.modules)))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ended.stdout == "[]\n"
