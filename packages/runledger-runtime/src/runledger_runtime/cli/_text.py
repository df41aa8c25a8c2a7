"""JSON and texts of many lines, printed so that nothing in them controls the terminal."""

from __future__ import annotations

import json

from runledger_core import visible_text


def visible_block(text: str) -> str:
    """Return the text with its line breaks, every other control character a mark."""
    return "\n".join(visible_text(line) for line in text.split("\n"))


def json_line(value: object) -> str:
    """Return JSON in ASCII on one line; nothing in it can control a terminal."""
    # DEL is ASCII, so the encoder leaves it; it can only stand inside a string.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def json_block(value: object) -> str:
    """Return JSON for people to read: indented, not escaped, control characters as marks."""
    return visible_block(json.dumps(value, ensure_ascii=False, indent=2))
