import subprocess
import sys

SCRIPT = """
import os, sys
from runledger_core import JobDefinitionSpec, JobEnqueue, ValidationError
from runledger_postgres import connect_pool, enqueue_job, upsert_job_definition

with connect_pool(sys.argv[1]) as pool:
    upsert_job_definition(pool, JobDefinitionSpec("jobs.fork"))
    child = os.fork()
    if child == 0:
        try:
            enqueue_job(pool, JobEnqueue("jobs.fork", {"of": "child"}))
        except ValidationError as refused:
            with connect_pool(sys.argv[1]) as own:
                enqueue_job(own, JobEnqueue("jobs.fork", {"code": refused.code}))
        os._exit(0)
    os.waitpid(child, 0)
    enqueue_job(pool, JobEnqueue("jobs.fork", {"of": "parent"}))
"""


def test_pool_of_before_a_fork_is_refused_in_the_child_and_serves_the_parent(runledger_database):
    subprocess.run([sys.executable, "-c", SCRIPT, runledger_database.dsn], check=True, timeout=60)

    with runledger_database.connect() as connection:
        payloads = connection.execute(
            "SELECT payload FROM runledger.job_queue ORDER BY created_at"
        ).fetchall()
    assert payloads == [({"code": "db.forked"},), ({"of": "parent"},)]
