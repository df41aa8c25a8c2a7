-- Outputs of jobs and steps, and the declared result of a run.

ALTER TABLE runledger.job_queue ADD COLUMN output jsonb;
ALTER TABLE runledger.workflow_steps ADD COLUMN output jsonb;
ALTER TABLE runledger.workflow_runs
    ADD COLUMN result_step_key text,
    ADD COLUMN result jsonb,
    ADD CONSTRAINT chk_workflow_runs_result_step_key_not_blank CHECK (btrim(result_step_key) <> ''),
    -- Deferred: a run is inserted before its steps.
    ADD CONSTRAINT fk_workflow_runs_result_step FOREIGN KEY (id, result_step_key)
        REFERENCES runledger.workflow_steps (workflow_run_id, step_key)
        DEFERRABLE INITIALLY DEFERRED;
