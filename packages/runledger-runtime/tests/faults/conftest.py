"""Fixtures of the tests with faults: a server of one's own, a size, a seed."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from runledger_postgres import connect_pool, migrate
from runledger_postgres.embedded import EmbeddedServer, _launch
from runledger_postgres.embedded._files import locate_home
from runledger_postgres.embedded._postmaster import read_postmaster, stop_postmaster
from runledger_test_support.databases import TemporaryDatabase
from runledger_test_support.server import (
    _SHARED_MEMORY,
    ADMIN_URL_VARIABLE,
    BIN_VARIABLE,
    DEFAULT_SETTINGS,
    _has_room,
)

# The programs of a soak are a package beside the tests; no test folder is on the path by itself.
sys.path.append(str(Path(__file__).parent))
from soak.run import Soak

IS_FULL = os.environ.get("RUNLEDGER_TEST_SIZE", "ci") == "full"
SEED_VARIABLE = "RUNLEDGER_TEST_SEED"
_IMMEDIATE = ((signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))


class OwnServer:
    """A migrated server of one test, which may be stopped hard and started on the same port."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._server = EmbeddedServer(
            directory,
            bin_dir=os.environ.get(BIN_VARIABLE) or None,
            settings={**DEFAULT_SETTINGS, **settings},
        )
        self._server.start()
        self.dsn = self._server.dsn()
        self.data = locate_home(directory) / "data"
        with connect_pool(self.dsn, max_size=1) as pool:
            migrate(pool)

    @property
    def pid(self) -> int:
        """The postmaster."""
        postmaster = read_postmaster(self.data)
        assert postmaster is not None
        return postmaster.pid

    def stop_hard(self) -> None:
        """Stop as `pg_ctl stop -m immediate` does: without a checkpoint."""
        stop_postmaster(self.data, _IMMEDIATE)

    def start(self) -> None:
        """Start again on the same port; returns when it accepts connections."""
        port = int(str(conninfo_to_dict(self.dsn)["port"]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_launch, "_free_port", lambda: port)
            self._server.start()
        assert self._server.dsn() == self.dsn

    def restart_hard(self) -> None:
        """Stop hard and start; what was not written yet is gone."""
        self.stop_hard()
        self.start()

    def close(self) -> None:
        """Stop it for good."""
        self.stop_hard()
        self._server.release()


@pytest.fixture
def own_server() -> Iterator[Callable[..., OwnServer]]:
    """Make servers with settings, such as `own_server(synchronous_commit="off")`."""
    if os.environ.get(ADMIN_URL_VARIABLE):
        pytest.skip(f"the server of {ADMIN_URL_VARIABLE} is not ours to stop")
    # In memory where there is one: files written survive the server, which is all that is asked.
    parent = _SHARED_MEMORY if _has_room(_SHARED_MEMORY) else None
    with ExitStack() as stack:

        def make(**settings: str) -> OwnServer:
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="runledger-faults-", dir=parent)
            )
            server = OwnServer(Path(directory), settings)
            stack.callback(server.close)
            return server

        yield make


@pytest.fixture
def seed() -> int:
    """Seed of the test's chance, RUNLEDGER_TEST_SEED or a new one; printed with a failure."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.randrange(2**32))
    print(f"{SEED_VARIABLE}={chosen}")  # noqa: T201  # pytest shows it with a failure
    return chosen


@pytest.fixture
def start_soak(
    runledger_database: TemporaryDatabase, tmp_path: Path, seed: int
) -> Callable[..., Soak]:
    """Start a soak on a database of its own, or with `dsn=` on another."""

    def start(*, dsn: str | None = None, **settings: Any) -> Soak:
        producers = 2 if IS_FULL else 1
        return Soak(
            dsn or runledger_database.dsn, tmp_path, seed=seed, producers=producers, **settings
        )

    return start
