"""The life of a job: claim, heartbeat, progress, end, release, reap, cancel, requeue."""

from ._cancel import cancel_job, cancel_jobs
from ._claim import ClaimRequest, claim_jobs
from ._claimed import ClaimedJob
from ._ending import FailureDisposition, dead_letter_reason
from ._failure import FailureEntry, FailureOutcome, complete_job_failure, fail_jobs
from ._heartbeat import HeartbeatVerdict, heartbeat_job, heartbeat_jobs
from ._operator import OperatorVerdict
from ._progress import StoredProgress, update_job_progress
from ._ready import Backlog, ReadyMark, Walk
from ._reap import ReapedJob, ReapError, ReapResult, reap_expired_leases
from ._release import release_job, release_jobs
from ._requeue import requeue_job, requeue_jobs
from ._round import RoundResult, find_claims, run_waiting_round, run_worker_round
from ._success import SuccessEntry, SuccessOutcome, complete_job_success, complete_jobs
from ._verdict import WriteVerdict

__all__ = [
    "Backlog",
    "ClaimRequest",
    "ClaimedJob",
    "FailureDisposition",
    "FailureEntry",
    "FailureOutcome",
    "HeartbeatVerdict",
    "OperatorVerdict",
    "ReadyMark",
    "ReapError",
    "ReapResult",
    "ReapedJob",
    "RoundResult",
    "StoredProgress",
    "SuccessEntry",
    "SuccessOutcome",
    "Walk",
    "WriteVerdict",
    "cancel_job",
    "cancel_jobs",
    "claim_jobs",
    "complete_job_failure",
    "complete_job_success",
    "complete_jobs",
    "dead_letter_reason",
    "fail_jobs",
    "find_claims",
    "heartbeat_job",
    "heartbeat_jobs",
    "reap_expired_leases",
    "release_job",
    "release_jobs",
    "requeue_job",
    "requeue_jobs",
    "run_waiting_round",
    "run_worker_round",
    "update_job_progress",
]
