"""Stable codes of the errors that this distribution raises or stores itself."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

INPUT_BLANK: Final = "input.blank"
INPUT_INVALID_CHARACTERS: Final = "input.invalid_characters"
INPUT_JSON_INVALID_KEY: Final = "input.json_invalid_key"
INPUT_JSON_INVALID_TEXT: Final = "input.json_invalid_text"
INPUT_JSON_MALFORMED: Final = "input.json_malformed"
INPUT_JSON_NOT_FINITE: Final = "input.json_not_finite"
INPUT_JSON_NUMBER_TOO_LONG: Final = "input.json_number_too_long"
INPUT_JSON_TOO_DEEP: Final = "input.json_too_deep"
INPUT_JSON_TOO_LARGE: Final = "input.json_too_large"
INPUT_JSON_UNSUPPORTED_TYPE: Final = "input.json_unsupported_type"
INPUT_NAIVE_TIMESTAMP: Final = "input.naive_timestamp"
INPUT_OUT_OF_RANGE: Final = "input.out_of_range"
INPUT_TOO_LONG: Final = "input.too_long"
INPUT_WRONG_TYPE: Final = "input.wrong_type"
JOB_FAILED: Final = "job.failed"

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INPUT_BLANK: "The text is empty or holds only white space.",
        INPUT_INVALID_CHARACTERS: "The text holds NUL or a lone surrogate.",
        INPUT_JSON_INVALID_KEY: "An object key is not a string.",
        INPUT_JSON_INVALID_TEXT: "A string or a key inside JSON holds NUL or a lone surrogate.",
        INPUT_JSON_MALFORMED: "The text is not JSON.",
        INPUT_JSON_NOT_FINITE: "A number is NaN, infinite or too large for a float.",
        INPUT_JSON_NUMBER_TOO_LONG: "An integer has too many decimal digits.",
        INPUT_JSON_TOO_DEEP: "Lists and objects are nested too deeply, or contain themselves.",
        INPUT_JSON_TOO_LARGE: "The encoded JSON has more bytes than allowed.",
        INPUT_JSON_UNSUPPORTED_TYPE: "A value has a type that JSON cannot hold.",
        INPUT_NAIVE_TIMESTAMP: "The date and time carries no UTC offset.",
        INPUT_OUT_OF_RANGE: "The value is not one of those allowed.",
        INPUT_TOO_LONG: "The text has more characters or bytes than allowed.",
        INPUT_WRONG_TYPE: "The value has the wrong Python type.",
        JOB_FAILED: "A handler reported a failure and left its code blank.",
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INPUT_JSON_NUMBER_TOO_LONG: "Pass the number as text.",
        INPUT_JSON_TOO_DEEP: "Flatten the value, or call `raise_limits` in every process.",
        INPUT_JSON_TOO_LARGE: (
            "Keep the value elsewhere and pass a reference, or call `raise_limits` in every"
            " process."
        ),
        INPUT_JSON_UNSUPPORTED_TYPE: "Convert the value first; `field` is its JSON path.",
        INPUT_NAIVE_TIMESTAMP: "Pass an aware `datetime`, such as `datetime.now(UTC)`.",
        INPUT_TOO_LONG: "Shorten the text, or call `raise_limits` in every process.",
        JOB_FAILED: "Give the `JobFailure` a code that operators can tell from others.",
    }
)
"""What to do about a code, where its category does not say enough."""
