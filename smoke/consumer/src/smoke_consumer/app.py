"""The catalog of the service: its job types and their handlers."""

import threading

from runledger_core import JobCompletion, JobContext, JobFailure, JsonValue
from runledger_runtime import JobCatalog

catalog = JobCatalog()
finished = threading.Event()


@catalog.job("jobs.email.send", max_attempts=5, timeout_seconds=60)
def send_email(context: JobContext, payload: JsonValue) -> JobCompletion:
    """Pretend to send one mail."""
    if not isinstance(payload, dict) or not payload.get("to"):
        code, message = "email.no_recipient", "no recipient"
        raise JobFailure.terminal(code, message)
    finished.set()
    return JobCompletion.with_output({"sent_to": payload["to"], "attempt": context.attempt})
