-- Keyed retries are compared with the request as it was given, never with mutable live columns.

-- In the lock order of the engine: runs, then jobs.
ALTER TABLE runledger.workflow_runs ADD COLUMN enqueue_request jsonb;
ALTER TABLE runledger.job_queue ADD COLUMN enqueue_request jsonb;

-- The cutover check: keyed rows that were written before snapshots existed.
CREATE INDEX idx_job_queue_missing_enqueue_request_snapshot ON runledger.job_queue (id)
    WHERE idempotency_key IS NOT NULL AND enqueue_request IS NULL;
CREATE INDEX idx_workflow_runs_missing_enqueue_request_snapshot ON runledger.workflow_runs (id)
    WHERE idempotency_key IS NOT NULL AND enqueue_request IS NULL;
