import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from unittest.mock import Mock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runledger_core import (
    JobStage,
    JobStatus,
    ValidationError,
    check_bool,
    check_choice,
    check_instant,
    check_int,
    check_text,
    check_uuid,
    sanitize_text,
)
from runledger_core._kinds import type_name


class LyingText(str):
    __slots__ = ()

    def __str__(self):
        return "lie"

    def __getitem__(self, key):
        return "lie"


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    ONE = "one"


class LateDatetime(datetime):
    def utcoffset(self):
        return None


class NoOffset(tzinfo):
    def utcoffset(self, dt):
        return None


class BadOffset(tzinfo):
    def utcoffset(self, dt):
        return timedelta(days=2)


def raiser(exception):
    return type("Unprintable", (), {"__str__": lambda _: raise_it(exception)})()


def raise_it(exception):
    raise exception


NotText = type("NotText", (), {"__str__": lambda _: 5})
FakeClass = type("FakeClass", (), {"__class__": property(lambda _: raise_it(RuntimeError()))})
NamelessMeta = type(
    "NamelessMeta", (type,), {"__name__": property(lambda _: raise_it(KeyboardInterrupt()))}
)
Nameless = NamelessMeta("Nameless", (), {"__str__": lambda _: raise_it(MemoryError())})


def refusal(check, value, **options):
    with pytest.raises(ValidationError) as caught:
        check(value, field="reason", **options)
    assert caught.value.field == "reason"
    return caught.value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (" a ", " a "),
        (LyingText("real"), "real"),
        (Name.ONE, "one"),
        ("\u200b", "\u200b"),
    ],
)
def test_text_is_returned_plain(value, text):
    checked = check_text(value, field="reason")

    assert type(checked) is str
    assert checked == text


@pytest.mark.parametrize(
    ("value", "options", "code", "message"),
    [
        (5, {}, "input.wrong_type", "reason must be text, not int"),
        (None, {}, "input.wrong_type", "reason must be text, not NoneType"),
        (b"a", {}, "input.wrong_type", "reason must be text, not bytes"),
        pytest.param(
            Mock(spec=str), {}, "input.wrong_type", "reason must be text, not Mock", id="mock"
        ),
        ("", {}, "input.blank", "reason must not be blank"),
        (" \t\n\u3000\u00a0", {}, "input.blank", "reason must not be blank"),
        ("ab", {"max_characters": 1}, "input.too_long", "reason is longer than 1 characters"),
        ("éé", {"max_bytes": 3}, "input.too_long", "reason is longer than 3 bytes in UTF-8"),
        ("a\0", {}, "input.invalid_characters", "reason contains NUL or a lone surrogate"),
        ("\ud800", {}, "input.invalid_characters", "reason contains NUL or a lone surrogate"),
        (
            "\ud800",
            {"max_bytes": 9},
            "input.invalid_characters",
            "reason contains NUL or a lone surrogate",
        ),
    ],
)
def test_text_is_refused(value, options, code, message):
    error = refusal(check_text, value, **options)

    assert error.code == code
    assert error.client_message == message


def test_bounds_of_text_are_inclusive():
    assert check_text("éé", field="reason", max_characters=2, max_bytes=4) == "éé"


def test_blank_text_is_allowed_on_request():
    assert check_text("", field="reason", allow_blank=True) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\0b\ud800", "a\ufffdb\ufffd"),
        (LyingText("real"), "real"),
        (None, "None"),
        (ValueError("no\0pe"), "no\ufffdpe"),
        pytest.param(raiser(ValueError("x")), "<Unprintable without text>", id="ValueError"),
        pytest.param(raiser(SystemExit(1)), "<Unprintable without text>", id="SystemExit"),
        pytest.param(raiser(RecursionError()), "<Unprintable without text>", id="RecursionError"),
        pytest.param(NotText(), "<NotText without text>", id="not text"),
        pytest.param(FakeClass(), None, id="false class"),
        pytest.param(Nameless(), "<object without text>", id="nameless"),
        pytest.param(
            type("\u00c4pfel", (), {"__str__": None})(), "<\u00c4pfel without text>", id="umlaut"
        ),
    ],
)
def test_sanitizing_takes_any_object(value, text):
    sanitized = sanitize_text(value, max_bytes=100)

    assert text is None or sanitized == text


@pytest.mark.parametrize(
    ("text", "max_bytes", "expected"),
    [
        ("a" * 20, 20, "a" * 20),
        ("a" * 21, 20, "a" * 11 + "… [cut]"),
        ("é" * 20, 20, "é" * 5 + "… [cut]"),
        ("é" * 10, 20, "é" * 10),
        ("🎉" * 6, 20, "🎉" * 2 + "… [cut]"),
        ("\0" * 8, 20, "\ufffd" * 3 + "… [cut]"),
        ("a" * 20, 9, "… [cut]"),
        ("a" * 20, 8, "a" * 8),
        ("é" * 20, 3, "é"),
        ("a", 0, ""),
        ("a", -1, ""),
    ],
)
def test_long_text_is_cut_on_a_character_boundary(text, max_bytes, expected):
    assert sanitize_text(text, max_bytes=max_bytes) == expected


def test_huge_text_costs_no_more_than_what_is_kept():
    sanitized = sanitize_text(ValueError("é" * 25_000_000), max_bytes=8192)

    assert len(sanitized.encode()) <= 8192
    assert sanitized.endswith("é… [cut]")


@given(st.text(st.characters()), st.integers(0, 60))
def test_sanitized_text_is_storable_bounded_and_stable(text, max_bytes):
    sanitized = sanitize_text(text, max_bytes=max_bytes)

    assert len(sanitized.encode()) <= max_bytes
    assert "\0" not in sanitized
    assert sanitize_text(sanitized, max_bytes=max_bytes) == sanitized


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_storable_text_that_fits_is_kept(text):
    assert sanitize_text(text, max_bytes=len(text.encode())) == text


@pytest.mark.parametrize(("value", "number"), [(1, 1), (9, 9), (Level.HIGH, 3)])
def test_integers_within_bounds_are_returned_plain(value, number):
    checked = check_int(value, field="reason", minimum=1, maximum=9)

    assert type(checked) is int
    assert checked == number


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "input.out_of_range"),
        (10, "input.out_of_range"),
        pytest.param(10**5000, "input.out_of_range", id="5001 digits"),
        (True, "input.wrong_type"),
        (1.0, "input.wrong_type"),
        ("1", "input.wrong_type"),
        (None, "input.wrong_type"),
    ],
)
def test_other_integers_are_refused(value, code):
    assert refusal(check_int, value, minimum=1, maximum=9).code == code


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_only_booleans_are_booleans(value):
    assert check_bool(value=False, field="reason") is False
    assert refusal(check_bool, value).client_message.startswith("reason must be True or False")


def test_instants_are_returned_in_utc():
    paris = timezone(timedelta(hours=2))

    checked = check_instant(datetime(2026, 7, 1, 2, 0, 0, 5, tzinfo=paris), field="reason")

    assert checked == datetime(2026, 7, 1, 0, 0, 0, 5, tzinfo=UTC)
    assert checked.tzinfo is UTC


def test_instants_of_subclasses_count_by_their_fields():
    checked = check_instant(LateDatetime(2026, 7, 1, tzinfo=UTC), field="reason")

    assert type(checked) is datetime
    assert checked == datetime(2026, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (datetime(2026, 7, 1), "input.naive_timestamp"),  # noqa: DTZ001  # the mistake
        (datetime(2026, 7, 1, tzinfo=NoOffset()), "input.naive_timestamp"),
        (datetime(2026, 7, 1, tzinfo=BadOffset()), "input.out_of_range"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "input.out_of_range"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "input.out_of_range"),
        (datetime(2026, 7, 1).date(), "input.wrong_type"),  # noqa: DTZ001  # the mistake
        ("2026-07-01T00:00:00Z", "input.wrong_type"),
        (0, "input.wrong_type"),
    ],
)
def test_other_instants_are_refused(value, code):
    assert refusal(check_instant, value).code == code


def test_uuids_are_returned_plain():
    class OtherUUID(UUID):
        pass

    checked = check_uuid(OtherUUID(int=5), field="reason")

    assert type(checked) is UUID
    assert checked == UUID(int=5)
    assert refusal(check_uuid, str(checked)).code == "input.wrong_type"


@pytest.mark.parametrize("value", [JobStage.QUEUED, "queued", LyingText("queued")])
def test_choices_are_members_or_their_text(value):
    assert check_choice(value, field="reason", choices=JobStage) is JobStage.QUEUED


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (
            "QUEUED",
            "input.out_of_range",
            "reason must be one of queued, scheduled, running, completed",
        ),
        (
            JobStatus.PENDING,
            "input.out_of_range",
            "reason must be one of queued, scheduled, running, completed",
        ),
        (None, "input.wrong_type", "reason must be a JobStage, not NoneType"),
    ],
)
def test_other_choices_are_refused(value, code, message):
    error = refusal(check_choice, value, choices=JobStage)

    assert error.code == code
    assert error.client_message == message


def test_names_of_types_are_bounded_and_printable():
    odd = type("n" * 200, (), {})
    odd_surrogate = type("n", (), {})
    odd_surrogate.__name__ = "\u00e4x"

    assert type_name(odd()) == "n" * 80
    assert type_name(odd_surrogate()) == "\u00e4x"
    assert type_name(sys) == "module"
