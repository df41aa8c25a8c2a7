import pickle
import threading
from datetime import UTC, datetime
from uuid import UUID

import pytest

from runledger_core import (
    UNSET,
    CancelReason,
    DeadLetterHandler,
    JobCancelled,
    JobCompletion,
    JobContext,
    JobDeadLetterInfo,
    JobDeadLetterReason,
    JobFailure,
    JobHandler,
    JobType,
    WorkerId,
)


class Context(JobContext):
    def __init__(self) -> None:
        self.job_id = UUID(int=1)
        self.job_type = JobType("jobs.email.send")
        self.run_number = self.attempt = self.max_attempts = 1
        self.organization_id = None
        self.worker_id = WorkerId("worker-1")
        self.checkpoint = None
        self.deadline = datetime(2026, 7, 1, tzinfo=UTC)
        self.event = threading.Event()
        self.reason = None

    @property
    def cancelled(self):
        return self.event

    @property
    def cancel_reason(self):
        return self.reason

    def remaining(self):
        return 1.0

    def progress(self, done=None, total=None, *, stage=None, checkpoint=UNSET):
        pass

    def log(self, level, message, /, **fields):
        pass

    def connection(self):
        raise NotImplementedError


class SendEmail:
    job_type = "jobs.email.send"

    def execute(self, context, payload):
        return JobCompletion.with_output(payload)


class SendEmailCarefully(SendEmail):
    def on_dead_letter(self, context, payload, info):
        pass


def test_the_context_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        JobContext()  # pyright: ignore[reportAbstractUsage]  # the mistake


def test_a_context_that_says_nothing_of_workflows_is_of_a_direct_job():
    context = Context()

    assert context.workflow_run_id is None
    assert context.step_key is None
    assert context.prerequisite_outputs == {}


def test_nobody_can_add_to_the_outputs_that_all_direct_jobs_share():
    with pytest.raises(TypeError):
        Context().prerequisite_outputs["a"] = 1  # pyright: ignore[reportIndexIssue]  # the mistake


def test_a_running_handler_goes_on():
    context = Context()

    context.raise_if_cancelled()

    assert context.wait(0) is False


@pytest.mark.parametrize(
    ("reason", "seen"), [(CancelReason.TIMEOUT, "TIMEOUT"), (None, "CANCELED")]
)
def test_a_stopped_handler_is_told_why(reason, seen):
    context = Context()
    context.reason = reason
    context.event.set()

    assert context.wait(60) is True
    with pytest.raises(JobCancelled) as caught:
        context.raise_if_cancelled()
    assert caught.value.reason == seen
    assert str(caught.value) == f"the handler was told to stop: {seen}"


def test_the_signal_pickles():
    data = pickle.dumps(JobCancelled(CancelReason.SHUTDOWN))

    loaded = pickle.loads(data)  # our own bytes

    assert loaded.reason is CancelReason.SHUTDOWN


def test_protocols_tell_handlers_apart():
    assert isinstance(SendEmail(), JobHandler)
    assert not isinstance(SendEmail(), DeadLetterHandler)
    assert isinstance(SendEmailCarefully(), DeadLetterHandler)
    assert not isinstance(object(), JobHandler)


def test_dead_letter_information_compares_by_value():
    def info():
        reason = JobDeadLetterReason.ATTEMPTS_EXHAUSTED
        return JobDeadLetterInfo(JobFailure.retryable("a", "b"), reason, max_attempts=3)

    assert info() == info()
