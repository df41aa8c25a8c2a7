"""Contracts of Runledger: errors, limits, JSON values, identifiers, jobs and their handlers."""

from importlib.metadata import version
from typing import Final

from runledger_core import codes
from runledger_core.definitions import JobDefinitionSpec
from runledger_core.errors import (
    ConflictError,
    ErrorCategory,
    ForbiddenError,
    InternalError,
    NotFoundError,
    RunledgerError,
    UnavailableError,
    ValidationError,
)
from runledger_core.identifiers import JobType, ScheduleName, StepKey, WorkerId, WorkflowType
from runledger_core.jobs import (
    CancelReason,
    DeadLetterHandler,
    EnqueueDisposition,
    HandlerResult,
    JobCancelled,
    JobCompletion,
    JobContext,
    JobDeadLetterInfo,
    JobDeadLetterReason,
    JobEnqueue,
    JobEventType,
    JobFailure,
    JobFailureKind,
    JobHandler,
    JobLease,
    JobOutcome,
    JobProgressUpdate,
    JobStage,
    JobStatus,
)
from runledger_core.jsonvalue import (
    UNSET,
    JsonInput,
    JsonValue,
    Unset,
    decode_json,
    encode_json,
)
from runledger_core.limits import Limits, current_limits, raise_limits
from runledger_core.scope import Scope, ScopeKind
from runledger_core.terminal import visible_text
from runledger_core.text import (
    check_bool,
    check_choice,
    check_instant,
    check_int,
    check_text,
    check_uuid,
    sanitize_text,
)

__version__: Final = version("runledger-core")

__all__ = [  # noqa: RUF022  # in the order of `sorted`
    "CancelReason",
    "ConflictError",
    "DeadLetterHandler",
    "EnqueueDisposition",
    "ErrorCategory",
    "ForbiddenError",
    "HandlerResult",
    "InternalError",
    "JobCancelled",
    "JobCompletion",
    "JobContext",
    "JobDeadLetterInfo",
    "JobDeadLetterReason",
    "JobDefinitionSpec",
    "JobEnqueue",
    "JobEventType",
    "JobFailure",
    "JobFailureKind",
    "JobHandler",
    "JobLease",
    "JobOutcome",
    "JobProgressUpdate",
    "JobStage",
    "JobStatus",
    "JobType",
    "JsonInput",
    "JsonValue",
    "Limits",
    "NotFoundError",
    "RunledgerError",
    "ScheduleName",
    "Scope",
    "ScopeKind",
    "StepKey",
    "UNSET",
    "UnavailableError",
    "Unset",
    "ValidationError",
    "WorkerId",
    "WorkflowType",
    "__version__",
    "check_bool",
    "check_choice",
    "check_instant",
    "check_int",
    "check_text",
    "check_uuid",
    "codes",
    "current_limits",
    "decode_json",
    "encode_json",
    "raise_limits",
    "sanitize_text",
    "visible_text",
]
