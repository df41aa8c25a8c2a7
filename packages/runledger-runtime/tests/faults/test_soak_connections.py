"""Connections break under load; no attempt is used up by that."""

from __future__ import annotations

from typing import Any

import pytest

from runledger_test_support import CutPoint, FaultProxy

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]


def test_connections_terminated_and_cut_at_commit_cost_no_attempt(
    start_soak: Any, scaled: Any, runledger_database: Any
) -> None:
    terminations, cuts = scaled(ci=2, full=30), scaled(ci=3, full=60)

    with (
        FaultProxy(runledger_database.dsn) as proxy,
        start_soak(
            jobs=scaled(ci=800, full=50_000), seconds=terminations + cuts, client_dsn=proxy.dsn
        ) as soak,
    ):

        def cut_commits() -> None:
            # Whose commits they are is left to chance: producers', workers', the reaper's.
            for _ in range(3):
                point = soak.chance.choice(list(CutPoint))
                proxy.cut_at_commit(point, occurrence=soak.chance.randint(1, 20))

        soak.repeat(soak.terminate_backends, times=terminations)
        soak.repeat(cut_commits, times=cuts)
        report = soak.end(only_connections_broke=True)

    report.check()
