import dataclasses
import pickle

import pytest

from runledger_core import UNSET, ValidationError, WorkflowExternalCompletion
from runledger_core.text import CUT_MARK
from runledger_core.workflows import WorkflowStepStatus

SUCCEEDED, FAILED, CANCELED = (
    WorkflowStepStatus.SUCCEEDED,
    WorkflowStepStatus.FAILED,
    WorkflowStepStatus.CANCELED,
)
OPEN = [status for status in WorkflowStepStatus if not status.is_terminal]


def test_success_keeps_output_and_reason():
    completion = WorkflowExternalCompletion.succeeded({"ok": 1}, reason="approved")

    assert completion.status is SUCCEEDED
    assert completion.output_json == '{"ok":1}'
    assert (completion.reason, completion.code, completion.message) == ("approved", None, None)


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (WorkflowExternalCompletion.failed, FAILED),
        (WorkflowExternalCompletion.canceled, CANCELED),
    ],
)
def test_other_ends_keep_their_texts(make, status):
    completion = make("denied", code="approval.denied", message="No.")

    assert completion.status is status
    assert completion.output is UNSET
    assert completion.output_json is None
    assert (completion.reason, completion.code, completion.message) == (
        "denied",
        "approval.denied",
        "No.",
    )


def test_no_output_is_not_json_null():
    assert WorkflowExternalCompletion.succeeded().output_json is None
    assert WorkflowExternalCompletion.succeeded(None).output_json == "null"


def test_output_is_encoded_at_once():
    output = {"n": 1}
    completion = WorkflowExternalCompletion.succeeded(output)

    output["n"] = 2

    assert completion.output_json == '{"n":1}'


def test_status_may_be_given_as_text():
    assert WorkflowExternalCompletion("FAILED").status is FAILED  # pyright: ignore[reportArgumentType]  # the point


@pytest.mark.parametrize("status", OPEN)
def test_gate_does_not_end_in_a_status_that_is_no_end(status):
    with pytest.raises(ValidationError) as caught:
        WorkflowExternalCompletion(status, output={})

    assert caught.value.code == "workflow.external_step_invalid_terminal_status"
    assert caught.value.field == "status"


@pytest.mark.parametrize("output", [None, {"ok": 1}])
@pytest.mark.parametrize("status", [FAILED, CANCELED])
def test_only_a_success_has_an_output(status, output):
    with pytest.raises(ValidationError) as caught:
        WorkflowExternalCompletion(status, output=output)

    assert caught.value.code == "workflow.external_step_output_invalid_status"
    assert caught.value.field == "output"


@pytest.mark.parametrize(
    ("values", "field", "code"),
    [
        ({"status": "DONE"}, "status", "input.out_of_range"),
        ({"status": None}, "status", "input.wrong_type"),
        ({"output": {1}}, "output", "input.json_unsupported_type"),
        ({"output": [float("nan")]}, "output[0]", "input.json_not_finite"),
        pytest.param(
            {"output": "x" * (256 * 1024 - 1)}, "output", "input.json_too_large", id="256 KiB + 1"
        ),
        ({"reason": 1}, "reason", "input.wrong_type"),
        ({"code": b"a"}, "code", "input.wrong_type"),
        ({"message": ["a"]}, "message", "input.wrong_type"),
    ],
)
def test_other_values_are_refused(values, field, code):
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(WorkflowExternalCompletion.succeeded(), **values)

    assert (caught.value.field, caught.value.code) == (field, code)


def test_texts_are_made_storable_and_cut():
    completion = WorkflowExternalCompletion.failed(
        "a\0b", code="c" * 300, message="é" * 10_000 + "\ud800"
    )

    assert completion.reason == "a\ufffdb"
    assert completion.code is not None
    assert completion.message is not None
    assert (len(completion.code.encode()), completion.code[-len(CUT_MARK) :]) == (200, CUT_MARK)
    assert len(completion.message.encode()) <= 8_192
    assert completion.message.endswith(CUT_MARK)


def test_blank_texts_count_as_none():
    completion = WorkflowExternalCompletion.canceled(" ", code="", message="\t\n")

    assert completion == WorkflowExternalCompletion.canceled()


def test_repr_shows_neither_output_nor_texts_of_people():
    completion = WorkflowExternalCompletion(
        SUCCEEDED, output="secret", reason="secret", code="a.b", message="secret"
    )

    assert "secret" not in repr(completion)
    assert "a.b" in repr(completion)


def test_completions_are_immutable_values():
    completion = WorkflowExternalCompletion.succeeded([1], reason="a")

    with pytest.raises(dataclasses.FrozenInstanceError):
        completion.reason = "b"  # pyright: ignore[reportAttributeAccessIssue]  # the point
    cloned = pickle.loads(pickle.dumps(completion))  # our own bytes
    assert cloned == completion
    assert hash(cloned) == hash(completion)
    assert cloned.output_json == "[1]"
