"""What a step's handler may build on: the outputs of the steps before it."""

from __future__ import annotations

from uuid import uuid4

import pytest

from runledger_core import InternalError, JobCompletion, JobEnqueue, NotFoundError
from runledger_postgres import complete_job_success, enqueue_job
from runledger_postgres.workflows import get_step_inputs, get_step_key

from .conftest import JOB_TYPE, Workflows

FAN_IN = {"a": [], "b": [], "c": [], "join": {"a": "success", "b": "terminal", "c": "terminal"}}


@pytest.mark.core
def test_join_sees_what_its_prerequisites_gave(workflows: Workflows):
    workflows.enqueue_jobs(FAN_IN)
    jobs = workflows.claim()
    workflows.succeed(jobs["a"], {"pages": [1, 2]})
    workflows.succeed(jobs["b"], "text")
    workflows.succeed(jobs["c"], 3)

    inputs = get_step_inputs(workflows.pool, workflows.claim()["join"].id)

    assert inputs.step_key == "join"
    assert inputs.prerequisite_outputs == {"a": {"pages": [1, 2]}, "b": "text", "c": 3}


def test_what_did_not_succeed_is_left_out(workflows: Workflows):
    workflows.enqueue_jobs(FAN_IN)
    jobs = workflows.claim()
    workflows.succeed(jobs["a"], 1)
    workflows.fail(jobs["b"])
    workflows.fail(jobs["c"])

    inputs = get_step_inputs(workflows.pool, workflows.claim()["join"].id)

    assert dict(inputs.prerequisite_outputs) == {"a": 1}


def test_one_that_gave_nothing_and_one_that_gave_null_are_both_none(workflows: Workflows):
    workflows.enqueue_jobs(FAN_IN)
    jobs = workflows.claim()
    workflows.succeed(jobs["a"], None)
    complete_job_success(workflows.pool, jobs["b"].lease, JobCompletion())
    workflows.succeed(jobs["c"], False)

    inputs = get_step_inputs(workflows.pool, workflows.claim()["join"].id)

    assert dict(inputs.prerequisite_outputs) == {"a": None, "b": None, "c": False}


def test_only_direct_prerequisites_of_the_same_run_are_seen(workflows: Workflows):
    for run in ("first", "second"):
        workflows.enqueue_jobs({"a": [], "b": ["a"], "c": ["b"]})
        workflows.succeed(workflows.claim()["a"], f"a of the {run}")
        workflows.succeed(workflows.claim()["b"], f"b of the {run}")
        job = workflows.claim()["c"]

    inputs = get_step_inputs(workflows.pool, job.id)

    assert dict(inputs.prerequisite_outputs) == {"b": "b of the second"}


def test_step_that_waits_for_none_has_a_key_and_no_outputs(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})

    inputs = get_step_inputs(workflows.pool, workflows.claim()["a"].id)

    assert (inputs.step_key, dict(inputs.prerequisite_outputs)) == ("a", {})


def test_read_is_part_of_the_callers_transaction(workflows: Workflows):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    workflows.succeed(workflows.claim()["a"], 1)
    job = workflows.claim()["b"]

    with workflows.pool.connection() as connection, connection.transaction():
        inputs = get_step_inputs(connection, job.id)
        assert get_step_key(connection, job.id) == inputs.step_key
        assert connection.info.transaction_status.name == "INTRANS"

    assert inputs.prerequisite_outputs == {"a": 1}


def test_nobody_can_change_what_was_read(workflows: Workflows):
    workflows.enqueue_jobs({"a": []})
    inputs = get_step_inputs(workflows.pool, workflows.claim()["a"].id)

    with pytest.raises(TypeError):
        inputs.prerequisite_outputs["b"] = 1  # pyright: ignore[reportIndexIssue]  # the mistake


def test_job_that_is_no_step_is_refused(workflows: Workflows):
    direct = enqueue_job(workflows.pool, JobEnqueue(JOB_TYPE, {})).id

    for job_id in (direct, uuid4()):
        for read in (get_step_inputs, get_step_key):
            with pytest.raises(NotFoundError) as caught:
                read(workflows.pool, job_id)
            assert caught.value.code == "job.not_found"


def test_output_that_python_cannot_read_is_told_and_keeps_nobody_from_the_key(workflows: Workflows):
    workflows.enqueue_jobs({"a": [], "b": ["a"]})
    workflows.succeed(workflows.claim()["a"], 1)
    job = workflows.claim()["b"]
    # A number of more digits than Python reads.
    digits = "9" * 5_000
    workflows.look.execute(
        "UPDATE runledger.job_queue SET output = %s WHERE id <> %s", [digits, job.id]
    )

    with pytest.raises(InternalError) as caught:
        get_step_inputs(workflows.pool, job.id)
    key = get_step_key(workflows.pool, job.id)

    assert caught.value.code == "job.undecodable_row"
    assert key == "b"
