"""Text from the database made safe for a terminal: what would control it is shown as marks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

REPLACEMENT: Final = "\ufffd"

# C0 and DEL have pictures of their own. C1 would be obeyed by some terminals, the bidi controls
# reorder what stands beside them, line and paragraph separators break lines, a lone surrogate
# cannot be written at all.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PICTURES: Final[Mapping[str, str]] = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {
    "\x7f": "\u2421"
}


def visible(text: str) -> str:
    """Return one line in which every control character is a mark."""
    return _CONTROL.sub(lambda match: _PICTURES.get(match[0], REPLACEMENT), text)


def visible_block(text: str) -> str:
    """Return the text with its line breaks, every other control character a mark."""
    return "\n".join(visible(line) for line in text.split("\n"))


def json_line(value: object) -> str:
    """Return JSON in ASCII on one line; nothing in it can control a terminal."""
    # DEL is ASCII, so the encoder leaves it; it can only stand inside a string.
    return json.dumps(value, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")


def json_block(value: object) -> str:
    """Return JSON for people to read: indented, not escaped, control characters as marks."""
    return visible_block(json.dumps(value, ensure_ascii=False, indent=2))
