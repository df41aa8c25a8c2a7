"""Log records of handlers carry the fields of their jobs."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from runledger_core import HandlerResult, JobContext, JsonValue

from .middleware import Execute, ExecuteAsync, JobMiddleware

_context: ContextVar[JobContext | None] = ContextVar("runledger_job", default=None)


class JobLogFields(JobMiddleware):
    """Give log records of a handler its job's fields; middleware and filter in one.

    Add it to a catalog or registry, and with `addFilter` to the handlers of your logging. A record
    made while a handler runs, by whatever it calls and awaits and by calls of `asyncio.to_thread`,
    then has `job_id`, `job_type`, `run_number`, `attempt`, `organization_id` and `worker_id`; what
    a record has already is kept. Other records are left as they are. A thread that a handler starts
    by itself has the fields if it runs in a copy of the handler's context.
    """

    def execute(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: Execute,
    ) -> HandlerResult:
        """Run an attempt with its fields at hand."""
        token = _context.set(context)
        try:
            return call_next(context, payload)
        finally:
            _context.reset(token)

    async def execute_async(
        self,
        context: JobContext,
        payload: JsonValue,
        call_next: ExecuteAsync,
    ) -> HandlerResult:
        """Run an attempt with its fields at hand."""
        token = _context.set(context)
        try:
            return await call_next(context, payload)
        finally:
            _context.reset(token)

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to a record; all records pass."""
        context = _context.get()
        if context is not None:
            organization_id = context.organization_id
            for name, value in (
                ("job_id", str(context.job_id)),
                ("job_type", str(context.job_type)),
                ("run_number", context.run_number),
                ("attempt", context.attempt),
                ("organization_id", None if organization_id is None else str(organization_id)),
                ("worker_id", str(context.worker_id)),
            ):
                record.__dict__.setdefault(name, value)
        return True
