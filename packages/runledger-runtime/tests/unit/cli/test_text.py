import json

import pytest

from runledger_runtime.cli._text import json_block, json_line, visible, visible_block


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 日本, 🎉", "plain, ünïcode, 日本, 🎉"),
        ("\x1b]52;c;ZXZpbA==\x07", "␛]52;c;ZXZpbA==␇"),
        ("\x1b[2Jgone", "␛[2Jgone"),
        ("a\r\nb\tc", "a␍␊b␉c"),
        ("\x00\x7f", "␀␡"),
        ("\x9b31m", "\ufffd31m"),
        ("\u202egnp.exe\u2066", "\ufffdgnp.exe\ufffd"),
        ("line\u2028line", "line\ufffdline"),
        ("half \ud800", "half \ufffd"),
    ],
)
def test_control_characters_are_shown_as_marks(text, shown):
    assert visible(text) == shown


def test_block_keeps_its_line_breaks_only():
    assert visible_block("one\ntwo\r\n\x1b[0m") == "one\ntwo␍\n␛[0m"


def test_json_for_programs_is_ascii_without_control_characters():
    value = {"k\x1b": "\x9b\x7f\u202e日", "n": [1, None, True]}

    line = json_line(value)

    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == value


def test_json_for_people_is_indented_and_readable():
    assert json_block({"to": "日本\x9b"}) == '{\n  "to": "日本\ufffd"\n}'
