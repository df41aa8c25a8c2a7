"""Text from a database made safe to show: what would control a terminal is shown as marks."""

import re
from collections.abc import Mapping
from typing import Final

from runledger_core.text import REPLACEMENT

_CONTROL: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1, which some terminals take for ESC and a letter
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these turn the direction of what follows
    "\u2028\u2029"  # line and paragraph separators
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # unseen; the tags are copies of ASCII
    "\ud800-\udfff"  # lone surrogates, which cannot be written at all
    "]"
)
# Only C0 and DEL have pictures of their own.
_PICTURES: Final[Mapping[str, str]] = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {
    "\x7f": "\u2421"
}


def visible_text(text: str) -> str:
    """Return one line in which every control character is a visible mark.

    Args:
        text: Anything, such as a job type or an error message that somebody else has stored.
    """
    return _CONTROL.sub(lambda match: _PICTURES.get(match[0], REPLACEMENT), text)
