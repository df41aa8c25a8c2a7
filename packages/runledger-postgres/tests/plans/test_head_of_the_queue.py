"""What stands before the wanted jobs costs a claim nothing."""

from __future__ import annotations

import pytest

from runledger_postgres._session import run_all
from runledger_postgres.lifecycle import ClaimRequest
from runledger_postgres.lifecycle._claim import claim_statements
from runledger_postgres.lifecycle._claimed import ClaimedRow

from .conftest import LargeQueue, problems_of
from .plan_recorder import PlanMode

pytestmark = [pytest.mark.plans, pytest.mark.timeout(1800)]

UNREGISTERED = """
    INSERT INTO runledger.job_queue (job_type, max_attempts, priority, next_run_at)
    SELECT 'plans.unregistered', 1, 2147483647, now() - interval '1 hour'
    FROM generate_series(1, 10000)
"""
GOOD = """
    INSERT INTO runledger.job_queue (job_type, max_attempts, priority)
    VALUES ('plans.good', 1, -2147483648)
"""


def test_jobs_of_an_unregistered_type_before_it_do_not_hide_a_good_one(
    large_queue: LargeQueue, mode: PlanMode
):
    large_queue.execute(UNREGISTERED)
    large_queue.execute(GOOD)
    request = ClaimRequest("worker-1", ["plans.good"], limit=1, window=1, lease_ttl_seconds=60)
    statements = claim_statements(request)
    claimed: list[str] = []

    def claim(db):
        for bound, rows in zip(statements, run_all(db, statements), strict=True):
            if issubclass(bound.statement.row, ClaimedRow):
                claimed.extend(row.job_type for row in rows)

    # What came due is readied by the first claim.
    run_all(
        large_queue.connection,
        claim_statements(ClaimRequest("w", ["none"], limit=1, window=1, lease_ttl_seconds=60)),
    )
    plans = large_queue.plans_of(claim, mode)

    assert claimed == ["plans.good"]
    assert not (problems := problems_of(plans, rows=1)), "\n".join(problems)
