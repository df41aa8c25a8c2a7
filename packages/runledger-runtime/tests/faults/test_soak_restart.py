"""The server is stopped hard and started again under load."""

from __future__ import annotations

import time
from typing import Any

import pytest
from soak.run import GRACE_SECONDS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]


@pytest.fixture
def restarts(scaled: Any) -> dict[str, int]:
    """How often and when: at full size also so far apart that leases count in between."""
    return {
        "times": scaled(ci=2, full=8),
        "every_seconds": scaled(ci=1, full=GRACE_SECONDS + 1),
    }


@pytest.fixture
def load(scaled: Any) -> dict[str, int]:
    return {"jobs": scaled(ci=800, full=50_000), "seconds": scaled(ci=4, full=75)}


def test_acknowledged_work_survives_hard_restarts(
    own_server: Any, start_soak: Any, load: dict[str, int], restarts: dict[str, int]
) -> None:
    server = own_server(synchronous_commit="on")

    with start_soak(dsn=server.dsn, **load) as soak:
        soak.repeat(server.restart_hard, **restarts)
        report = soak.end()

    report.check()
    assert len(report.seen.outages) == restarts["times"]


def test_commits_that_vanish_in_hard_restarts_are_coped_with(
    own_server: Any, start_soak: Any, load: dict[str, int], restarts: dict[str, int]
) -> None:
    # Commits reach the file two seconds later, so that a good many are lost.
    server = own_server(
        synchronous_commit="off", wal_writer_delay="2s", wal_writer_flush_after="64MB"
    )

    with start_soak(dsn=server.dsn, **load) as soak:
        soak.repeat(server.restart_hard, **restarts)
        # From here on nothing is lost any more.
        soak.durable_from = time.time()
        report = soak.end()

    report.check()
    assert report.account.vanished + report.account.duplicates > 0
