"""JSON that a verb is given on the command line or over the standard input."""

from __future__ import annotations

import sys

from runledger_core import JsonValue, decode_json


def decode_argument(text: str, *, field: str) -> JsonValue:
    """Return the value of JSON; `-` stands for what comes over the standard input.

    Raises:
        ValidationError: An `input.*` code that names the field.
    """
    if text == "-":
        # None if its descriptor was closed when Python started.
        given = sys.stdin.buffer.read() if sys.stdin else b""
        # Bytes that are no UTF-8 become what the decoder refuses by name.
        text = given.decode(errors="surrogateescape")
    return decode_json(text, field=field)
