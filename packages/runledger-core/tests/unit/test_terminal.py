import sys

import pytest

from runledger_core import visible_text

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("日本 é 🎉 a\u0301 👩\u200d🚀", "日本 é 🎉 a\u0301 👩\u200d🚀"),
        ("\x1b]52;c;ZXZpbA==\x07", "␛]52;c;ZXZpbA==␇"),
        ("\x1b[2Jgone", "␛[2Jgone"),
        ("a\r\nb\tc", "a␍␊b␉c"),
        ("\x00\x7f", "␀␡"),
        ("\x9b2J\x85", "\ufffd2J\ufffd"),
        (BIDI, "\ufffd" * 12),
        ("line\u2028line\u2029", "line\ufffdline\ufffd"),
        ("\ufeff\ufff9\ufffb", "\ufffd" * 3),
        ("half \ud800", "half \ufffd"),
        ("a\U000e0041", "a\ufffd"),
    ],
)
def test_control_characters_become_marks(text, shown):
    assert visible_text(text) == shown


def test_no_control_character_at_all_survives():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))

    shown = set(visible_text(everything))

    assert shown.isdisjoint(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert shown.isdisjoint(BIDI)
    assert "a" in shown
