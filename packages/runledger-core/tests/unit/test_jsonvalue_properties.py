import json
import math

from hypothesis import given
from hypothesis import strategies as st

from runledger_core import RunledgerError, decode_json, encode_json
from runledger_core._json_copy import copy_plain

MIB = 1_048_576

storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(storable_text, inner)
    ),
    max_leaves=30,
)
anything = st.recursive(
    scalars | st.floats() | st.text(st.characters()) | st.binary() | st.datetimes() | st.uuids(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers(), inner)
        | st.sets(st.integers())
    ),
    max_leaves=30,
)


def as_it_comes_back(value):
    """Return the documented equal: tuples are lists."""
    if isinstance(value, list | tuple):
        return [as_it_comes_back(item) for item in value]
    if isinstance(value, dict):
        return {key: as_it_comes_back(item) for key, item in value.items()}
    return value


@given(values)
def test_values_come_back_equal_but_tuples_as_lists(value):
    text = encode_json(value, field="payload", max_bytes=MIB)

    decoded = decode_json(text)

    assert decoded == as_it_comes_back(value)
    assert encode_json(decoded, field="payload", max_bytes=MIB) == text


@given(values)
def test_the_quick_and_the_careful_way_agree(value):
    text = encode_json(value, field="payload", max_bytes=MIB)

    copied = copy_plain(value, field="payload", max_bytes=MIB)

    assert copied == as_it_comes_back(value)
    assert text == json.dumps(copied, ensure_ascii=False, separators=(",", ":"))


def outcome(function, *args, **options):
    try:
        return function(*args, **options)
    except RunledgerError as error:
        return error


@given(anything)
def test_anything_is_either_refused_with_a_code_or_storable(value):
    text = outcome(encode_json, value, field="payload", max_bytes=MIB)

    if isinstance(text, RunledgerError):
        assert text.code.startswith("input.json_")
        assert str(text.field).startswith("payload")
    else:
        assert text.encode()
        assert all(is_storable(node) for node in nodes(decode_json(text)))


@given(st.text(st.characters()) | st.text('[]{}":,0123456789.eE+-\\u NaIfinty', max_size=30))
def test_any_text_is_either_decoded_or_refused_with_a_code(text):
    value = outcome(decode_json, text)

    if isinstance(value, RunledgerError):
        assert value.code.startswith("input.json_")
    else:
        assert json.loads(text) == value


def nodes(value):
    yield value
    children = (
        value.items() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    for child in children:
        for part in child if isinstance(child, tuple) else (child,):
            yield from nodes(part)


def is_storable(node):
    if isinstance(node, str):
        return "\0" not in node and node.encode() is not None
    return not isinstance(node, float) or math.isfinite(node)
