"""The command as the first process of a container, to which the kernel gives few signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SPACES = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
WORKER = (sys.executable, "-m", "runledger_runtime.cli", "worker", "--app", "shop:catalog")
IMPORTED = """
import time
from pathlib import Path

Path("importing").touch()
time.sleep(60)
"""
FORKING = """
import os
import time
from pathlib import Path

child = os.fork()
if child == 0:
    Path("importing").touch()
    time.sleep(60)
    os._exit(0)
_, status = os.waitpid(child, 0)
Path("status").write_text(str(status))
os._exit(0)
"""


def _child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.fixture
def start(tmp_path, eventually) -> Iterator:
    """Start a worker that imports this, as process 1; return that and what waits for it."""
    # Both ways to get a namespace: with the rights of root, or as the root of one's own.
    for rights in ((), ("--user", "--map-root-user")):
        command = [*SPACES, *rights]
        try:
            tried = subprocess.run([*command, "true"], check=False, capture_output=True)
        except FileNotFoundError:
            pytest.skip("there is no unshare here")
        if tried.returncode == 0:
            break
    else:
        pytest.skip(f"no namespace of processes to be had: {tried.stderr.decode()}")
    started: list[subprocess.Popen[bytes]] = []

    def start_worker(app: str, *options: str) -> tuple[int, "subprocess.Popen[bytes]"]:
        (tmp_path / "shop.py").write_text(app)
        process = subprocess.Popen([*command, *WORKER, *options], cwd=tmp_path)
        started.append(process)
        eventually((tmp_path / "importing").exists)
        return _child_of(process.pid), process

    yield start_worker
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_sigterm_during_the_import_of_the_catalog_ends_the_first_process(start, options):
    worker, process = start(IMPORTED, *options)

    os.kill(worker, signal.SIGTERM)

    assert process.wait(10) == 143


def test_child_that_the_first_process_forks_dies_of_sigterm_as_any_other(start, tmp_path):
    worker, process = start(FORKING)

    os.kill(_child_of(worker), signal.SIGTERM)

    assert process.wait(10) == 0
    assert (tmp_path / "status").read_text() == str(int(signal.SIGTERM))
