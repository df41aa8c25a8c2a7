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


PRELOADED = """
import os, sys
from runledger_core import JobDefinitionSpec, JobEnqueue, ValidationError
from runledger_postgres import connect_pool, enqueue_jobs, upsert_job_definition

with connect_pool(sys.argv[1]) as pool:
    upsert_job_definition(pool, JobDefinitionSpec("jobs.fork"))
    children = []
    for child in range(4):
        jobs = [JobEnqueue("jobs.fork", {"child": child, "n": n}) for n in range(100)]
        pid = os.fork()
        if pid == 0:
            try:
                enqueue_jobs(pool, jobs)
            except ValidationError as refused:
                if refused.code != "db.forked":
                    os._exit(2)
                with connect_pool(sys.argv[1]) as own:
                    for job in jobs:
                        enqueue_jobs(own, [job])
                os._exit(0)
            os._exit(3)
        children.append(pid)
        # The parent goes on with its pool beside them.
        enqueue_jobs(pool, [JobEnqueue("jobs.fork", {"child": -1, "n": child})])
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(0 if codes == [0] * 4 else str(codes))
"""


def test_four_children_of_a_preloaded_pool_enqueue_with_their_own(runledger_database):
    done = subprocess.run(
        # Later Pythons warn of a fork beside threads, which is what is tried here.
        [sys.executable, "-W", "ignore", "-c", PRELOADED, runledger_database.dsn],
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    with runledger_database.connect() as connection:
        counts = connection.execute(
            "SELECT payload ->> 'child', count(DISTINCT payload ->> 'n') FROM runledger.job_queue"
            " GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert counts == [("-1", 4), ("0", 100), ("1", 100), ("2", 100), ("3", 100)]
