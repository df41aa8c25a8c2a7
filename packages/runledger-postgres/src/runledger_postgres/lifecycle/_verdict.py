"""What became of one entry of a batch of owner writes."""

from __future__ import annotations

from enum import StrEnum

from runledger_core import ErrorCategory

from ..errors import QueryError, refusal
from ._lease import lease_owner_mismatch


class WriteVerdict(StrEnum):
    """The fate of one entry; only STORED means that this call changed something."""

    STORED = "STORED"
    """Written by this call."""
    REPEATED = "REPEATED"
    """The same write of the same claim was stored before; the answer is as stored."""
    BUSY = "BUSY"
    """Another transaction holds the row; the lease is live and the write may be tried again."""
    LEASE_OWNER_MISMATCH = "LEASE_OWNER_MISMATCH"
    """Not, or no longer, the live lease's owner."""
    INVALID_RETRY_DELAY = "INVALID_RETRY_DELAY"
    """A retry needs a positive delay."""
    INVALID_PROGRESS = "INVALID_PROGRESS"
    """Merged with what is stored, the progress of a completion would be beyond its total."""
    NOT_APPLICABLE = "NOT_APPLICABLE"
    """A release of a claim that has stored progress, a checkpoint or a log."""

    @property
    def is_stored(self) -> bool:
        """Whether the write is in the database, by this call or by an earlier one."""
        return self in {WriteVerdict.STORED, WriteVerdict.REPEATED}


def verdict_refusal(verdict: WriteVerdict) -> QueryError:
    """Return the error that a single write raises for a verdict that stored nothing."""
    match verdict:
        case WriteVerdict.BUSY:
            return refusal(ErrorCategory.UNAVAILABLE, "db.lock_timeout", "the job is locked; retry")
        case WriteVerdict.INVALID_RETRY_DELAY:
            return refusal(
                ErrorCategory.VALIDATION,
                "job.invalid_retry_delay",
                "a retry needs a delay of 1 ms or more",
                field="retry_delay_ms",
            )
        case WriteVerdict.INVALID_PROGRESS:
            return refusal(
                ErrorCategory.VALIDATION,
                "job.invalid_completion_progress",
                "progress must be at most its total",
                field="progress_done",
            )
        case WriteVerdict.NOT_APPLICABLE:
            return refusal(
                ErrorCategory.VALIDATION,
                "job.unstarted_claim_release_not_applicable",
                "the claim has been started: it stored progress, a checkpoint or a log",
            )
        case _:
            return lease_owner_mismatch()
