"""What users' type checkers see; run by pyright and mypy, and once by pytest."""

from collections.abc import Awaitable
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Literal, assert_type
from uuid import UUID

from runledger_core import (
    UNSET,
    DeadLetterHandler,
    ErrorCategory,
    HandlerResult,
    JobCompletion,
    JobContext,
    JobDeadLetterInfo,
    JobDefinitionSpec,
    JobEnqueue,
    JobFailure,
    JobFailureKind,
    JobHandler,
    JobLease,
    JobProgressUpdate,
    JobStage,
    JobStatus,
    JobType,
    JsonInput,
    JsonValue,
    Limits,
    RunledgerError,
    Scope,
    Unset,
    ValidationError,
    check_choice,
    check_instant,
    check_int,
    check_text,
    current_limits,
    decode_json,
    encode_json,
    raise_limits,
    sanitize_text,
)

if TYPE_CHECKING:
    from psycopg import Connection


class SendEmail:
    job_type = "jobs.email.send"

    def execute(self, context: JobContext, payload: JsonValue) -> None:
        assert isinstance(payload, dict)
        mapping: dict[str, JsonValue] = payload
        assert mapping == payload
        assert_type(context.job_type, JobType)


class FetchPage:
    @property
    def job_type(self) -> JobType:
        return JobType("jobs.page.fetch")

    def execute(self, context: JobContext, payload: JsonValue) -> JobCompletion | JobFailure:
        if context.attempt > 1:
            return JobFailure.terminal("page.gone", "gone")
        return JobCompletion.with_output(payload)

    def on_dead_letter(
        self, context: JobContext, payload: JsonValue, info: JobDeadLetterInfo
    ) -> None:
        assert_type(info.failure, JobFailure)


def test_requests_take_ordinary_variables() -> None:
    texts: dict[str, str] = {"to": "a@example.com"}
    numbers: list[int] = [1, 2]
    pair: tuple[int, str] = (1, "a")

    assert_type(JobEnqueue("a", texts).payload_json, str)
    assert_type(JobEnqueue(JobType("a"), numbers).payload, JsonInput)
    assert_type(JobEnqueue("a", {"pair": pair, "stage": JobStage.QUEUED}).stage, JobStage | None)
    assert_type(JobEnqueue("a", None).organization_id, UUID | None)
    assert_type(JobEnqueue("a", None).next_run_at, datetime | None)
    assert_type(JobDefinitionSpec("a").max_attempts, int)


def test_outcomes_chain() -> None:
    numbers: list[int] = [1]

    assert_type(JobCompletion.success(), JobCompletion)
    assert_type(JobCompletion.with_output(numbers), JobCompletion)
    assert_type(JobCompletion.success().with_progress(1, 2).with_output(None), JobCompletion)
    assert_type(JobCompletion.success().with_checkpoint({}).output_json, str | None)
    assert_type(JobFailure.retryable("a", "b"), JobFailure)
    assert_type(JobFailure.retryable("a", "b").kind, JobFailureKind)
    assert_type(JobFailureKind.TIMEOUT.is_retryable, bool)
    assert_type(JobStatus.PENDING.is_terminal, bool)
    assert_type(JobProgressUpdate(done=1).done, int | None)


def test_unset_is_narrowed() -> None:
    completion = JobCompletion.success()
    output = completion.output

    if output is UNSET:
        assert_type(output, Literal[Unset.UNSET])
    else:
        assert_type(output, JsonInput)


def test_handlers_are_recognised() -> None:
    handlers: list[JobHandler] = [SendEmail(), FetchPage()]
    dead_letter_handler: DeadLetterHandler = FetchPage()

    assert_type(handlers[0].job_type, str)
    assert dead_letter_handler is not None


def uses_a_context(context: JobContext, handler: JobHandler) -> None:
    assert_type(context.checkpoint, JsonValue)
    assert_type(context.deadline, datetime)
    assert_type(context.cancelled, Event)
    assert_type(context.remaining(), float)
    assert_type(context.wait(1), bool)
    context.progress(1, 2, stage=JobStage.RUNNING, checkpoint={"at": 1})
    context.log("INFO", "sent", to="a@example.com", level=3)
    assert_type(handler.execute(context, {"a": 1}), HandlerResult | Awaitable[HandlerResult])
    with context.connection() as connection:
        opened: "Connection" = connection  # noqa: UP037  # a name for type checkers only
        opened.execute("SELECT 1")


def test_values_are_checked_and_typed() -> None:
    value: object = "1"

    assert_type(check_text(value, field="a"), str)
    assert_type(check_int(1, field="a", minimum=0, maximum=1), int)
    assert_type(check_choice("queued", field="a", choices=JobStage), JobStage)
    assert_type(sanitize_text(value, max_bytes=10), str)
    assert_type(encode_json(value, field="a", max_bytes=10), str)
    assert_type(decode_json("[]"), JsonValue)
    assert_type(current_limits(), Limits)
    assert_type(raise_limits(), Limits)


def checks_an_instant(value: object) -> None:
    assert_type(check_instant(value, field="a"), datetime)


def test_scopes_leases_and_errors_are_typed() -> None:
    job_id = UUID(int=1)
    lease = JobLease(job_id, 1, attempt=1, claim_number=1, worker_id="w")
    error: RunledgerError = ValidationError("a.b", "text")

    assert_type(Scope.GLOBAL, Scope)
    assert_type(Scope.organization(job_id), Scope)
    assert_type(lease.claim_number, int)
    assert_type(error.category, ErrorCategory)
    assert_type(error.field, str | None)
