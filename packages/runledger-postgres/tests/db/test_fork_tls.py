"""Pools that a fork copies, over TLS: a session that two processes used would be garbage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runledger_core import JobDefinitionSpec
from runledger_postgres import connect_pool, migrate, upsert_job_definition
from runledger_postgres.embedded import EmbeddedServer, EmbeddedServerError
from runledger_test_support.server import BIN_VARIABLE

# Those of distributions are built with TLS, the embedded wheel's are not.
INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
CERTIFICATE = [
    "req", "-new", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
]  # fmt: skip
CONNECTED_OVER_TLS = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"

PRELOADED = """
import os, sys
from runledger_core import JobEnqueue, ValidationError
from runledger_postgres import connect_pool, enqueue_job

with connect_pool(sys.argv[1]) as pool:
    enqueue_job(pool, JobEnqueue("jobs.fork", {"child": -1, "n": -1}))
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                enqueue_job(pool, JobEnqueue("jobs.fork", {"child": child, "n": -1}))
            except ValidationError as refused:
                if refused.code != "db.forked":
                    os._exit(2)
                with connect_pool(sys.argv[1]) as own:
                    for n in range(100):
                        enqueue_job(own, JobEnqueue("jobs.fork", {"child": child, "n": n}))
                os._exit(0)
            os._exit(3)
        children.append(pid)
    # The parent goes on with its pool beside them, and when they have ended.
    for n in range(100):
        enqueue_job(pool, JobEnqueue("jobs.fork", {"child": -1, "n": n}))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    enqueue_job(pool, JobEnqueue("jobs.fork", {"child": -1, "n": 100}))
    sys.exit(0 if codes == [0] * 4 else str(codes))
"""


def start_with_tls(bin_dir: str | Path | None) -> EmbeddedServer | None:
    """Start a server if it was built with TLS."""
    try:
        server = EmbeddedServer.temporary(bin_dir=bin_dir, settings={"fsync": "off"}).start()
    except EmbeddedServerError:
        return None
    with closing(psycopg.connect(server.dsn())) as admin:
        if admin.execute("SHOW ssl_library").fetchone() != ("",):
            return server
    server.release()
    return None


def switch_on(server: EmbeddedServer, openssl: str) -> Path:
    """Make a certificate for a server and let it take connections over TLS; return the file."""
    with closing(psycopg.connect(server.dsn(), autocommit=True)) as admin:
        (data,) = admin.execute("SHOW data_directory").fetchone() or ("",)
        certificate, key = Path(data) / "server.crt", Path(data) / "server.key"
        command = [openssl, *CERTIFICATE, "-out", str(certificate), "-keyout", str(key)]
        subprocess.run(command, check=True, capture_output=True)
        owner = Path(data).stat()
        for file in (certificate, key):
            file.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(file, owner.st_uid, owner.st_gid)
        admin.execute("ALTER SYSTEM SET ssl = on")
        admin.execute("SELECT pg_reload_conf()")
    return certificate


def answers(dsn: str) -> bool:
    """Tell whether the server takes this connection; it reads its settings in its own time."""
    try:
        with closing(psycopg.connect(dsn)) as connection:
            return connection.execute(CONNECTED_OVER_TLS).fetchone() == (True,)
    except psycopg.OperationalError:
        return False


@pytest.fixture
def tls_dsn() -> Iterator[str]:
    """A migrated database whose server is known by its certificate."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("a certificate needs openssl")
    folders = [os.environ.get(BIN_VARIABLE), None, *INSTALLED]
    server = next(filter(None, map(start_with_tls, folders)), None)
    if server is None:
        pytest.skip("no PostgreSQL of this machine was built with TLS")
    with server:
        certificate = switch_on(server, openssl)
        dsn = make_conninfo(server.dsn(), sslmode="verify-full", sslrootcert=str(certificate))
        deadline = time.monotonic() + 30
        while not answers(dsn):
            assert time.monotonic() < deadline, "no connection over TLS"
            time.sleep(0.01)
        with connect_pool(dsn) as pool:
            migrate(pool)
            upsert_job_definition(pool, JobDefinitionSpec("jobs.fork"))
        yield dsn


def test_four_children_of_a_pool_over_tls_enqueue_with_their_own(tls_dsn: str):
    done = subprocess.run(
        # Later Pythons warn of a fork beside threads, which is what is tried here.
        [sys.executable, "-W", "ignore", "-c", PRELOADED, tls_dsn],
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")
    with closing(psycopg.connect(tls_dsn)) as connection:
        counts = connection.execute(
            "SELECT payload ->> 'child', count(DISTINCT payload ->> 'n') FROM runledger.job_queue"
            " GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert counts == [("-1", 102), ("0", 100), ("1", 100), ("2", 100), ("3", 100)]
