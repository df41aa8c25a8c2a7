"""Stable codes of the errors that this distribution raises, or stores on jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "config.database_url_invalid": "The connection string cannot be read.",
        "config.database_url_missing": "No database is named.",
        "db.business_rule_violation": "A value breaks a rule of the schema.",
        "db.connection_busy": "The connection is in the middle of another command.",
        "db.forked": "The pool was opened before a fork, by another process.",
        "db.lock_timeout": "A row, or the turn to migrate, stayed locked for too long.",
        "db.object_not_ready": "The object is in use, or not in a state for this.",
        "db.out_of_resources": "The server has no memory, disk or connections left.",
        "db.outcome_unknown": (
            "The connection died at COMMIT: the call has been stored completely, or not at all."
        ),
        "db.permission_denied": "The database role may not do this.",
        "db.pipeline_unsupported": "Migrations were asked for in pipeline mode.",
        "db.query_failed": "The database refused the statement for a reason without a code.",
        "db.read_only": "The database accepts no writes, as a standby does not.",
        "db.related_resource_missing": "A row that another must point at does not exist.",
        "db.related_resource_still_referenced": "Another row still points at this one.",
        "db.required_field_missing": "A value that the schema requires is missing.",
        "db.rows_kept_back": "A trigger of the host kept rows back; all of the change is undone.",
        "db.serialization_failure": "Transactions collided, or deadlocked.",
        "db.statement_timeout": "The statement was cancelled, or ran longer than allowed.",
        "db.transaction_aborted": "An earlier statement of the transaction has failed.",
        "db.transaction_timeout": "The transaction ran longer than the server's setting allows.",
        "db.two_phase_unsupported": "The connection is in a two-phase transaction.",
        "db.unavailable": "The server cannot be reached, or no connection was free in time.",
        "db.unique_violation": "A row with these values exists.",
        "db.unsupported_connection": "The first argument is no pool or connection of psycopg 3.",
        "db.unsupported_encoding": "The connection's `client_encoding` is not UTF8.",
        "embedded.account_not_found": "Root needs another account to run the server as.",
        "embedded.binaries_not_found": "No PostgreSQL programs were found.",
        "embedded.binaries_unusable": "The PostgreSQL programs do not run here.",
        "embedded.directory_forbidden": "The directory cannot be written.",
        "embedded.directory_not_ours": "The directory holds other files.",
        "embedded.directory_unreachable": "The server's account cannot enter the directory.",
        "embedded.init_failed": "`initdb` failed.",
        "embedded.lock_timeout": "Another process was starting or stopping the server too long.",
        "embedded.not_started": "The server was asked for something before `start`.",
        "embedded.password_missing": "The file with the server's password is gone.",
        "embedded.setting_reserved": "The setting is one that the embedded server needs itself.",
        "embedded.start_failed": "The server ended while starting, or refuses us.",
        "embedded.start_timeout": "The server runs but accepts no connections yet.",
        "embedded.stop_failed": "The server did not stop.",
        "embedded.version_mismatch": "Another major version of PostgreSQL made the directory.",
        "embedded.version_unsupported": "The PostgreSQL programs are older than 15.",
        "input.duplicate_entry": "A batch names the same job twice.",
        "job.already_enqueued": "Rows were written around the API under a key that exists.",
        "job.definition_not_found": "No definition has this job type.",
        "job.definition_not_found_or_disabled": "The job type has no definition, or is disabled.",
        "job.enqueue_batch_too_large": "The payloads of one call are too large for one statement.",
        "job.enqueue_idempotency_unsupported_isolation": (
            "A keyed enqueue joined a transaction stronger than READ COMMITTED."
        ),
        "job.idempotency_conflict": "The key belongs to a different request; `field` names one.",
        "job.idempotency_conflict_missing_existing": (
            "The key is taken by a job that cannot be seen, again and again."
        ),
        "job.invalid_completion_progress": "Progress at the end is beyond the total.",
        "job.invalid_lease_duration": "A lease must last a second or more.",
        "job.invalid_pagination": "The limit is not 1 to 1,000, or the cursor fits no page.",
        "job.invalid_progress": "Progress, merged with what is stored, is beyond its total.",
        "job.invalid_retry_delay": "A retry needs a delay of 1 ms or more.",
        "job.invalid_state_transition": "The job's status does not allow this.",
        "job.lease_expired": "The worker's lease ran out before the attempt ended.",
        "job.lease_owner_mismatch": (
            "The lease is not live, or not this claim's: lost, expired, canceled or ended."
        ),
        "job.legacy_idempotency_snapshot_missing": (
            "The job with this key was stored without its request, so nothing can be compared."
        ),
        "job.not_found": "No job of that id is in scope.",
        "job.runtime_config_not_found": "The job type has no runtime configuration.",
        "job.undecodable_row": "Python cannot read what is stored, such as JSON nested too deeply.",
        "job.unstarted_claim_release_not_applicable": (
            "The claim has stored progress, a checkpoint or a log, so it was started."
        ),
        "job.workflow_requeue_not_supported": "The job belongs to a workflow run.",
        "job_definition.active_schedule_exists": (
            "An active schedule uses a type that would be disabled."
        ),
        "job_definition.disable_unsupported_isolation": (
            "A disable joined a transaction stronger than READ COMMITTED."
        ),
        "job_definition.duplicate_job_type": "A sync names the same type twice.",
        "job_definition.empty_job_type_list": "An exact sync names no type.",
        "job_definition.type_outside_sync_scope": "An exact sync names a type outside its scope.",
        "job_schedule.claimed_schedule_missing": (
            "A schedule vanished from the transaction that was firing it."
        ),
        "job_schedule.definition_not_found_or_disabled": (
            "The job type of an active schedule has no definition, or is disabled."
        ),
        "job_schedule.duplicate_name": "A sync names the same schedule twice.",
        "job_schedule.empty_sync_scope": "An exact sync names no schedule that it owns.",
        "job_schedule.exhausted": "The last fire was made, and the schedule is off since.",
        "job_schedule.name_outside_sync_scope": (
            "An exact sync names a schedule outside its scope."
        ),
        "job_schedule.plan_failed": "The next fire of a stored schedule cannot be told.",
        "job_schedule.sync_unsupported_isolation": (
            "An exact sync joined a transaction stronger than READ COMMITTED."
        ),
        "schema.legacy_idempotency_snapshots_missing": "Keyed rows have no stored request.",
        "schema.migration_checksum_mismatch": "A migration was applied with another text.",
        "schema.migration_failed": "The database refused a migration; nothing was changed.",
        "schema.migration_files_missing": "The installation holds no migration files.",
        "schema.migration_missing": "The database is behind this version.",
        "schema.migration_unknown": "The database is ahead of this version.",
        "schema.migration_unsupported_isolation": (
            "Migrations joined a transaction stronger than READ COMMITTED."
        ),
        "schema.missing_migration_history": "The database has no Runledger schema.",
        "schema.server_too_old": "The server is older than PostgreSQL 15.",
        "workflow.already_enqueued": "The key's run cannot be seen, again and again.",
        "workflow.append_conflicting_retry": "The mutation key belongs to another append.",
        "workflow.append_terminal_run": "The run has ended, so no step can be added.",
        "workflow.append_unsupported_isolation": (
            "An append joined a transaction stronger than READ COMMITTED."
        ),
        "workflow.append_window_missing": "The run has no gate of that key.",
        "workflow.append_window_not_external": "The step that should be an open gate is a job.",
        "workflow.append_window_not_open": "The gate is not open yet, or not any more.",
        "workflow.cancel_unsupported_isolation": (
            "A cancel of a run joined a transaction stronger than READ COMMITTED."
        ),
        "workflow.definition_not_found_or_disabled": (
            "The job type of a step has no definition, or is disabled."
        ),
        "workflow.enqueue_conflicting_retry": "The key belongs to a run with another request.",
        "workflow.enqueue_idempotency_unsupported_isolation": (
            "A keyed enqueue joined a transaction stronger than READ COMMITTED."
        ),
        "workflow.enqueue_too_large": "The payloads of one call are too large for one statement.",
        "workflow.external_completion_unsupported_isolation": (
            "The completion of a gate joined a transaction stronger than READ COMMITTED."
        ),
        "workflow.external_step_conflicting_completion_retry": (
            "The gate was completed before, in another way."
        ),
        "workflow.external_step_conflicting_output_retry": (
            "The gate was completed before, with another output."
        ),
        "workflow.external_step_not_external": "The step is a job, not a gate.",
        "workflow.external_step_not_found": "The run has no step of that key.",
        "workflow.external_step_not_waiting": "The gate is not open yet.",
        "workflow.handle_storage_error": "The database could not be asked about the run.",
        "workflow.legacy_idempotency_snapshot_missing": (
            "The run with this key was stored without its request, so nothing can be compared."
        ),
        "workflow.release_conflict": "Another transaction holds the run; nothing was changed.",
        "workflow.result_missing": "The run succeeded, but its result step gave no output.",
        "workflow.result_not_declared": "The run declared no result step.",
        "workflow.result_unsuccessful_terminal": "The run ended without success.",
        "workflow.result_wait_timeout": "The run had not ended when the time was up.",
        "workflow.run_not_found": "No run of that id is in scope.",
        "workflow.terminal_completion_unsupported_isolation": (
            "The end of a workflow's job joined a transaction stronger than READ COMMITTED."
        ),
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

_READ_COMMITTED: Final = "Begin the transaction as READ COMMITTED, PostgreSQL's default."
_MIGRATE: Final = "Run `runledger migrate`."

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "config.database_url_missing": "Pass a connection string, or set `DATABASE_URL`.",
        "db.connection_busy": "Finish the COPY, stream or other command first.",
        "db.forked": "Open a pool in the child.",
        "db.out_of_resources": "Give the server room; the same call may succeed then.",
        "db.outcome_unknown": (
            "Repeat a keyed enqueue or a completion. Look before repeating anything else."
        ),
        "db.permission_denied": "Use a role that may, or grant what the operations guide lists.",
        "db.pipeline_unsupported": "Leave the pipeline first.",
        "db.query_failed": "Look at `internal_message` and `sqlstate` in the log.",
        "db.rows_kept_back": "Look at triggers on Runledger's tables that return NULL.",
        "db.transaction_aborted": "Roll the transaction back, then begin anew.",
        "db.transaction_timeout": "Raise `transaction_timeout` of the role, or set it to 0.",
        "db.two_phase_unsupported": "Pass a pool, or a connection outside that transaction.",
        "db.unsupported_connection": "Pass a psycopg 3 pool or connection, or SQLAlchemy on it.",
        "db.unsupported_encoding": "Connect with `client_encoding=UTF8`.",
        "embedded.account_not_found": "Run as an ordinary user, or name an account.",
        "embedded.binaries_not_found": "`pip install 'runledger-postgres[embedded]'`.",
        "embedded.binaries_unusable": "Name another folder of programs.",
        "embedded.directory_forbidden": "Choose a directory of your own.",
        "embedded.directory_not_ours": "Choose an empty directory, or a new one.",
        "embedded.directory_unreachable": "Choose a directory that every account can enter.",
        "embedded.init_failed": "Look at `internal_message`.",
        "embedded.lock_timeout": "Wait for that process, or end it.",
        "embedded.not_started": "Call `start`, or use the server as a context manager.",
        "embedded.password_missing": "Restore the file, or remove the directory.",
        "embedded.setting_reserved": "Leave the setting out.",
        "embedded.start_failed": "Read the server's log, which the message names.",
        "embedded.start_timeout": "Read the server's log, which the message names.",
        "embedded.stop_failed": "End the process that the message names by hand.",
        "embedded.version_mismatch": "Name programs of that version, or another directory.",
        "embedded.version_unsupported": "Use PostgreSQL 15 or newer.",
        "job.already_enqueued": "Use `enqueue_job`, which finds the existing job.",
        "job.definition_not_found_or_disabled": (
            "Start a worker whose catalog has the type, or call `upsert_job_definition`."
        ),
        "job.definition_not_found": "Call `upsert_job_definition` first.",
        "job.enqueue_batch_too_large": "Split the call.",
        "job.enqueue_idempotency_unsupported_isolation": _READ_COMMITTED,
        "job.idempotency_conflict": "Use a key for one request only; the stored job stands.",
        "job.idempotency_conflict_missing_existing": "Try again; report it if it stays.",
        "job.invalid_state_transition": "Read the job: it ended, or has not ended yet.",
        "job.lease_expired": "Nothing, if a worker died; else see the workers guide on leases.",
        "job.lease_owner_mismatch": "Stop work on the job: somebody else may be running it.",
        "job.legacy_idempotency_snapshot_missing": "Use another key, or clear the old row's key.",
        "job.runtime_config_not_found": "Insert one, or call `get_job_runtime_config`.",
        "job.undecodable_row": "Read the row with psql; cancel and requeue work on it.",
        "job.unstarted_claim_release_not_applicable": "Complete or fail the attempt instead.",
        "job.workflow_requeue_not_supported": "Leave the job to its run.",
        "job_definition.active_schedule_exists": "Deactivate the schedules first.",
        "job_definition.disable_unsupported_isolation": _READ_COMMITTED,
        "job_schedule.claimed_schedule_missing": "Let the plan write nothing to schedules.",
        "job_schedule.definition_not_found_or_disabled": (
            "Sync or enable the definition first, or switch the schedule off."
        ),
        "job_schedule.exhausted": "Change the cron expression, or delete the schedule.",
        "job_schedule.plan_failed": "Read the message on the schedule, and store it anew.",
        "job_schedule.sync_unsupported_isolation": _READ_COMMITTED,
        "schema.legacy_idempotency_snapshots_missing": (
            "Let those rows end and delete them, or clear their keys, then migrate again."
        ),
        "schema.migration_checksum_mismatch": "Use the version that applied them.",
        "schema.migration_failed": "Look at `internal_message`, remove the cause, run it again.",
        "schema.migration_files_missing": "Install `runledger-postgres` anew.",
        "schema.migration_missing": _MIGRATE,
        "schema.migration_unknown": "Upgrade `runledger-postgres` to the version that applied it.",
        "schema.migration_unsupported_isolation": _READ_COMMITTED,
        "schema.missing_migration_history": _MIGRATE,
        "schema.server_too_old": "Upgrade the server.",
        "workflow.already_enqueued": "Try again; report it if it stays.",
        "workflow.append_conflicting_retry": "Use a mutation key for one append only.",
        "workflow.append_terminal_run": "Enqueue another run.",
        "workflow.append_unsupported_isolation": _READ_COMMITTED,
        "workflow.append_window_not_open": "Append while the gate waits.",
        "workflow.cancel_unsupported_isolation": _READ_COMMITTED,
        "workflow.definition_not_found_or_disabled": (
            "Start a worker whose catalog has the type, or call `upsert_job_definition`."
        ),
        "workflow.enqueue_conflicting_retry": "Use a key for one request only; the run stands.",
        "workflow.enqueue_idempotency_unsupported_isolation": _READ_COMMITTED,
        "workflow.enqueue_too_large": "Split the call, or store what is large elsewhere.",
        "workflow.external_completion_unsupported_isolation": _READ_COMMITTED,
        "workflow.external_step_conflicting_completion_retry": "Read the step: its end stands.",
        "workflow.external_step_conflicting_output_retry": "Read the step: its output stands.",
        "workflow.external_step_not_waiting": "Complete it once its prerequisites have ended.",
        "workflow.handle_storage_error": "Ask again; the run goes on. Its cause tells more.",
        "workflow.legacy_idempotency_snapshot_missing": (
            "Use another key, or clear the old row's key."
        ),
        "workflow.release_conflict": "Repeat the call; the transaction goes on.",
        "workflow.result_missing": "Let the handler of the result step return an output.",
        "workflow.result_not_declared": "Declare a result step, or read the steps.",
        "workflow.result_unsuccessful_terminal": "Read the steps: one failed or was canceled.",
        "workflow.result_wait_timeout": "Wait again, or for longer.",
        "workflow.terminal_completion_unsupported_isolation": _READ_COMMITTED,
    }
)
"""What to do about a code, where its category does not say enough."""
