from __future__ import annotations

from uuid import uuid4

import pytest

from runledger_core import JobEnqueue, Scope
from runledger_postgres import enqueue_job, get_job

MINE, OTHER = uuid4(), uuid4()


@pytest.mark.parametrize(
    ("owner", "scope", "is_found"),
    [
        (MINE, Scope.organization(MINE), True),
        (MINE, Scope.organization(OTHER), False),
        (MINE, Scope.GLOBAL, False),
        (MINE, Scope.ADMIN, True),
        (None, Scope.organization(MINE), False),
        (None, Scope.GLOBAL, True),
        (None, Scope.ADMIN, True),
    ],
)
def test_job_is_read_in_its_scope_only(runledger_pool, owner, scope, is_found):
    with runledger_pool.connection() as connection:
        connection.execute("INSERT INTO runledger.job_definitions (job_type) VALUES ('test.job')")
    job_id = enqueue_job(runledger_pool, JobEnqueue("test.job", {}, organization_id=owner)).id

    job = get_job(runledger_pool, job_id, scope=scope)

    assert (job is not None) is is_found
