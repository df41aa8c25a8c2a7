"""Stable codes of the errors that this distribution raises, or stores on jobs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_HANDLER_MEANINGS: Final[Mapping[str, str]] = {
    "duplicate_job_type": "The job type has a handler already.",
    "frozen": "It is in use by a worker or a Supervisor and no longer changes.",
    "handler_job_type_mismatch": "The handler names another job type than it is registered for.",
    "invalid_backoff": "What should choose retry delays is no `BackoffPolicy`.",
    "invalid_failure_code": "The failure code of a delay is blank or not storable.",
    "invalid_handler": "The handler cannot be called with a context and a payload.",
    "invalid_handler_job_type": "The job type that the handler names is blank or not storable.",
    "invalid_job_type": "The job type is blank or not storable.",
    "invalid_middleware": "A middleware is none, or would be left out of some handlers.",
    "invalid_retry_delay": "A retry delay is not an integer of 1 ms or more.",
    "unusable_payload_annotation": "The handler cannot have what its payload is annotated with.",
}

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{area}.{name}": meaning
        for area in ("catalog", "registry")
        for name, meaning in _HANDLER_MEANINGS.items()
    }
    | {
        "backoff.invalid_cap": "The longest delay of a policy is below its first.",
        "backoff.invalid_delay": "A delay of a policy is not an integer of 1 ms or more.",
        "catalog.disabled_job_type": "The catalog disables this job type.",
        "catalog.duplicate_exact_schedule_sync_scope_name": "A scope names a schedule twice.",
        "catalog.duplicate_schedule_name": "The catalog has a schedule of this name already.",
        "catalog.duplicate_schedule_name_in_sync_batch": "A sync was given a schedule twice.",
        "catalog.empty_exact_sync_catalog": "An exact sync needs at least one job.",
        "catalog.invalid_definition_value": "A catalog default is out of range or of another type.",
        "catalog.invalid_exact_schedule_sync_scope": (
            "The scope of an exact sync is empty, or no scope."
        ),
        "catalog.invalid_exact_schedule_sync_scope_name": (
            "No schedule can have one of the names in the scope."
        ),
        "catalog.invalid_exact_sync_scope": (
            "The scope of an exact sync names no job type, or is no scope."
        ),
        "catalog.invalid_exact_sync_scope_job_type": "A job type in the scope is not storable.",
        "catalog.invalid_job_definition_value": (
            "A value given for a job is out of range, or of another type."
        ),
        "catalog.invalid_schedule_spec": "A schedule cannot be as it is given; `field` names what.",
        "catalog.job_type_outside_exact_sync_scope": "A job of the catalog is not in the scope.",
        "catalog.schedule_name_outside_exact_sync_scope": "A schedule is not in the scope.",
        "catalog.unknown_job_type": "The catalog has no such job type.",
        "config.empty_worker_id": "The worker id is blank.",
        "config.invalid_claim_batch_size": "The claim batch is not between 1 and 1,000.",
        "config.invalid_handler_grace_seconds": "The grace of handlers is negative.",
        "config.invalid_lease_ttl_seconds": "The lease is shorter than a second.",
        "config.invalid_max_global_concurrency": "No handler could run.",
        "config.invalid_max_stuck_handlers": "The number of stuck handlers is negative.",
        "config.invalid_reaper_retry_delay_ms": "The reaper's retry delay is shorter than 1 ms.",
        "config.invalid_value": "A setting has the wrong type, or is too large or too long.",
        "config.unparsable_variable": "The text of an environment variable cannot be read.",
        "config.zero_poll_interval": "The poll interval is shorter than 1 ms.",
        "config.zero_reaper_interval": "The reaper's interval is shorter than a second.",
        "config.zero_schedule_poll_interval": "The scheduler's interval is shorter than a second.",
        "health.port_unavailable": "The health port cannot be listened on.",
        "job.blocks_event_loop": "A service was called that would block the event loop.",
        "job.handler_exception": "The handler raised something that is no `JobFailure`.",
        "job.handler_not_registered": "The worker holds a job whose type it has no handler for.",
        "job.handler_not_started": (
            "The worker could neither start a thread for the handler nor give the job back."
        ),
        "job.handler_panic": "The handler raised what puts the process in doubt.",
        "job.invalid_handler_result": (
            "The handler returned neither None nor a completion nor a failure."
        ),
        "job.invalid_output": "The output is no JSON, too large, or refused by the database.",
        "job.invalid_payload": "The payload does not fit what the handler annotates it with.",
        "job.timeout_exceeded": "The handler did not end within its time.",
        "job.worker_shutdown": "The worker was stopped before the handler had ended.",
        "observer.async_unsupported": "A method of an observer is an `async def`.",
        "observer.invalid_observer": "An observer is no instance of `JobLifecycleObserver`.",
        "supervisor.forked": "A Supervisor was used in a forked child.",
        "supervisor.invalid_jobs_config": "The settings cannot be used; the cause tells more.",
        "supervisor.missing_registry": "A loop needs handlers and has none.",
        "supervisor.mixed_registry_sources": "Both a catalog and a registry were given.",
        "supervisor.shutdown_aborted": "A second signal ended the wait.",
        "supervisor.shutdown_timeout": "Loops had not ended at the deadline.",
        "supervisor.shutdown_timeout_after_task_error": "A loop failed, others ran on too long.",
        "supervisor.shutdown_timeout_too_large": "The timeout is too long to wait for.",
        "supervisor.signals_unavailable": "Signals can be handled in the main thread only.",
        "supervisor.task_exited_unexpectedly": "A loop ended without being asked to.",
        "supervisor.task_failed": "A loop ended with an exception.",
        "supervisor.too_few_connections": "The server has too few connections for a loop.",
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

_RESTART: Final = "End the process; what it ran is run again when its leases have expired."
_ANNOTATION: Final = "The message says which name, or what to install."

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "catalog.unusable_payload_annotation": _ANNOTATION,
        "catalog.frozen": "Add everything before the first Supervisor is built.",
        "config.invalid_value": "`field` names the setting or the variable.",
        "config.unparsable_variable": "`field` names the variable; correct it, or remove it.",
        "health.port_unavailable": "Choose a port that is free; the message says what is wrong.",
        "job.blocks_event_loop": "Await `asyncio.to_thread` of it, or `asyncio.sleep` to wait.",
        "job.handler_exception": "Read the traceback in the job's log; it is tried again.",
        "job.handler_not_registered": "Register a handler for the type, then requeue the job.",
        "job.handler_not_started": (
            "Look for what uses up threads or memory; it is tried again while attempts are left."
        ),
        "job.handler_panic": "Read the traceback in the job's log; requeue it once that is mended.",
        "job.invalid_handler_result": "Return None, a `JobCompletion` or a `JobFailure`.",
        "job.invalid_output": "Return less, or a reference to where it is kept.",
        "job.invalid_payload": "Correct the enqueue or the annotation; requeue the job.",
        "job.timeout_exceeded": "Raise `timeout_seconds`, or do less in a job; it is tried again.",
        "job.worker_shutdown": "Nothing; it is tried again.",
        "registry.unusable_payload_annotation": _ANNOTATION,
        "registry.frozen": "Register everything before the worker starts.",
        "observer.async_unsupported": "Write a plain `def`; it runs on a thread and may block.",
        "supervisor.forked": "Build a Supervisor in the child.",
        "supervisor.missing_registry": "Call `with_catalog`, or disable the loop.",
        "supervisor.mixed_registry_sources": "Call `with_catalog` or `with_registry`.",
        "supervisor.shutdown_aborted": _RESTART,
        "supervisor.shutdown_timeout": _RESTART,
        "supervisor.shutdown_timeout_after_task_error": _RESTART,
        "supervisor.signals_unavailable": "Pass `stop`: an `Event`, or a function that blocks.",
        "supervisor.task_exited_unexpectedly": "Look at `health()` and the log; restart.",
        "supervisor.task_failed": "Look at the error's `source`; restart.",
        "supervisor.too_few_connections": (
            "Raise `max_connections` or the limit of role, database or pooler; close others;"
            " `JOBS_WAKEUPS=off` saves two."
        ),
    }
)
"""What to do about a code, where its category does not say enough."""
