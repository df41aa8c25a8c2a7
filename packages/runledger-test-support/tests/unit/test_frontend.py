from __future__ import annotations

import struct

from runledger_test_support._frontend import FrontendStream
from runledger_test_support.proxy import COMMIT

STARTUP = struct.pack("!ii", 17, 196_608) + b"user\0me\0\0"
SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def started() -> FrontendStream:
    stream = FrontendStream()
    assert len(list(stream.feed(STARTUP))) == 1
    return stream


def statements(stream: FrontendStream, data: bytes) -> list[str]:
    return [one.statement for one in stream.feed(data) if one.statement is not None]


def test_bytes_come_through_unchanged_however_they_are_cut() -> None:
    data = SSL_REQUEST + STARTUP + message(b"Q", b"SELECT 1\0") + message(b"S", b"")

    for size in (1, 3, 7, len(data)):
        stream = FrontendStream()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        messages = [one for piece in pieces for one in stream.feed(piece)]

        assert b"".join(one.raw for one in messages) == data
        assert [one.kind for one in messages] == [b"", b"", b"Q", b"S"]


def test_plain_query_is_its_statement() -> None:
    assert statements(started(), message(b"Q", b"COMMIT\0")) == ["COMMIT"]


def test_prepared_statement_is_known_at_every_execute() -> None:
    stream = started()
    execute = message(b"B", b"\0s1\0rest") + message(b"E", b"\0\0\0\0\0")
    prepare = message(b"P", b"s1\0COMMIT\0\0\0") + execute

    assert statements(stream, prepare) == ["COMMIT"]
    assert statements(stream, execute) == ["COMMIT"]


def test_closed_statement_is_forgotten() -> None:
    stream = started()
    data = (
        message(b"P", b"s1\0COMMIT\0\0\0")
        + message(b"C", b"Ss1\0")
        + message(b"B", b"\0s1\0")
        + message(b"E", b"\0\0\0\0\0")
    )

    assert statements(stream, data) == [""]


def test_encrypted_bytes_are_not_interpreted() -> None:
    stream = FrontendStream()
    data = SSL_REQUEST + b"\x16\x03\x01COMMIT"

    messages = list(stream.feed(data))

    assert b"".join(one.raw for one in messages) == data
    assert all(one.statement is None for one in messages)


def test_senseless_length_is_passed_on() -> None:
    stream = started()

    messages = list(stream.feed(b"Q" + struct.pack("!i", -5) + b"rubbish"))

    assert b"".join(one.raw for one in messages) == b"Q" + struct.pack("!i", -5) + b"rubbish"


def test_commits_are_recognised() -> None:
    for text in ("COMMIT", " commit;", "INSERT INTO t VALUES (1); COMMIT", "END", "end work;"):
        assert COMMIT.search(text), text


def test_other_statements_are_no_commits() -> None:
    for text in (
        "SELECT 'COMMIT'",
        "DO $$ BEGIN PERFORM 1; END $$",
        "ROLLBACK",
        "CREATE TABLE commits ()",
        "INSERT INTO commit_log VALUES (1)",
        "",
    ):
        assert not COMMIT.search(text), text
