import copy
import json
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runledger_core import JobType, ScheduleName, StepKey, ValidationError, WorkerId, WorkflowType

FIELDS = {
    JobType: "job_type",
    WorkflowType: "workflow_type",
    StepKey: "step_key",
    ScheduleName: "schedule_name",
    WorkerId: "worker_id",
}


def pickled(name, protocol=None):
    return pickle.loads(pickle.dumps(name, protocol))  # our own bytes


identifiers = pytest.mark.parametrize("kind", FIELDS)


@identifiers
def test_an_identifier_is_its_text(kind):
    name = kind("jobs.email.send")

    assert name == "jobs.email.send"
    assert hash(name) == hash("jobs.email.send")
    assert {"jobs.email.send": 1}[name] == 1
    assert json.dumps(name) == '"jobs.email.send"'
    assert f"{name}" == "jobs.email.send"
    assert not hasattr(name, "__dict__")


@identifiers
def test_surrounding_blanks_are_kept(kind):
    assert kind(" a ") == " a "


@identifiers
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("", "input.blank"),
        (" \u3000\n", "input.blank"),
        ("a" * 201, "input.too_long"),
        ("a\0", "input.invalid_characters"),
        ("\ud800", "input.invalid_characters"),
        (None, "input.wrong_type"),
        (5, "input.wrong_type"),
    ],
)
def test_other_text_is_refused(kind, value, code):
    with pytest.raises(ValidationError) as caught:
        kind(value)

    assert caught.value.code == code
    assert caught.value.field == FIELDS[kind]


@identifiers
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_the_type(kind, protocol):
    name = kind("a")

    loaded = pickled(name, protocol)

    assert type(loaded) is kind
    assert loaded == "a"
    assert copy.deepcopy(name) == "a"


def test_identifiers_are_rejected_when_unpickled_blank():
    data = pickle.dumps(JobType("abc")).replace(b"abc", b"   ")

    with pytest.raises(ValidationError):
        pickle.loads(data)  # our own bytes


def test_one_identifier_makes_another():
    key = StepKey("a")

    assert type(JobType(key)) is JobType
    assert StepKey(key) is key


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
def test_storable_text_up_to_the_limit_is_kept(text):
    assume(text.strip())

    name = JobType(text)

    assert name == text
    assert hash(name) == hash(text)
    assert pickled(name) == text
