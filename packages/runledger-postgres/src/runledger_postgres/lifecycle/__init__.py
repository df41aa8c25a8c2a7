"""The life of a job: claim, heartbeat, progress, end, release, reap, cancel, requeue."""

from ._cancel import cancel_job, cancel_jobs
from ._cancel_run import CanceledWorkflowRun, cancel_workflow_run
from ._claim import ClaimRequest, claim_jobs, find_claimable_jobs, find_due_jobs
from ._claimed import ClaimedJob, UndecodableJob
from ._ending import FailureDisposition, dead_letter_reason
from ._failure import FailureEntry, FailureOutcome, complete_job_failure, fail_jobs
from ._find_claims import find_claims
from ._heartbeat import HeartbeatVerdict, heartbeat_job, heartbeat_jobs
from ._open_work import has_open_work
from ._operator import OperatorVerdict
from ._progress import StoredProgress, update_job_progress
from ._ready import Backlog, ReadyMark, Walk
from ._reap import ReapedJob, ReapError, ReapResult, reap_expired_leases
from ._release import give_back_jobs, release_job, release_jobs
from ._requeue import requeue_job, requeue_jobs
from ._round import RoundResult, run_waiting_round, run_worker_round
from ._success import SuccessEntry, SuccessOutcome, complete_job_success, complete_jobs
from ._verdict import WriteVerdict
from ._verify_runs import verify_workflow_runs

__all__ = [
    "Backlog",
    "CanceledWorkflowRun",
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
    "UndecodableJob",
    "Walk",
    "WriteVerdict",
    "cancel_job",
    "cancel_jobs",
    "cancel_workflow_run",
    "claim_jobs",
    "complete_job_failure",
    "complete_job_success",
    "complete_jobs",
    "dead_letter_reason",
    "fail_jobs",
    "find_claimable_jobs",
    "find_claims",
    "find_due_jobs",
    "give_back_jobs",
    "has_open_work",
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
    "verify_workflow_runs",
]
