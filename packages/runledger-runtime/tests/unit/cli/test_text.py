import json

from runledger_runtime.cli._text import json_block, json_line, visible_block


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
