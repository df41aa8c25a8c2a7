"""Typed payloads: a handler that annotates a class gets an instance of it."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from runledger_core import HandlerResult, JobContext, JobFailure, JsonInput, JsonValue

Decode: TypeAlias = Callable[[JsonValue], object]
"""Makes of a stored payload what a handler wants; raises a terminal `JobFailure`."""

_CODE: Final = "job.invalid_payload"
_INSTALL: Final = "pip install 'runledger-runtime[typed]'"
# What msgspec appends to its messages: names of fields, indexes and `[...]`, never values.
_MSGSPEC_PATH: Final = re.compile(r" - at `(\$(?:\.[\w-]+|\[(?:\d+|\.\.\.)\])+)`\Z")
# Names of plain JSON, which are often imported for type checkers only.
_PLAIN_NAMES: Final[dict[str, object]] = {
    "Any": Any,
    "JsonInput": JsonInput,
    "JsonValue": JsonValue,
    "Mapping": collections.abc.Mapping,
    "MutableMapping": collections.abc.MutableMapping,
    "Sequence": collections.abc.Sequence,
}
_POSITIONAL: Final = {
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
}


class UnusableAnnotationError(Exception):
    """Report an annotation that the payload of a handler cannot have; the text says why."""


def payload_decoder(function: Callable[..., object]) -> Decode | None:
    """Return what makes payloads what the second parameter of a handler is annotated with.

    A dataclass, a TypedDict, a msgspec Struct or a pydantic model is decoded, and so is a type made
    of such; names in quotes count as what they name. Anything else means the payload as it is.

    Returns:
        None if the handler takes the payload as it is.

    Raises:
        UnusableAnnotationError: It has a name that cannot be resolved, it cannot be decoded, or
            the extra `[typed]` is missing.
    """
    names = _global_names(function)
    annotation = _resolved(_payload_annotation(function), names)
    models = list(_models(annotation, names, frozenset()))
    if not models:
        return None
    try:
        if any(hasattr(model, "__pydantic_core_schema__") for model in models):
            return _pydantic_decoder(annotation)
        return _msgspec_decoder(annotation)
    except ImportError:
        raise UnusableAnnotationError(
            f"typed payloads need an extra: {_INSTALL}; plain JSON is dict[str, Any]"
        ) from None
    except Exception as error:
        raise UnusableAnnotationError(
            f"no payload can be made a {models[0].__name__}: {type(error).__name__}: {error}"
        ) from error


def decoding(
    execute: Callable[[JobContext, Any], HandlerResult], decode: Decode
) -> Callable[[JobContext, JsonValue], HandlerResult]:
    """Return a `def` handler of stored payloads, made of one of decoded payloads."""
    return lambda context, payload: execute(context, decode(payload))


def decoding_async(
    execute: Callable[[JobContext, Any], Awaitable[HandlerResult]], decode: Decode
) -> Callable[[JobContext, JsonValue], Awaitable[HandlerResult]]:
    """Return an `async def` handler of stored payloads, made of one of decoded payloads."""

    async def run(context: JobContext, payload: JsonValue) -> HandlerResult:
        return await execute(context, decode(payload))

    return run


def _payload_annotation(function: Callable[..., object]) -> object:
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:2]
    except (TypeError, ValueError):
        # Written in C without a signature.
        return None
    if not parameters or parameters[0].kind not in _POSITIONAL:
        return None
    return parameters[0].annotation


def _resolved(annotation: object, names: dict[str, Any]) -> object:
    """Return the annotation with what the names in it stand for."""
    holder = types.SimpleNamespace(__annotations__={"payload": annotation})
    # The module's own names go before those known here; builtins come last.
    known = {**_PLAIN_NAMES, **names}
    try:
        return typing.get_type_hints(holder, names, known, include_extras=True)["payload"]
    except Exception as error:
        raise _unresolved(annotation) from error


def _unresolved(annotation: object) -> UnusableAnnotationError:
    return UnusableAnnotationError(
        f"the payload's annotation {annotation!r} cannot be resolved; its names must be"
        " those of the module, defined before it, and not for type checkers only"
    )


def _global_names(function: Callable[..., object]) -> dict[str, Any]:
    current: Any = function
    while isinstance(current, functools.partial):
        current = cast("functools.partial[object]", current).func
    if not inspect.isroutine(current):
        # An object that is called: its class has the function.
        current = type(current).__call__
    return getattr(inspect.unwrap(current), "__globals__", {})


def _models(annotation: object, names: dict[str, Any], seen: frozenset[object]) -> Generator[type]:
    """Yield the classes in an annotation that payloads are decoded to."""
    if isinstance(annotation, str | typing.ForwardRef):
        # In quotes where hints are not looked for, or in a type that names itself.
        key = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        parts = () if key in seen else (_resolved(annotation, names),)
    else:
        key = id(annotation)
        parts = () if key in seen else _parts(annotation)
    for part in parts:
        yield from _models(part, names, seen | {key})
    if isinstance(annotation, type) and not parts and _is_model(annotation):
        yield annotation


def _parts(annotation: object) -> tuple[object, ...]:
    """Return what an annotation is made of, nothing if it is not made of others."""
    try:
        if hasattr(type(annotation), "__value__"):
            # `type Payload = ...` of Python 3.12, which may name itself.
            return (getattr(annotation, "__value__", None),)
        if isinstance(annotation, typing.NewType):
            return (annotation.__supertype__,)
        if isinstance(annotation, typing.TypeVar):
            return (annotation.__bound__, *annotation.__constraints__)
    except NameError as error:
        raise _unresolved(annotation) from error
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        # Texts that are no names.
        return ()
    if origin is typing.Annotated:
        return arguments[:1]
    return (origin, *arguments) if arguments else ()


def _is_model(kind: type[Any]) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__pydantic_core_schema__")
        # A TypedDict; `typing.is_typeddict` does not know those of typing_extensions.
        or (hasattr(kind, "__total__") and issubclass(kind, dict))
    )


def _msgspec_decoder(annotation: Any) -> Decode:
    import msgspec  # noqa: PLC0415  # of the extra [typed]

    # Refuses what it cannot decode now, and not with the first job.
    msgspec.json.Decoder(annotation)
    for kind in _undecodable(msgspec.inspect.type_info(annotation), set()):
        raise TypeError(f"JSON cannot be decoded to {kind.__name__}")

    def decode(payload: JsonValue) -> object:
        try:
            return msgspec.convert(payload, annotation, str_keys=True)
        except msgspec.ValidationError as error:
            # With a cause the message is the application's own, and may hold values.
            found = None if error.__cause__ else _MSGSPEC_PATH.search(str(error))
            raise _invalid_payload(found[1] if found else "$") from None

    return decode


def _undecodable(info: object, seen: set[int]) -> Generator[type]:
    """Yield the classes that msgspec would leave to a hook, where every payload needs them."""
    import msgspec  # noqa: PLC0415  # of the extra [typed]

    if isinstance(info, tuple):
        for part in cast("tuple[object, ...]", info):
            yield from _undecodable(part, seen)
    elif isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field) and id(info) not in seen:
        seen.add(id(info))
        if getattr(info, "required", True):
            for name in info.__struct_fields__:
                yield from _undecodable(getattr(info, name), seen)


def _pydantic_decoder(annotation: Any) -> Decode:
    import pydantic  # noqa: PLC0415  # of the extra [typed]

    adapter = pydantic.TypeAdapter[object](annotation)

    @functools.cache
    def names() -> frozenset[str]:
        # A type without a schema has no names that are known to be harmless.
        with suppress(Exception):
            return frozenset(_property_names(adapter.json_schema()))
        return frozenset()

    def decode(payload: JsonValue) -> object:
        try:
            # As JSON: a strict model takes a UUID from a string of JSON, not from one of Python.
            return adapter.validate_json(json.dumps(payload))
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            path = [_path_part(part, names()) for part in errors[0]["loc"]]
            raise _invalid_payload("".join(["$", *path])) from None

    return decode


def _property_names(schema: JsonValue) -> Generator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _property_names(part)


def _path_part(part: int | str, names: frozenset[str]) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    # A key of a mapping is data, as values are.
    return f".{part}" if part in names else "[...]"


def _invalid_payload(path: str) -> JobFailure:
    return JobFailure.terminal(_CODE, f"the payload does not fit the handler's type, at {path}")
