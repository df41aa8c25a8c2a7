"""The status of a run from its counters, in SQL; as `runledger_core.workflows.run_status`."""

from __future__ import annotations

from typing import LiteralString


def status_of(counted: LiteralString) -> LiteralString:
    """Return the expression for a run that is not canceled.

    Args:
        counted: Alias of a row with the run's four counters.
    """
    return f"""(CASE
            WHEN {counted}.steps_open > {counted}.steps_waiting_external THEN 'RUNNING'
            WHEN {counted}.steps_open > 0 THEN 'WAITING_FOR_EXTERNAL'
            WHEN {counted}.steps_failed + {counted}.steps_canceled > 0 THEN 'COMPLETED_WITH_ERRORS'
            ELSE 'SUCCEEDED'
        END)"""
