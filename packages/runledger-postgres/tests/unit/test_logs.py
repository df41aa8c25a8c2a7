from __future__ import annotations

from uuid import UUID

import pytest

from runledger_core import ValidationError
from runledger_postgres.jobs import JobLogEntry

JOB = UUID(int=1)


def test_entry_keeps_its_payload_as_json_and_out_of_repr():
    entry = JobLogEntry(JOB, "INFO", message="hello", payload={"token": "s3cret"})

    assert entry.payload_json == '{"token":"s3cret"}'
    assert "s3cret" not in repr(entry)


def test_payload_is_an_empty_object_unless_given():
    assert JobLogEntry(JOB, "INFO", message="hello").payload_json == "{}"
    assert JobLogEntry(JOB, "INFO", message="hello", payload=None).payload_json == "null"


def test_long_message_is_cut_on_a_character_boundary_with_a_mark():
    entry = JobLogEntry(JOB, "INFO", message="é" * 10_000)

    assert len(entry.message.encode()) <= 8 * 1024
    assert entry.message.endswith("é… [cut]")


def test_payload_over_its_limit_is_refused():
    with pytest.raises(ValidationError) as refused:
        JobLogEntry(JOB, "INFO", message="hello", payload="x" * (64 * 1024))

    assert (refused.value.code, refused.value.field) == ("input.json_too_large", "payload")


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"job_id": str(JOB)}, "input.wrong_type", "job_id"),
        ({"level": ""}, "input.blank", "level"),
        ({"level": "x" * 201}, "input.too_long", "level"),
        ({"message": " "}, "input.blank", "message"),
        ({"message": "a\0b"}, "input.invalid_characters", "message"),
        ({"message": "\ud800"}, "input.invalid_characters", "message"),
        ({"message": None}, "input.wrong_type", "message"),
        ({"payload": {"a": ["\0"]}}, "input.json_invalid_text", "payload.a[0]"),
        ({"payload": float("nan")}, "input.json_not_finite", "payload"),
        ({"run_number": 0}, "input.out_of_range", "run_number"),
        ({"attempt": 2**31}, "input.out_of_range", "attempt"),
    ],
)
def test_bad_entry_is_refused(changes, code, field):
    with pytest.raises(ValidationError) as refused:
        JobLogEntry(**({"job_id": JOB, "level": "INFO", "message": "hello"} | changes))

    assert (refused.value.code, refused.value.field) == (code, field)
