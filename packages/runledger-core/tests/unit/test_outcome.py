import copy
import dataclasses
import pickle

import pytest

from runledger_core import (
    UNSET,
    JobCompletion,
    JobFailure,
    JobFailureKind,
    JobProgressUpdate,
    JobStage,
    ValidationError,
)

INT64_MAX = 9_223_372_036_854_775_807


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # our own bytes


clones = pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled])


class CustomFailure(JobFailure):
    def __init__(self, number: int) -> None:
        super().__init__(JobFailureKind.TERMINAL, "custom", f"number {number}")
        self.number = number


def test_success_stores_nothing_else():
    completion = JobCompletion.success()

    assert completion == JobCompletion()
    assert dataclasses.asdict(completion) == {
        "output": UNSET,
        "progress_done": None,
        "progress_total": None,
        "checkpoint": UNSET,
        "output_json": None,
        "checkpoint_json": None,
    }


def test_null_output_differs_from_no_output():
    completion = JobCompletion.with_output(None)

    assert completion.output_json == "null"
    assert completion != JobCompletion.success()


def test_chaining_keeps_what_was_set_before():
    chained = (
        JobCompletion.success().with_progress(3, 4).with_checkpoint({"at": 3}).with_output([1])
    )

    assert chained == JobCompletion([1], progress_done=3, progress_total=4, checkpoint={"at": 3})
    assert chained.output_json == "[1]"
    assert chained.checkpoint_json == '{"at":3}'


def test_chaining_leaves_the_original():
    base = JobCompletion.with_output(1)

    base.with_output(2).with_progress(1)

    assert base == JobCompletion(1)


def test_chaining_keeps_json_as_it_was_encoded():
    output, checkpoint = {"sent": 1}, {"at": 1}
    completion = JobCompletion.with_output(output).with_checkpoint(checkpoint)
    output["sent"] = checkpoint["at"] = 2

    chained = completion.with_progress(1)

    assert (chained.output_json, chained.checkpoint_json) == ('{"sent":1}', '{"at":1}')
    assert completion.with_checkpoint([2]).output_json == '{"sent":1}'
    assert completion.with_output([2]).checkpoint_json == '{"at":1}'


@pytest.mark.parametrize(
    ("chain", "code", "field"),
    [
        (lambda one: one.with_output({1}), "input.json_unsupported_type", "output"),
        (lambda one: one.with_checkpoint([{1}]), "input.json_unsupported_type", "checkpoint[0]"),
        (lambda one: one.with_progress(2, 1), "input.out_of_range", "progress_done"),
    ],
)
def test_chaining_refuses_other_values(chain, code, field):
    with pytest.raises(ValidationError) as caught:
        chain(JobCompletion.success())

    assert (caught.value.code, caught.value.field) == (code, field)


def test_repr_shows_no_json():
    completion = JobCompletion.with_output("secret").with_checkpoint("secret")

    assert repr(completion) == "JobCompletion(progress_done=None, progress_total=None)"


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"output": object()}, "input.json_unsupported_type", "output"),
        ({"output": lambda: 1}, "input.json_unsupported_type", "output"),
        ({"output": [float("inf")]}, "input.json_not_finite", "output[0]"),
        ({"output": "x" * 262_143}, "input.json_too_large", "output"),
        ({"checkpoint": {"a": {1}}}, "input.json_unsupported_type", "checkpoint.a"),
        ({"checkpoint": "x" * 1_048_575}, "input.json_too_large", "checkpoint"),
        ({"progress_done": -1}, "input.out_of_range", "progress_done"),
        ({"progress_total": -1}, "input.out_of_range", "progress_total"),
        ({"progress_done": 2, "progress_total": 1}, "input.out_of_range", "progress_done"),
        ({"progress_total": INT64_MAX + 1}, "input.out_of_range", "progress_total"),
        ({"progress_done": True}, "input.wrong_type", "progress_done"),
    ],
)
def test_completions_refuse_other_values(options, code, field):
    with pytest.raises(ValidationError) as caught:
        JobCompletion(**options)

    assert caught.value.code == code
    assert caught.value.field == field


@pytest.mark.parametrize(("done", "total"), [(0, 0), (5, None), (INT64_MAX, INT64_MAX)])
def test_progress_within_bounds_is_kept(done, total):
    completion = JobCompletion.success().with_progress(done, total)

    assert (completion.progress_done, completion.progress_total) == (done, total)


@clones
def test_clones_of_completions_are_equal(clone):
    completion = JobCompletion.with_output({"a": [1]}).with_progress(1, 2)

    cloned = clone(completion)

    assert cloned == completion
    assert hash(cloned) == hash(completion)
    assert cloned.output_json == '{"a":[1]}'
    assert cloned.checkpoint is UNSET


def test_progress_updates_keep_only_what_is_given():
    update = JobProgressUpdate(stage=JobStage.RUNNING, done=1, checkpoint=None)

    assert update.checkpoint_json == "null"
    assert dataclasses.asdict(JobProgressUpdate()) == {
        "stage": None,
        "done": None,
        "total": None,
        "checkpoint": UNSET,
        "checkpoint_json": None,
    }


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"stage": "waiting"}, "input.out_of_range", "stage"),
        ({"done": 3, "total": 2}, "input.out_of_range", "done"),
        ({"total": 1.5}, "input.wrong_type", "total"),
        ({"checkpoint": {1: 2}}, "input.json_invalid_key", "checkpoint"),
    ],
)
def test_progress_updates_refuse_other_values(options, code, field):
    with pytest.raises(ValidationError) as caught:
        JobProgressUpdate(**options)

    assert caught.value.code == code
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (JobFailure.retryable, "RETRYABLE"),
        (JobFailure.terminal, "TERMINAL"),
        (JobFailure.timeout, "TIMEOUT"),
        (JobFailure.lease_expired, "LEASE_EXPIRED"),
        (JobFailure.panicked, "PANICKED"),
    ],
)
def test_each_kind_has_its_constructor(make, kind):
    failure = make("email.bounced", "mailbox full")

    assert (failure.kind, failure.code, failure.message) == (kind, "email.bounced", "mailbox full")
    assert str(failure) == "email.bounced: mailbox full"
    assert repr(failure) == f"JobFailure(kind={kind!r}, code='email.bounced')"


def test_failures_can_be_raised_and_matched():
    with pytest.raises(JobFailure) as caught:
        raise JobFailure.terminal("a", "b")

    match caught.value:
        case JobFailure(JobFailureKind.TERMINAL, code, message):
            assert (code, message) == ("a", "b")
        case _:
            pytest.fail("no match")


def test_failures_compare_by_value():
    assert JobFailure.terminal("a", "b") == JobFailure(JobFailureKind.TERMINAL, "a", "b")
    assert JobFailure.terminal("a", "b") != JobFailure.retryable("a", "b")
    assert JobFailure.terminal("a", "b") != ("TERMINAL", "a", "b")
    assert len({JobFailure.terminal("a", "b"), JobFailure.terminal("a", "b")}) == 1


@pytest.mark.parametrize(
    ("code", "message", "stored_code", "stored_message"),
    [
        ("", "m", "job.failed", "m"),
        (" \n", "m", "job.failed", "m"),
        (None, None, "None", "None"),
        ("a\0", "b\ud800", "a\ufffd", "b\ufffd"),
        pytest.param(
            "c" * 300,
            "é" * 30_000_000,
            "c" * 191 + "… [cut]",
            "é" * 4091 + "… [cut]",
            id="60 MB",
        ),
    ],
)
def test_texts_of_failures_are_never_refused(code, message, stored_code, stored_message):
    failure = JobFailure.retryable(code, message)

    assert failure.code == stored_code
    assert failure.message == stored_message


def test_failures_need_a_kind():
    with pytest.raises(ValidationError) as caught:
        JobFailure("FATAL", "a", "b")  # pyright: ignore[reportArgumentType]  # the mistake

    assert caught.value.code == "input.out_of_range"


@clones
def test_clones_of_failures_are_equal(clone):
    failure = JobFailure.timeout("a", "b")

    cloned = clone(failure)

    assert cloned == failure
    assert cloned.kind is JobFailureKind.TIMEOUT


@clones
def test_clones_of_custom_failures_keep_their_fields(clone):
    cloned = clone(CustomFailure(5))

    assert type(cloned) is CustomFailure
    assert (cloned.number, cloned.code, cloned.message) == (5, "custom", "number 5")
