"""Failures of the embedded server that need programs which misbehave."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runledger_postgres.embedded import EmbeddedServer, EmbeddedServerError
from runledger_postgres.embedded._postmaster import stop_postmaster

SAYS_ITS_VERSION = """\
#!/bin/sh
[ "$1" != --version ] || { echo 'postgres (PostgreSQL) 18.0'; exit; }
"""
INITDB_THAT_WORKS = 'for a; do case $a in --pgdata=*) echo 18 >"${a#*=}/PG_VERSION";; esac; done\n'


@pytest.fixture
def place() -> Iterator[Path]:
    # pytest's tmp_path lies under a folder that only its owner can enter.
    folder = Path(tempfile.mkdtemp(prefix="runledger-failures-"))
    folder.chmod(0o711)
    yield folder
    EmbeddedServer(folder / "server").stop()
    shutil.rmtree(folder)


def programs(place: Path, *, initdb: str, postgres: str) -> Path:
    folder = place / "bin"
    folder.mkdir()
    for name, script in (("initdb", initdb), ("postgres", postgres)):
        (folder / name).write_text(SAYS_ITS_VERSION + script)
        (folder / name).chmod(0o755)
    return folder


def test_failing_initdb_is_told_with_what_it_said(place: Path) -> None:
    bin_dir = programs(place, initdb="echo 'no room' >&2; exit 1\n", postgres="")

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", bin_dir=bin_dir).start()

    assert refused.value.code == "embedded.init_failed"
    assert "no room" in refused.value.internal_message
    assert not (place / "server" / "data").exists()


def test_server_that_accepts_no_connections_ends_in_a_timeout(place: Path) -> None:
    bin_dir = programs(place, initdb=INITDB_THAT_WORKS, postgres="exec sleep 5\n")

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", bin_dir=bin_dir, start_timeout_seconds=0.5).start()

    assert refused.value.code == "embedded.start_timeout"


def test_server_that_ignores_the_signal_is_named(place: Path) -> None:
    with EmbeddedServer(place / "server", settings={"fsync": "off"}) as server:
        with pytest.raises(EmbeddedServerError) as refused:
            stop_postmaster(place / "server" / "data", ((signal.SIGCONT, 0.0),))

        assert refused.value.code == "embedded.stop_failed"
        assert server.is_running
