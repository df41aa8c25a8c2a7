"""The tables of workflows, for `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Integer, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowRunStatus,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)

from ._columns import INSTANT, enum_of, metadata

_run_status: Final = enum_of("workflow_run_status", WorkflowRunStatus)
_step_status: Final = enum_of("workflow_step_status", WorkflowStepStatus)
_release_mode: Final = enum_of("workflow_dependency_release_mode", WorkflowDependencyReleaseMode)
_execution_kind: Final = enum_of("workflow_step_execution_kind", WorkflowStepExecutionKind)

workflow_runs: Final = Table(
    "workflow_runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("workflow_type", Text, nullable=False),
    Column("organization_id", Uuid),
    Column("status", _run_status, nullable=False),
    Column("steps_open", Integer, nullable=False),
    Column("steps_waiting_external", Integer, nullable=False),
    Column("steps_failed", Integer, nullable=False),
    Column("steps_canceled", Integer, nullable=False),
    Column("idempotency_key", Text),
    Column("metadata", JSONB, nullable=False),
    Column("started_at", INSTANT, nullable=False),
    Column("finished_at", INSTANT),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("enqueue_request", JSONB),
    Column("result_step_key", Text),
    Column("result", JSONB),
)

workflow_steps: Final = Table(
    "workflow_steps",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("workflow_run_id", Uuid, nullable=False),
    Column("step_key", Text, nullable=False),
    Column("job_type", Text),
    Column("organization_id", Uuid),
    Column("payload", JSONB),
    Column("priority", Integer),
    Column("max_attempts", Integer),
    Column("timeout_seconds", Integer),
    Column("stage", Text),
    Column("execution_kind", _execution_kind, nullable=False),
    Column("status", _step_status, nullable=False),
    Column("job_id", Uuid),
    Column("released_at", INSTANT),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("dependency_count_total", Integer, nullable=False),
    Column("dependency_count_pending", Integer, nullable=False),
    Column("dependency_count_unsatisfied", Integer, nullable=False),
    Column("status_reason", Text),
    Column("last_error_code", Text),
    Column("last_error_message", Text),
    Column("trace_context", Text),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("output", JSONB),
)

workflow_step_dependencies: Final = Table(
    "workflow_step_dependencies",
    metadata,
    Column("workflow_run_id", Uuid, primary_key=True),
    Column("prerequisite_step_id", Uuid, primary_key=True),
    Column("dependent_step_id", Uuid, primary_key=True),
    Column("release_mode", _release_mode, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)

workflow_run_mutations: Final = Table(
    "workflow_run_mutations",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("workflow_run_id", Uuid, nullable=False),
    Column("mutation_key", Text, nullable=False),
    Column("metadata", JSONB, nullable=False),
    Column("request", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
)
