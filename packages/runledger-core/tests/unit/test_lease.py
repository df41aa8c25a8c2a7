import dataclasses
from uuid import UUID

import pytest

from runledger_core import JobLease, ValidationError, WorkerId


def lease():
    return JobLease(UUID(int=1), 1, attempt=2, claim_number=9_000_000_000, worker_id="worker-1")


def test_equal_leases_are_equal():
    assert lease() == lease()
    assert hash(lease()) == hash(lease())
    assert type(lease().worker_id) is WorkerId


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("job_id", str(UUID(int=1)), "input.wrong_type"),
        ("run_number", 0, "input.out_of_range"),
        ("attempt", 2**31, "input.out_of_range"),
        ("claim_number", 2**63, "input.out_of_range"),
        ("claim_number", True, "input.wrong_type"),
        ("worker_id", " ", "input.blank"),
    ],
)
def test_other_values_are_refused(field, value, code):
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(lease(), **{field: value})

    assert caught.value.code == code
    assert caught.value.field == field
