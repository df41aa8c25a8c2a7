import dataclasses

import pytest

from runledger_core import JobDefinitionSpec, JobType, ValidationError

INT32_MAX = 2_147_483_647


def test_defaults():
    spec = JobDefinitionSpec("jobs.email.send")

    assert type(spec.job_type) is JobType
    assert dataclasses.asdict(spec) == {
        "job_type": "jobs.email.send",
        "version": 1,
        "max_attempts": 3,
        "default_timeout_seconds": 300,
        "default_priority": 0,
        "is_enabled": True,
    }


def test_extreme_values_are_kept():
    spec = JobDefinitionSpec(
        "a",
        version=INT32_MAX,
        max_attempts=1,
        default_timeout_seconds=INT32_MAX,
        default_priority=-INT32_MAX - 1,
        is_enabled=False,
    )

    assert spec.default_priority == -2_147_483_648
    assert spec.is_enabled is False


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("job_type", " ", "input.blank"),
        ("version", 0, "input.out_of_range"),
        ("max_attempts", 0, "input.out_of_range"),
        ("max_attempts", INT32_MAX + 1, "input.out_of_range"),
        ("max_attempts", True, "input.wrong_type"),
        ("default_timeout_seconds", 0, "input.out_of_range"),
        ("default_timeout_seconds", 1.5, "input.wrong_type"),
        ("default_priority", INT32_MAX + 1, "input.out_of_range"),
        ("default_priority", None, "input.wrong_type"),
        ("is_enabled", 1, "input.wrong_type"),
    ],
)
def test_other_values_are_refused(field, value, code):
    spec = JobDefinitionSpec("a")

    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(spec, **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field
