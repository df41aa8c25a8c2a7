-- New keyed rows need a snapshot. The runner validates both constraints once no older row lacks one.

ALTER TABLE runledger.job_queue ADD CONSTRAINT ck_job_queue_idempotency_enqueue_request
    CHECK (idempotency_key IS NULL OR enqueue_request IS NOT NULL) NOT VALID;
ALTER TABLE runledger.workflow_runs ADD CONSTRAINT ck_workflow_runs_idempotency_enqueue_request
    CHECK (idempotency_key IS NULL OR enqueue_request IS NOT NULL) NOT VALID;
