"""The proof that a worker owns an attempt."""

from dataclasses import KW_ONLY, dataclass
from uuid import UUID

from runledger_core.identifiers import WorkerId
from runledger_core.limits import INT32_MAX, INT64_MAX
from runledger_core.text import check_int, check_uuid


@dataclass(frozen=True, slots=True)
class JobLease:
    """Identify one claim of one job; every write of its owner is checked against it.

    Attributes:
        job_id: The job.
        run_number: Run of the job, from 1; a requeue starts the next.
        attempt: Attempt of that run, from 1; a release gives the number back.
        claim_number: Number of the claim, from 1; it never comes again for this job.
        worker_id: The owner; kept as a `WorkerId`.
    """

    job_id: UUID
    run_number: int
    _: KW_ONLY
    attempt: int
    claim_number: int
    worker_id: str

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValidationError: An `input.*` code that names the field.
        """
        store = object.__setattr__
        store(self, "job_id", check_uuid(self.job_id, field="job_id"))
        run = check_int(self.run_number, field="run_number", minimum=1, maximum=INT32_MAX)
        store(self, "run_number", run)
        attempt = check_int(self.attempt, field="attempt", minimum=1, maximum=INT32_MAX)
        store(self, "attempt", attempt)
        claim = check_int(self.claim_number, field="claim_number", minimum=1, maximum=INT64_MAX)
        store(self, "claim_number", claim)
        store(self, "worker_id", WorkerId(self.worker_id))
