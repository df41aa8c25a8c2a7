"""The tables and views of the schema, for your own reports with SQLAlchemy Core.

Migrations make the schema; this describes it for reading, and a test compares it with a database.
Nothing should be created from it. Values of enumerations are text, equal to the members of
`runledger_core`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import ARRAY, BigInteger, Boolean, Column, Double, Integer, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from runledger_core import JobEventType, JobOutcome, JobStatus

from ._columns import INSTANT, SCHEMA, enum_of, metadata
from ._workflow_tables import (
    workflow_run_mutations,
    workflow_runs,
    workflow_step_dependencies,
    workflow_steps,
)

__all__ = [
    "SCHEMA",
    "job_attempts",
    "job_dead_letters",
    "job_definitions",
    "job_events",
    "job_logs",
    "job_metrics_rollup",
    "job_queue",
    "job_runtime_configs",
    "job_schedules",
    "job_timeline",
    "job_workers",
    "metadata",
    "runledger_migration_history",
    "workflow_run_mutations",
    "workflow_runs",
    "workflow_step_dependencies",
    "workflow_steps",
]

_job_status: Final = enum_of("job_status", JobStatus)
_job_outcome: Final = enum_of("job_outcome", JobOutcome)
_job_event_type: Final = enum_of("job_event_type", JobEventType)

job_definitions: Final = Table(
    "job_definitions",
    metadata,
    Column("job_type", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("default_timeout_seconds", Integer, nullable=False),
    Column("default_priority", Integer, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
)

job_queue: Final = Table(
    "job_queue",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("job_type", Text, nullable=False),
    Column("organization_id", Uuid),
    Column("workflow_run_id", Uuid),
    Column("schedule_id", Uuid),
    Column("scheduled_for", INSTANT),
    Column("status", _job_status, nullable=False),
    Column("is_ready", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("run_number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("claim_number", BigInteger, nullable=False),
    Column("progressed_claim_number", BigInteger, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("next_run_at", INSTANT, nullable=False),
    Column("lease_expires_at", INSTANT),
    Column("last_heartbeat_at", INSTANT),
    Column("leased_at", INSTANT),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    Column("progress_done", BigInteger),
    Column("progress_total", BigInteger),
    Column("worker_id", Text),
    Column("stage", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("checkpoint", JSONB),
    Column("idempotency_key", Text),
    Column("status_reason", Text),
    Column("last_error_code", Text),
    Column("last_error_message", Text),
    Column("trace_context", Text),
    Column("enqueue_request", JSONB),
    Column("output", JSONB),
)

job_attempts: Final = Table(
    "job_attempts",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("claim_number", BigInteger, primary_key=True),
    Column("run_number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", _job_outcome, nullable=False),
    Column("leased_at", INSTANT, nullable=False),
    Column("finished_at", INSTANT, nullable=False),
    Column("retry_delay_ms", Integer),
    Column("worker_id", Text, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
)

job_events: Final = Table(
    "job_events",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("claim_number", BigInteger, nullable=False),
    Column("run_number", Integer, nullable=False),
    Column("attempt", Integer),
    Column("event_type", _job_event_type, nullable=False),
    Column("stage", Text),
    Column("progress_done", BigInteger),
    Column("progress_total", BigInteger),
    Column("payload", JSONB, nullable=False),
    Column("occurred_at", INSTANT, nullable=False),
)

job_dead_letters: Final = Table(
    "job_dead_letters",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("job_type", Text, nullable=False),
    Column("organization_id", Uuid),
    Column("run_number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error_code", Text, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("payload_snapshot", JSONB, nullable=False),
    Column("checkpoint_snapshot", JSONB),
    Column("failed_at", INSTANT, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)

job_logs: Final = Table(
    "job_logs",
    metadata,
    Column("job_id", Uuid, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("claim_number", BigInteger, nullable=False),
    Column("run_number", Integer, nullable=False),
    Column("attempt", Integer),
    Column("level", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("occurred_at", INSTANT, nullable=False),
)

job_schedules: Final = Table(
    "job_schedules",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("organization_id", Uuid),
    Column("payload_template", JSONB, nullable=False),
    Column("cron_expr", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("next_fire_at", INSTANT, nullable=False),
    Column("last_fired_at", INSTANT),
    Column("last_fired_for", INSTANT),
    Column("max_jitter_seconds", Integer, nullable=False),
    Column("retry_at", INSTANT),
    Column("failure_count", Integer, nullable=False),
    Column("last_error_code", Text),
    Column("last_error_message", Text),
    Column("created_by_user_id", Uuid),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
)

job_runtime_configs: Final = Table(
    "job_runtime_configs",
    metadata,
    Column("job_type", Text, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("config", JSONB, nullable=False),
    Column("updated_by_user_id", Uuid),
    Column("created_at", INSTANT, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
)

job_workers: Final = Table(
    "job_workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("job_types", ARRAY(Text), nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", INSTANT, nullable=False),
    Column("last_seen_at", INSTANT, nullable=False),
)

runledger_migration_history: Final = Table(
    "runledger_migration_history",
    metadata,
    Column("version", BigInteger, primary_key=True),
    Column("name", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("applied_at", INSTANT, nullable=False),
)

# Views.
job_timeline: Final = Table(
    "job_timeline",
    metadata,
    Column("job_id", Uuid),
    Column("claim_number", BigInteger),
    Column("rank", Integer),
    Column("event_id", BigInteger),
    Column("event_type", _job_event_type),
    Column("run_number", Integer),
    Column("attempt", Integer),
    Column("stage", Text),
    Column("progress_done", BigInteger),
    Column("progress_total", BigInteger),
    Column("payload", JSONB),
    Column("occurred_at", INSTANT),
)

job_metrics_rollup: Final = Table(
    "job_metrics_rollup",
    metadata,
    Column("organization_id", Uuid),
    Column("job_type", Text),
    Column("pending_count", BigInteger),
    Column("leased_count", BigInteger),
    Column("stale_leases", BigInteger),
    Column("succeeded_24h", BigInteger),
    Column("retryable_24h", BigInteger),
    Column("terminal_24h", BigInteger),
    Column("panicked_24h", BigInteger),
    Column("timeout_24h", BigInteger),
    Column("lease_expired_24h", BigInteger),
    Column("dead_lettered_24h", BigInteger),
    Column("p50_duration_ms_24h", Double),
    Column("p95_duration_ms_24h", Double),
)
