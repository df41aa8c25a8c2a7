from __future__ import annotations

import pytest

from runledger_runtime.worker._traceback import describe_exception

MOST_BYTES = 32_768


def raised(error: BaseException, *, cause: BaseException | None = None) -> BaseException:
    """Return the exception with a traceback."""
    try:
        raise error from cause  # noqa: TRY301  # to have its traceback
    except BaseException as caught:  # noqa: BLE001  # whatever it is
        return caught


def raised_deep(
    error: BaseException, level: int, cause: BaseException | None = None
) -> BaseException:
    """Return the exception, raised so many frames down."""

    def deep(left: int) -> None:
        if left == 0:
            raise error from cause
        deep(left - 1)

    try:
        deep(level)
    except BaseException as caught:  # noqa: BLE001  # whatever it is
        return caught
    raise AssertionError


def test_first_and_last_frames_are_told_and_how_many_are_between():
    lines = describe_exception(raised_deep(ValueError("bottom"), 100)).splitlines()

    assert lines[20] == "  ... 62 frames ..."
    assert lines[0].endswith("in raised_deep")
    assert [line.endswith("in deep") for line in lines[21:41]] == [True] * 20
    # The frame that raised stands at another line than those that called on.
    assert lines[40] != lines[39] == lines[21]
    assert lines[41:] == ["ValueError: bottom"]


def test_causes_come_before_what_they_led_to():
    first = raised(ValueError("first"))
    try:
        try:
            raise LookupError("second") from first  # noqa: TRY301  # to have its traceback
        except LookupError:
            raise KeyError("third")  # noqa: B904  # its context is what is tested
    except KeyError as error:
        text = describe_exception(error)

    places = [text.index(name) for name in ("ValueError: first", "LookupError: second", "KeyError")]
    assert places == sorted(places)
    assert text.count("\n\nThe above exception led to this one:\n\n") == 2


def test_exception_raised_last_is_kept_before_its_causes():
    error = raised_deep(ValueError("0" * 10_000), 60)
    for number in range(1, 20):
        error = raised_deep(ValueError(f"{number} {'x' * 10_000}"), 60, cause=error)

    text = describe_exception(error)

    assert len(text.encode()) <= MOST_BYTES
    earlier, _, last = text.rpartition("in deep\nValueError: ")
    assert last.startswith("19 ")
    assert "ValueError: 18 " in earlier
    assert "ValueError: 0" not in text


def test_members_of_a_group_are_told_with_their_causes():
    members = [
        raised(ValueError("one")),
        raised(LookupError("two"), cause=raised(OSError("why"))),
    ]

    text = describe_exception(raised(BaseExceptionGroup("both", [*members])))

    assert text.splitlines()[-1] == "ExceptionGroup: both (2 sub-exceptions)"
    for told in ("ValueError: one", "LookupError: two", "OSError: why"):
        assert told in text
    assert "The above exception is 1 of 2 in a group:" in text
    assert "The above exception is 2 of 2 in a group:" in text


def test_first_members_of_a_large_group_are_told():
    group = BaseExceptionGroup("many", [raised(ValueError(f"number {n}")) for n in range(1_000)])

    text = describe_exception(raised(group))

    assert "ValueError: number 0\n" in text
    assert "is 7 of 1000 in a group" in text
    assert "is 8 of 1000 in a group" not in text


def test_notes_are_told_behind_the_text():
    error = ValueError("no")
    error.add_note("while reading page 3")

    assert describe_exception(error) == "ValueError: no\nwhile reading page 3"


@pytest.mark.parametrize("name", ["__notes__", "__cause__"])
def test_attribute_that_raises_costs_no_more_than_itself(name: str):
    def fail(_error: BaseException) -> None:
        raise LookupError("secret")

    awkward = type("AwkwardError", (Exception,), {name: property(fail)})

    text = describe_exception(raised(awkward("no")))

    assert "LookupError while the traceback was taken" in text
    assert "secret" not in text


def test_exception_that_is_its_own_cause_is_told_once():
    error = raised(ValueError("round"))
    other = raised(LookupError("about"), cause=error)
    error.__cause__ = other

    assert describe_exception(error).count("ValueError: round") == 1
