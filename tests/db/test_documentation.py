"""The Python of the pages runs as it stands, block after block, as a reader would type it."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
from inspect import signature
from pathlib import Path
from threading import Event

import pytest
from sybil import Example
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStatus, Scope
from runledger_postgres import enqueue_job, get_job, upsert_job_definition

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/guides/*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
# Pages that are a file of tests with a fixture of its own; pytest runs them, and nothing helps.
TEST_PAGES = [
    ROOT / "docs/guides/testing.md",
    ROOT / "packages/runledger-test-support/README.md",
]
JOB_TYPE = "jobs.email.send"
# What a worker program of a page ends with; such a block is run as a program.
RUNS_FOR_EVER = "run_until_shutdown(timeout"

run_python = PythonEvaluator()


@pytest.fixture
def pool(runledger_pool, runledger_database, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", runledger_database.dsn)
    upsert_job_definition(runledger_pool, JobDefinitionSpec(JOB_TYPE))
    with runledger_pool.connection() as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return runledger_pool


@pytest.fixture
def working_folder(monkeypatch):
    """Go to a folder that the account of an embedded server may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="runledger-pages-") as folder:
        Path(folder).chmod(0o711)
        monkeypatch.chdir(folder)
        yield


def run_block(example: Example) -> None:
    """Run a block in the names of its page, then the tests that it defines."""
    if RUNS_FOR_EVER in example.parsed:
        run_program(example)
        return
    run_python(example)
    for name in [name for name in example.namespace if name.startswith("test_")]:
        test = example.namespace.pop(name)
        with example.namespace["pool"].connection() as connection:
            # Readers have a fresh database for each.
            connection.execute("TRUNCATE runledger.job_queue, orders")
        test(**{fixture: example.namespace[fixture] for fixture in signature(test).parameters})


def run_program(example: Example) -> None:
    """Run a worker until it has done a job and a signal stops it; then define what it defines."""
    pool = example.namespace["pool"]
    job = enqueue_job(pool, JobEnqueue(JOB_TYPE, {"to": "a@example.com"}))
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", example.parsed],
        env=os.environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        while worker.poll() is None and not is_done(pool, job.id):
            Event().wait(0.05)
        worker.send_signal(signal.SIGTERM)
        errors = worker.communicate(timeout=60)[1]

    assert (worker.returncode, errors) == (0, "")
    assert is_done(pool, job.id)
    tree = ast.parse(example.parsed)
    tree.body = [node for node in tree.body if RUNS_FOR_EVER not in ast.unparse(node)]
    exec(compile(tree, example.path, "exec"), example.namespace)


def is_done(pool, job_id) -> bool:
    job = get_job(pool, job_id, scope=Scope.GLOBAL)
    return job is not None and job.status == JobStatus.SUCCEEDED


def examples(page: Path) -> list[Example]:
    return list(Document.parse(str(page), CodeBlockParser("python", run_block)).examples())


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if page not in TEST_PAGES and examples(page)
    ],
)
def test_python_of_a_page_runs(page, pool, runledger_database):
    blocks = examples(page)
    blocks[0].namespace |= {
        "__name__": "page",
        "pool": pool,
        "runledger_pool": pool,
        "runledger_database": runledger_database,
    }

    for block in blocks:
        # A block that opened one by this name has closed it.
        block.namespace["pool"] = pool
        block.evaluate()


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in TEST_PAGES]
)
def test_tests_of_a_page_pass_in_a_project_of_their_own(page, runledger_server, tmp_path):
    file = tmp_path / "test_page.py"
    file.write_text("\n\n".join(example.parsed for example in examples(page)), "utf-8")

    done = subprocess.run(  # our own interpreter and text
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", file.name],
        cwd=tmp_path,
        env=os.environ | {"RUNLEDGER_TEST_ADMIN_DATABASE_URL": runledger_server.dsn("postgres")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{file.read_text('utf-8').count('def test_')} passed" in done.stdout
