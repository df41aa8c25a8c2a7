import copy
import inspect
import math
import pickle
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from unittest.mock import Mock
from uuid import UUID

import pytest

from runledger_core import UNSET, Unset, ValidationError, decode_json, encode_json

MIB = 1_048_576


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    ONE = 1


class Ratio(float, Enum):
    HALF = 0.5


class Pair(tuple, Enum):
    __slots__ = ()

    ONE_TWO = (1, 2)


def lying(base, *methods, answer):
    """Return a subclass that answers falsely whatever is asked by one of these methods."""
    return type(f"Lying{base.__name__}", (base,), dict.fromkeys(methods, lambda *_: answer()))


LyingText = lying(str, "__str__", "__repr__", "encode", "isascii", answer=lambda: "\0")
LyingInt = lying(
    int, "__str__", "__repr__", "__int__", "__index__", "__pos__", "__lt__", answer=lambda: "NaN"
)
LyingFloat = lying(float, "__str__", "__repr__", "__float__", "__pos__", answer=lambda: "Infinity")
LyingDict = lying(
    dict, "items", "keys", "values", "__iter__", answer=lambda: iter([("smuggled", object())])
)
LyingList = lying(list, "__iter__", "copy", answer=lambda: iter([math.nan]))
LyingTuple = lying(tuple, "__iter__", answer=lambda: iter([math.nan]))


@dataclass
class Address:
    street: str


Point = namedtuple("Point", "x y")  # noqa: PYI024  # the untyped kind is accepted too


def encode(value, *, max_bytes=MIB):
    return encode_json(value, field="payload", max_bytes=max_bytes)


def refusal(value, *, max_bytes=MIB):
    with pytest.raises(ValidationError) as caught:
        encode(value, max_bytes=max_bytes)
    return caught.value


def unnamed(_value):
    return "value"


def nested(depth, innermost):
    for _ in range(depth):
        innermost = [innermost]
    return innermost


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (17, "17"),
        (-0.0, "-0.0"),
        (1e22, "1e+22"),
        ("Zoë 🎉", '"Zoë 🎉"'),
        ('\\u0000 "', '"\\\\u0000 \\""'),
        ("\x1f\x7f\u2028", '"\\u001f\x7f\u2028"'),
        ({}, "{}"),
        ((), "[]"),
        ({"a": [1, (2, 3)], "": None}, '{"a":[1,[2,3]],"":null}'),
    ],
)
def test_plain_values_are_encoded_compactly(value, text):
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Color.RED, '"red"'),
        (Level.HIGH, "3"),
        ({Color.RED: Color.RED}, '{"red":"red"}'),
        pytest.param(LyingText("real"), '"real"', id="lying text"),
        ({LyingText("real"): 1}, '{"real":1}'),
        (LyingInt(7), "7"),
        (LyingFloat(0.5), "0.5"),
        (LyingDict(a=1), '{"a":1}'),
        (LyingList([1, 2]), "[1,2]"),
        (LyingTuple((1, 2)), "[1,2]"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(a=1), '{"a":1}'),
        (defaultdict(int, a=1), '{"a":1}'),
        (Counter("aab"), '{"a":2,"b":1}'),
        (
            {"deep": [{"in": (Color.RED, [True, None, 0.5])}]},
            '{"deep":[{"in":["red",[true,null,0.5]]}]}',
        ),
    ],
)
def test_subclasses_are_encoded_by_value(value, text):
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
        (date(2026, 1, 1), "date"),
        (timedelta(seconds=1), "timedelta"),
        (UUID(int=1), "UUID"),
        (Decimal(1), "Decimal"),
        (b"bytes", "bytes"),
        (bytearray(b"x"), "bytearray"),
        ({1}, "set"),
        (frozenset({1}), "frozenset"),
        (Plain.ONE, "Plain"),
        (Ratio.HALF, "Ratio"),
        (Pair.ONE_TWO, "Pair"),
        (Address("x"), "Address"),
        (MappingProxyType({}), "mappingproxy"),
        ((n for n in [1]), "generator"),
        ({}.keys(), "dict_keys"),
        (range(3), "range"),
        (1j, "complex"),
        (len, "builtin_function_or_method"),
        (threading.Lock(), "lock"),
        (object, "type"),
        pytest.param(Mock(spec=dict), "Mock", id="mock"),
        (UNSET, "Unset"),
    ],
)
def test_other_types_are_refused_with_path_and_type(value, name):
    error = refusal({"items": [0, {"when": value}]})

    assert error.code == "input.json_unsupported_type"
    assert error.field == "payload.items[1].when"
    assert error.client_message == (
        f"payload.items[1].when is of type {name}, which JSON cannot hold; "
        "use str, int, float, bool, None, list, tuple or dict"
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, LyingFloat("nan")])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda n: n, "payload"),
        (lambda n: {"a": [[n]]}, "payload.a[0][0]"),
        (lambda n: (1, {"b c": n}), 'payload[1]["b c"]'),
    ],
)
def test_numbers_that_are_not_finite_are_refused(number, wrap, path):
    error = refusal(wrap(number))

    assert error.code == "input.json_not_finite"
    assert error.client_message == f"{path} is not a finite number"


@pytest.mark.parametrize("text", ["\0", "secret\0", "\ud800", "\udfff secret", "é\udc80"])
@pytest.mark.parametrize(
    ("wrap", "path", "problem"),
    [
        (lambda t: t, "payload", "contains"),
        (lambda t: {"a": [t]}, "payload.a[0]", "contains"),
        (lambda t: {"a": {t: 1}}, "payload.a", "has a key that contains"),
        (lambda t: [[LyingText(t)]], "payload[0][0]", "contains"),
    ],
)
def test_text_that_postgresql_refuses_is_refused(text, wrap, path, problem):
    error = refusal(wrap(text))

    assert error.code == "input.json_invalid_text"
    assert error.client_message == f"{path} {problem} NUL or a lone surrogate"
    assert "secret" not in str(error) + repr(error)


@pytest.mark.parametrize(
    ("key", "name"),
    [(1, "int"), (None, "NoneType"), (True, "bool"), (1.5, "float"), ((1,), "tuple")],
)
def test_keys_other_than_text_are_refused(key, name):
    error = refusal({"a": [{"fine": 1, key: 2}]})

    assert error.code == "input.json_invalid_key"
    assert (
        error.client_message
        == f"payload.a[0] has a key of type {name}; keys of JSON objects are str"
    )


@pytest.mark.parametrize("innermost", [1, [], {}, Color.RED])
def test_depth_is_limited(innermost):
    levels = 199 if innermost in ([], {}) else 200

    assert encode(nested(levels, innermost)).startswith("[" * 199)
    error = refusal(nested(levels + 1, innermost))

    assert error.code == "input.json_too_deep"
    assert error.client_message.endswith(" is nested deeper than 200 levels")


def test_values_far_deeper_than_the_stack_are_refused():
    assert refusal(nested(100_000, 1)).code == "input.json_too_deep"


@pytest.mark.parametrize("width", [1, 2, 1_000])
def test_cycles_end_in_the_depth_error(width):
    items: list[object] = []
    items.extend([items] * width)
    mapping: dict[str, object] = {}
    mapping["self"] = {"items": [mapping]}

    assert refusal(items).code == "input.json_too_deep"
    error = refusal(mapping)

    assert error.code == "input.json_too_deep"
    assert error.field is not None
    assert error.field.startswith("payload.self.items[0].self.items[0]")
    assert len(error.field) <= 203


def test_parts_shared_a_billion_times_are_refused_quickly():
    value: object = "lol"
    for _ in range(30):
        value = [value, value]

    assert refusal(value).code == "input.json_too_large"


def test_shared_text_is_refused_before_it_is_multiplied():
    assert refusal(["x" * 1_000_000] * 10_000).code == "input.json_too_large"


@pytest.mark.parametrize("number", [10**4300 - 1, -(10**4300) + 1], ids=unnamed)
def test_the_longest_integers_are_encoded(number):
    assert decode_json(encode(number)) == number


@pytest.mark.parametrize(
    "number", [10**4300, -(10**4300), LyingInt(10**4300), 1 << 1_000_000], ids=unnamed
)
def test_longer_integers_are_refused(number):
    error = refusal([number])

    assert error.code == "input.json_number_too_long"
    assert error.client_message == "payload[0] has more than 4300 digits"


@pytest.mark.parametrize(("digits", "longest"), [(0, 4300), (640, 640)])
def test_integers_are_bounded_whatever_the_interpreter_allows(digits, longest):
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        encode(10**longest - 1)
        error = refusal(10**longest)
    finally:
        sys.set_int_max_str_digits(before)

    assert error.code == "input.json_number_too_long"


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("x" * 98, 100),
        ("é" * 49, 100),
        (["🎉"] * 14 + ["x"], 103),
        ("\n" * 49, 100),
        (Color.RED, 5),
    ],
)
def test_size_is_counted_in_utf8_bytes_of_the_text(value, size):
    assert len(encode(value, max_bytes=size).encode()) == size
    error = refusal(value, max_bytes=size - 1)

    assert error.code == "input.json_too_large"
    assert error.field == "payload"
    assert error.client_message == f"payload is larger than {size - 1} bytes of JSON"


def test_paths_quote_odd_keys_and_cut_long_ones():
    error = refusal({"a.b\n": {"k" * 100: {"ä": math.nan}}})

    assert error.field == 'payload["a.b\\n"]["' + "k" * 40 + '..."]["\\u00e4"]'


def test_deep_calls_end_in_the_depth_error():
    value = nested(190, 1)
    limit = sys.getrecursionlimit()

    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        outcome = encode(value)
    except ValidationError as error:
        outcome = error.code
    finally:
        sys.setrecursionlimit(limit)

    # From 3.12 on the encoder does not use up the stack of Python calls.
    assert outcome in {"input.json_too_deep", encode(value)}


@pytest.mark.parametrize(
    ("text", "value"),
    [("null", None), (' {"a":[1,2.5,"x"]} ', {"a": [1, 2.5, "x"]}), ('{"a":1,"a":2}', {"a": 2})],
)
def test_decoding_returns_plain_values(text, value):
    assert decode_json(text) == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "input.json_malformed"),
        ("{'a':1}", "input.json_malformed"),
        ('"secret', "input.json_malformed"),
        ("1 2", "input.json_malformed"),
        ("\ufeff1", "input.json_malformed"),
        ("NaN", "input.json_not_finite"),
        ("[-Infinity]", "input.json_not_finite"),
        ("[1e400]", "input.json_not_finite"),
        pytest.param("1" * 4301, "input.json_number_too_long", id="4301 digits"),
        pytest.param("[" * 100_000, "input.json_too_deep", id="100000 levels"),
        (b"1", "input.wrong_type"),
        (None, "input.wrong_type"),
    ],
)
def test_text_that_cannot_be_decoded_is_refused(text, code):
    with pytest.raises(ValidationError) as caught:
        decode_json(text, field="--payload")

    assert caught.value.code == code
    assert caught.value.field == "--payload"
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_unset_is_one_object_with_a_short_name():
    assert repr(UNSET) == "UNSET"
    assert Unset("UNSET") is UNSET
    assert pickle.loads(pickle.dumps(UNSET)) is UNSET  # our own bytes
    assert copy.deepcopy(UNSET) is UNSET
