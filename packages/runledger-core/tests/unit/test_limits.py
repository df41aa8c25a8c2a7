import dataclasses

import pytest

from runledger_core import (
    JobEnqueue,
    JobType,
    Limits,
    ValidationError,
    current_limits,
    raise_limits,
)
from runledger_core import limits as limits_module


@pytest.fixture(autouse=True)
def default_limits(monkeypatch):
    monkeypatch.setattr(limits_module, "_current", Limits())


def test_defaults():
    assert dataclasses.asdict(current_limits()) == {
        "payload_bytes": 1_048_576,
        "metadata_bytes": 1_048_576,
        "checkpoint_bytes": 1_048_576,
        "output_bytes": 262_144,
        "log_payload_bytes": 65_536,
        "json_depth": 200,
        "identifier_characters": 200,
        "key_bytes": 512,
        "error_message_bytes": 8_192,
    }


def test_raising_changes_what_is_accepted():
    raised = raise_limits(payload_bytes=2_000_000, identifier_characters=201)

    assert raised is current_limits()
    assert raised.metadata_bytes == 1_048_576
    assert len(JobType("a" * 201)) == 201
    assert len(JobEnqueue("a", "x" * 1_500_000).payload_json) == 1_500_002


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"payload_bytes": 1_048_575}, "input.out_of_range"),
        ({"payload_bytes": 64 * 1_048_576 + 1}, "input.out_of_range"),
        ({"json_depth": 501}, "input.out_of_range"),
        ({"identifier_characters": 301}, "input.out_of_range"),
        ({"key_bytes": 1_025}, "input.out_of_range"),
        ({"key_bytes": True}, "input.wrong_type"),
        ({"key_bytes": "600"}, "input.wrong_type"),
    ],
)
def test_refused_values_change_nothing(overrides, code):
    with pytest.raises(ValidationError) as caught:
        raise_limits(output_bytes=300_000, **overrides)

    assert caught.value.code == code
    assert caught.value.field in overrides
    assert current_limits() == Limits()


def test_limits_are_never_lowered_again():
    raise_limits(key_bytes=600)

    with pytest.raises(ValidationError):
        raise_limits(key_bytes=512)

    assert current_limits().key_bytes == 600


def test_unknown_names_are_refused_like_unknown_arguments():
    with pytest.raises(TypeError, match="payload_byte"):
        raise_limits(payload_byte=2_000_000)


def test_the_greatest_depth_can_be_encoded_and_decoded():
    raise_limits(json_depth=500)
    value: object = 1
    for _ in range(500):
        value = [value]

    request = JobEnqueue("a", value)

    assert request.payload_json == "[" * 500 + "1" + "]" * 500
