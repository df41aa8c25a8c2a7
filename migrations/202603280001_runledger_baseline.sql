-- Runledger schema: definitions, queue, history, schedules, workflows, logs, workers.
-- Every object lives in the schema "runledger"; no statement of the engine depends on search_path.

DO $$
BEGIN
    -- CREATE SCHEMA IF NOT EXISTS demands CREATE on the database even when the schema is there.
    IF to_regnamespace('runledger') IS NULL THEN
        CREATE SCHEMA runledger;
    END IF;
END
$$;

-- Time-ordered ids. PostgreSQL 18 has a built-in, which the planner inlines through this wrapper.
-- Older servers get milliseconds, a 12-bit fraction and a sequence, so that the rows of one INSERT
-- sort by id in input order there too (layout: RFC 9562, section 5.7, methods 1 and 3).
DO $$
BEGIN
    IF current_setting('server_version_num')::int4 >= 180000 THEN
        CREATE FUNCTION runledger.uuidv7() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE
            AS 'SELECT pg_catalog.uuidv7()';
    ELSE
        CREATE SEQUENCE runledger.uuidv7_sequence MINVALUE 0 MAXVALUE 16777215 CYCLE CACHE 64;
        CREATE FUNCTION runledger.uuidv7() RETURNS uuid
            LANGUAGE plpgsql VOLATILE
            AS $function$
            DECLARE
                microseconds int8 := (extract(epoch FROM clock_timestamp()) * 1000000)::int8;
            BEGIN
                RETURN (
                    lpad(to_hex(microseconds / 1000), 12, '0')
                    || '7' || lpad(to_hex((microseconds % 1000) * 4096 / 1000), 3, '0')
                    || '8' || lpad(to_hex(nextval('runledger.uuidv7_sequence')), 6, '0')
                    || right(gen_random_uuid()::text, 9)
                )::uuid;
            END
            $function$;
    END IF;
END
$$;

CREATE TYPE runledger.job_status AS ENUM (
    'PENDING', 'LEASED', 'SUCCEEDED', 'DEAD_LETTERED', 'CANCELED'
);
CREATE TYPE runledger.job_event_type AS ENUM (
    'ENQUEUED', 'LEASED', 'HEARTBEAT', 'STAGE_CHANGED', 'PROGRESS', 'RETRY_SCHEDULED',
    'SUCCEEDED', 'FAILED', 'DEAD_LETTERED', 'CANCELED', 'REQUEUED'
);
CREATE TYPE runledger.job_failure_kind AS ENUM (
    'RETRYABLE', 'TERMINAL', 'PANICKED', 'TIMEOUT', 'LEASE_EXPIRED'
);
CREATE TYPE runledger.job_outcome AS ENUM (
    'SUCCEEDED', 'CANCELED', 'RETRYABLE', 'TERMINAL', 'PANICKED', 'TIMEOUT', 'LEASE_EXPIRED'
);
CREATE TYPE runledger.workflow_run_status AS ENUM (
    'RUNNING', 'WAITING_FOR_EXTERNAL', 'SUCCEEDED', 'COMPLETED_WITH_ERRORS', 'CANCELED'
);
CREATE TYPE runledger.workflow_step_status AS ENUM (
    'BLOCKED', 'WAITING_FOR_EXTERNAL', 'ENQUEUED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELED'
);
CREATE TYPE runledger.workflow_dependency_release_mode AS ENUM ('ON_TERMINAL', 'ON_SUCCESS');
CREATE TYPE runledger.workflow_step_execution_kind AS ENUM ('JOB', 'EXTERNAL');

CREATE TABLE runledger.job_definitions (
    job_type text PRIMARY KEY,
    version int4 NOT NULL DEFAULT 1,
    max_attempts int4 NOT NULL DEFAULT 8,
    default_timeout_seconds int4 NOT NULL DEFAULT 900,
    default_priority int4 NOT NULL DEFAULT 100,
    is_enabled boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT chk_job_definitions_type_not_blank CHECK (btrim(job_type) <> ''),
    CONSTRAINT chk_job_definitions_version_positive CHECK (version > 0),
    CONSTRAINT chk_job_definitions_max_attempts_positive CHECK (max_attempts > 0),
    CONSTRAINT chk_job_definitions_timeout_positive CHECK (default_timeout_seconds > 0)
);

-- No foreign key to job_definitions: it would take a shared lock on the definition for every
-- enqueue, which makes a multixact of each busy definition and starves its writer.
CREATE TABLE runledger.job_queue (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    job_type text NOT NULL,
    organization_id uuid,
    workflow_run_id uuid,
    schedule_id uuid,
    scheduled_for timestamptz,
    status runledger.job_status NOT NULL DEFAULT 'PENDING',
    -- False while next_run_at lies ahead; the flip before a claim sets it, so that claims never
    -- walk rows that are not due.
    is_ready boolean NOT NULL DEFAULT true,
    priority int4 NOT NULL DEFAULT 100,
    run_number int4 NOT NULL DEFAULT 1,
    attempt int4 NOT NULL DEFAULT 0,
    -- The fence of owner writes: rises at every claim, is never lowered or reset.
    claim_number int8 NOT NULL DEFAULT 0,
    -- The last claim that stored progress, a stage or a checkpoint: such a claim was started.
    progressed_claim_number int8 NOT NULL DEFAULT 0,
    max_attempts int4 NOT NULL,
    timeout_seconds int4 NOT NULL DEFAULT 900,
    next_run_at timestamptz NOT NULL DEFAULT now(),
    lease_expires_at timestamptz,
    last_heartbeat_at timestamptz,
    leased_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    progress_done int8,
    progress_total int8,
    worker_id text,
    stage text NOT NULL DEFAULT 'queued',
    payload jsonb NOT NULL DEFAULT '{}',
    checkpoint jsonb,
    idempotency_key text,
    status_reason text,
    last_error_code text,
    last_error_message text,
    -- W3C trace context of the enqueue, outside every idempotency snapshot.
    trace_context text,
    CONSTRAINT chk_job_queue_run_number_positive CHECK (run_number > 0),
    CONSTRAINT chk_job_queue_attempt_not_negative CHECK (attempt >= 0),
    CONSTRAINT chk_job_queue_max_attempts_positive CHECK (max_attempts > 0),
    CONSTRAINT chk_job_queue_timeout_positive CHECK (timeout_seconds > 0),
    CONSTRAINT chk_job_queue_progress CHECK (
        progress_done >= 0 AND progress_total >= 0 AND progress_done <= progress_total
    ),
    CONSTRAINT chk_job_queue_leased_owner CHECK (
        status <> 'LEASED' OR (worker_id IS NOT NULL AND lease_expires_at IS NOT NULL)
    )
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- claim_jobs: candidates of one type, best first; bitwise not turns "largest priority first" into
-- an ascending key that is defined for every int4.
CREATE INDEX idx_job_queue_ready ON runledger.job_queue (job_type, (~priority), next_run_at, id)
    WHERE status = 'PENDING' AND is_ready;
-- ready_due_jobs (the flip) and the earliest waiting row, by which a sleeping worker wakes.
CREATE INDEX idx_job_queue_waiting ON runledger.job_queue (next_run_at)
    WHERE status = 'PENDING' AND NOT is_ready;
-- reap_expired_leases, leases of a worker, and the Health screen. Not on lease_expires_at:
-- an index there would make every heartbeat a non-HOT update.
CREATE INDEX idx_job_queue_leased ON runledger.job_queue (id) WHERE status = 'LEASED';
-- list_jobs and count_jobs of the rare states.
CREATE INDEX idx_job_queue_rare ON runledger.job_queue (status, id)
    WHERE status IN ('DEAD_LETTERED', 'CANCELED');
-- enqueue_jobs: one row per (type, organization or global, key).
CREATE UNIQUE INDEX uq_job_queue_type_idempotency_org
    ON runledger.job_queue (job_type, organization_id, idempotency_key)
    WHERE organization_id IS NOT NULL AND idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX uq_job_queue_type_idempotency_global
    ON runledger.job_queue (job_type, idempotency_key)
    WHERE organization_id IS NULL AND idempotency_key IS NOT NULL;
-- A fire of a schedule becomes one job, whoever materialises it.
CREATE UNIQUE INDEX uq_job_queue_schedule_fire ON runledger.job_queue (schedule_id, scheduled_for)
    WHERE schedule_id IS NOT NULL;
-- Cancelling, pruning and reading the jobs of one run.
CREATE INDEX idx_job_queue_workflow_run ON runledger.job_queue (workflow_run_id)
    WHERE workflow_run_id IS NOT NULL;

-- One row per ended attempt; the queue row holds owner and start while it runs. No foreign key to
-- the queue: it costs a lock per row, and rows are deleted only by our own pruning.
CREATE TABLE runledger.job_attempts (
    job_id uuid NOT NULL,
    claim_number int8 NOT NULL,
    run_number int4 NOT NULL,
    attempt int4 NOT NULL,
    outcome runledger.job_outcome NOT NULL,
    leased_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    retry_delay_ms int4,
    worker_id text NOT NULL,
    error_code text,
    error_message text,
    CONSTRAINT job_attempts_pkey PRIMARY KEY (job_id, claim_number)
);
-- job_metrics_rollup: attempts of the last 24 hours.
CREATE INDEX brin_job_attempts_finished ON runledger.job_attempts USING brin (finished_at);

-- What no other row proves: retries, dead letters, cancellations, requeues, progress, stages.
CREATE TABLE runledger.job_events (
    job_id uuid NOT NULL,
    id int8 GENERATED ALWAYS AS IDENTITY,
    claim_number int8 NOT NULL,
    run_number int4 NOT NULL,
    attempt int4,
    event_type runledger.job_event_type NOT NULL,
    stage text,
    progress_done int8,
    progress_total int8,
    payload jsonb NOT NULL DEFAULT '{}',
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT job_events_pkey PRIMARY KEY (job_id, id)
);
-- job_metrics_rollup: dead letters of the last 24 hours.
CREATE INDEX brin_job_events_occurred ON runledger.job_events USING brin (occurred_at);

CREATE TABLE runledger.job_dead_letters (
    job_id uuid PRIMARY KEY,
    job_type text NOT NULL,
    organization_id uuid,
    run_number int4 NOT NULL,
    attempt int4 NOT NULL,
    error_code text NOT NULL,
    error_message text NOT NULL,
    payload_snapshot jsonb NOT NULL,
    checkpoint_snapshot jsonb,
    failed_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
-- list_dead_letters: newest first.
CREATE INDEX idx_job_dead_letters_failed ON runledger.job_dead_letters (failed_at DESC, job_id);

CREATE TABLE runledger.job_logs (
    job_id uuid NOT NULL,
    id int8 GENERATED ALWAYS AS IDENTITY,
    claim_number int8 NOT NULL DEFAULT 0,
    run_number int4 NOT NULL DEFAULT 1,
    attempt int4,
    level text NOT NULL,
    message text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT job_logs_pkey PRIMARY KEY (job_id, id),
    CONSTRAINT chk_job_logs_level_not_blank CHECK (btrim(level) <> ''),
    CONSTRAINT chk_job_logs_message_not_blank CHECK (message <> '')
);

CREATE TABLE runledger.job_schedules (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    name text NOT NULL,
    job_type text NOT NULL,
    organization_id uuid,
    payload_template jsonb NOT NULL DEFAULT '{}',
    cron_expr text NOT NULL,
    timezone text NOT NULL DEFAULT 'UTC',
    is_active boolean NOT NULL DEFAULT true,
    -- Always a base of the cron expression; jitter delays the job, not the cursor.
    next_fire_at timestamptz NOT NULL,
    last_fired_at timestamptz,
    -- That fire is not made again, though its job may have been pruned since.
    last_fired_for timestamptz,
    max_jitter_seconds int4 NOT NULL DEFAULT 0,
    -- A failing schedule keeps its base and is looked at again at retry_at.
    retry_at timestamptz,
    failure_count int4 NOT NULL DEFAULT 0,
    last_error_code text,
    last_error_message text,
    created_by_user_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_job_schedules_name UNIQUE (name),
    CONSTRAINT chk_job_schedules_name_not_blank CHECK (btrim(name) <> ''),
    CONSTRAINT chk_job_schedules_cron_not_blank CHECK (btrim(cron_expr) <> ''),
    CONSTRAINT chk_job_schedules_timezone_utc CHECK (timezone = 'UTC'),
    CONSTRAINT chk_job_schedules_jitter CHECK (max_jitter_seconds BETWEEN 0 AND 86400)
);
-- fire_due_schedules: when a schedule is to be looked at, which is its fire, or its retry if it fails.
-- So those that fail for long are not walked by each pass.
CREATE INDEX idx_job_schedules_due ON runledger.job_schedules (greatest(next_fire_at, retry_at))
    WHERE is_active;
-- Disabling a definition looks for active schedules of its type.
CREATE INDEX idx_job_schedules_job_type ON runledger.job_schedules (job_type) WHERE is_active;

CREATE TABLE runledger.job_runtime_configs (
    job_type text PRIMARY KEY,
    schema_version int4 NOT NULL,
    config jsonb NOT NULL,
    updated_by_user_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Not on a hot path, so the foreign key costs nothing here.
    CONSTRAINT fk_job_runtime_configs_job_type FOREIGN KEY (job_type)
        REFERENCES runledger.job_definitions (job_type) ON DELETE CASCADE,
    CONSTRAINT chk_job_runtime_configs_version_positive CHECK (schema_version > 0),
    CONSTRAINT chk_job_runtime_configs_object CHECK (jsonb_typeof(config) = 'object')
);

-- For eyes only: no claim and no recovery depends on a row here.
CREATE TABLE runledger.job_workers (
    worker_id text PRIMARY KEY,
    host text NOT NULL,
    pid int4 NOT NULL,
    version text NOT NULL,
    job_types text[] NOT NULL,
    concurrency int4 NOT NULL,
    state text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT chk_job_workers_state CHECK (state IN ('RUNNING', 'DRAINING', 'UNHEALTHY'))
);

CREATE TABLE runledger.workflow_runs (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    workflow_type text NOT NULL,
    organization_id uuid,
    status runledger.workflow_run_status NOT NULL DEFAULT 'RUNNING',
    -- Status follows from these counters, changed in the statement that changes the steps.
    steps_open int4 NOT NULL DEFAULT 0,
    steps_waiting_external int4 NOT NULL DEFAULT 0,
    steps_failed int4 NOT NULL DEFAULT 0,
    steps_canceled int4 NOT NULL DEFAULT 0,
    idempotency_key text,
    metadata jsonb NOT NULL DEFAULT '{}',
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT chk_workflow_runs_workflow_type_not_blank CHECK (btrim(workflow_type) <> ''),
    CONSTRAINT chk_workflow_runs_idempotency_key_not_blank CHECK (btrim(idempotency_key) <> ''),
    CONSTRAINT chk_workflow_runs_counters CHECK (
        steps_open >= 0 AND steps_waiting_external >= 0 AND steps_failed >= 0 AND steps_canceled >= 0
    )
);
CREATE UNIQUE INDEX uq_workflow_runs_type_idempotency_org
    ON runledger.workflow_runs (workflow_type, organization_id, idempotency_key)
    WHERE organization_id IS NOT NULL AND idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX uq_workflow_runs_type_idempotency_global
    ON runledger.workflow_runs (workflow_type, idempotency_key)
    WHERE organization_id IS NULL AND idempotency_key IS NOT NULL;
-- list_workflow_runs by status, newest first.
CREATE INDEX idx_workflow_runs_status ON runledger.workflow_runs (status, id);
-- prune_workflow_runs: those that ended first.
CREATE INDEX idx_workflow_runs_finished ON runledger.workflow_runs (finished_at, id)
    WHERE finished_at IS NOT NULL;

CREATE TABLE runledger.workflow_steps (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    workflow_run_id uuid NOT NULL REFERENCES runledger.workflow_runs (id) ON DELETE CASCADE,
    step_key text NOT NULL,
    job_type text,
    organization_id uuid,
    -- Until its release; from then on the job has it.
    payload jsonb,
    priority int4,
    max_attempts int4,
    timeout_seconds int4,
    stage text,
    execution_kind runledger.workflow_step_execution_kind NOT NULL DEFAULT 'JOB',
    status runledger.workflow_step_status NOT NULL DEFAULT 'BLOCKED',
    job_id uuid,
    released_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    dependency_count_total int4 NOT NULL DEFAULT 0,
    dependency_count_pending int4 NOT NULL DEFAULT 0,
    dependency_count_unsatisfied int4 NOT NULL DEFAULT 0,
    status_reason text,
    last_error_code text,
    last_error_message text,
    trace_context text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_workflow_steps_run_step_key UNIQUE (workflow_run_id, step_key),
    CONSTRAINT uq_workflow_steps_run_step_id UNIQUE (workflow_run_id, id),
    CONSTRAINT uq_workflow_steps_job_id UNIQUE (job_id),
    CONSTRAINT chk_workflow_steps_key_not_blank CHECK (btrim(step_key) <> ''),
    CONSTRAINT chk_workflow_steps_counts CHECK (
        dependency_count_pending BETWEEN 0 AND dependency_count_total
        AND dependency_count_unsatisfied BETWEEN 0 AND dependency_count_total
    ),
    CONSTRAINT chk_workflow_steps_payload CHECK ((payload IS NULL) = (job_id IS NOT NULL)),
    CONSTRAINT chk_workflow_steps_execution_shape CHECK (
        CASE execution_kind
            WHEN 'JOB' THEN job_type IS NOT NULL AND priority IS NOT NULL AND stage IS NOT NULL
                AND max_attempts > 0 AND timeout_seconds > 0
            ELSE job_type IS NULL AND priority IS NULL AND stage IS NULL
                AND max_attempts IS NULL AND timeout_seconds IS NULL AND job_id IS NULL
        END
    )
);

CREATE TABLE runledger.workflow_step_dependencies (
    workflow_run_id uuid NOT NULL,
    prerequisite_step_id uuid NOT NULL,
    dependent_step_id uuid NOT NULL,
    release_mode runledger.workflow_dependency_release_mode NOT NULL DEFAULT 'ON_TERMINAL',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT workflow_step_dependencies_pkey
        PRIMARY KEY (workflow_run_id, prerequisite_step_id, dependent_step_id),
    CONSTRAINT fk_workflow_step_dependencies_prerequisite
        FOREIGN KEY (workflow_run_id, prerequisite_step_id)
        REFERENCES runledger.workflow_steps (workflow_run_id, id) ON DELETE CASCADE,
    CONSTRAINT fk_workflow_step_dependencies_dependent
        FOREIGN KEY (workflow_run_id, dependent_step_id)
        REFERENCES runledger.workflow_steps (workflow_run_id, id) ON DELETE CASCADE,
    CONSTRAINT chk_workflow_step_dependencies_not_self
        CHECK (prerequisite_step_id <> dependent_step_id)
);
-- The prerequisites of a step.
CREATE INDEX idx_workflow_step_dependencies_dependent
    ON runledger.workflow_step_dependencies (workflow_run_id, dependent_step_id);

CREATE TABLE runledger.workflow_run_mutations (
    id uuid PRIMARY KEY DEFAULT runledger.uuidv7(),
    workflow_run_id uuid NOT NULL REFERENCES runledger.workflow_runs (id) ON DELETE CASCADE,
    mutation_key text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    request jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_workflow_run_mutations_key UNIQUE (workflow_run_id, mutation_key),
    CONSTRAINT chk_workflow_run_mutations_key_not_blank CHECK (btrim(mutation_key) <> '')
);

-- Everything that happened to a job, in the order that its row lock gave: by claim, then start,
-- progress, end, and the other stored events by id. Times are for reading, never for sorting.
CREATE VIEW runledger.job_timeline AS
SELECT q.id AS job_id, 0::int8 AS claim_number, 0 AS rank, 0::int8 AS event_id,
    'ENQUEUED'::runledger.job_event_type AS event_type, 1 AS run_number, NULL::int4 AS attempt,
    'queued' AS stage, NULL::int8 AS progress_done, NULL::int8 AS progress_total,
    jsonb_build_object('job_type', q.job_type) AS payload, q.created_at AS occurred_at
FROM runledger.job_queue q
UNION ALL
SELECT q.id, q.claim_number, 1, 0, 'LEASED', q.run_number, q.attempt, NULL, NULL, NULL,
    jsonb_build_object('worker_id', q.worker_id), q.leased_at
FROM runledger.job_queue q
WHERE q.status = 'LEASED'
UNION ALL
SELECT a.job_id, a.claim_number, 1, 0, 'LEASED', a.run_number, a.attempt, NULL, NULL, NULL,
    jsonb_build_object('worker_id', a.worker_id), a.leased_at
FROM runledger.job_attempts a
UNION ALL
SELECT e.job_id, e.claim_number, 1, 0, 'LEASED', e.run_number, e.attempt, NULL, NULL, NULL,
    jsonb_build_object('worker_id', e.payload ->> 'worker_id'),
    (e.payload ->> 'leased_at')::timestamptz
FROM runledger.job_events e
WHERE e.event_type = 'REQUEUED' AND e.payload ->> 'kind' = 'RELEASE'
UNION ALL
SELECT a.job_id, a.claim_number, 3, 0,
    (CASE a.outcome WHEN 'SUCCEEDED' THEN 'SUCCEEDED' ELSE 'FAILED' END)::runledger.job_event_type,
    a.run_number, a.attempt,
    CASE a.outcome WHEN 'SUCCEEDED' THEN 'completed' END, NULL, NULL,
    CASE a.outcome
        WHEN 'SUCCEEDED' THEN '{}'::jsonb
        ELSE jsonb_build_object(
            'kind', a.outcome, 'error_code', a.error_code, 'error_message', a.error_message
        )
    END,
    a.finished_at
FROM runledger.job_attempts a
WHERE a.outcome <> 'CANCELED'
UNION ALL
SELECT e.job_id, e.claim_number,
    CASE WHEN e.event_type IN ('PROGRESS', 'STAGE_CHANGED') THEN 2 ELSE 4 END, e.id,
    e.event_type, e.run_number, e.attempt, e.stage, e.progress_done, e.progress_total,
    e.payload, e.occurred_at
FROM runledger.job_events e;

CREATE VIEW runledger.job_metrics_rollup AS
-- One row per organization and type seen. Three counts stacked and grouped, not joined: a join on
-- a nullable organization compares every row with every other.
WITH ended AS (
    SELECT q.organization_id, q.job_type, a.outcome,
        extract(epoch FROM a.finished_at - a.leased_at) * 1000 AS duration_ms
    FROM runledger.job_attempts AS a
    JOIN runledger.job_queue AS q ON q.id = a.job_id
    WHERE a.finished_at > now() - interval '24 hours'
), seen AS (
    SELECT q.organization_id, q.job_type, q.status, q.lease_expires_at,
        NULL::runledger.job_outcome AS outcome, NULL::numeric AS duration_ms, 0 AS dead_letters
    FROM runledger.job_queue AS q
    WHERE q.status IN ('PENDING', 'LEASED')
    UNION ALL
    SELECT e.organization_id, e.job_type, NULL, NULL, e.outcome, e.duration_ms, 0
    FROM ended AS e
    UNION ALL
    SELECT q.organization_id, q.job_type, NULL, NULL, NULL, NULL, 1
    FROM runledger.job_events AS e
    JOIN runledger.job_queue AS q ON q.id = e.job_id
    WHERE e.event_type = 'DEAD_LETTERED' AND e.occurred_at > now() - interval '24 hours'
)
SELECT s.organization_id, s.job_type,
    count(*) FILTER (WHERE s.status = 'PENDING') AS pending_count,
    count(*) FILTER (WHERE s.status = 'LEASED') AS leased_count,
    count(*) FILTER (WHERE s.status = 'LEASED' AND s.lease_expires_at < clock_timestamp())
        AS stale_leases,
    count(*) FILTER (WHERE s.outcome = 'SUCCEEDED') AS succeeded_24h,
    count(*) FILTER (WHERE s.outcome = 'RETRYABLE') AS retryable_24h,
    count(*) FILTER (WHERE s.outcome = 'TERMINAL') AS terminal_24h,
    count(*) FILTER (WHERE s.outcome = 'PANICKED') AS panicked_24h,
    count(*) FILTER (WHERE s.outcome = 'TIMEOUT') AS timeout_24h,
    count(*) FILTER (WHERE s.outcome = 'LEASE_EXPIRED') AS lease_expired_24h,
    sum(s.dead_letters) AS dead_lettered_24h,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY s.duration_ms) AS p50_duration_ms_24h,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY s.duration_ms) AS p95_duration_ms_24h
FROM seen AS s
GROUP BY s.organization_id, s.job_type;
