"""Workers are killed and frozen under load; every job is accounted for."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]


def test_killed_and_frozen_workers_lose_no_job(start_soak: Any, scaled: Any) -> None:
    kills, freezes, frozen = scaled(ci=3, full=60), scaled(ci=1, full=3), scaled(ci=5, full=9)

    seconds = kills + freezes * (frozen + 1)
    with start_soak(jobs=scaled(ci=800, full=50_000), seconds=seconds) as soak:
        soak.repeat(soak.kill_a_worker, times=kills)
        soak.repeat(lambda: soak.freeze_a_worker(frozen), times=freezes)
        report = soak.end()

    report.check()
    assert report.account.duplicates > 0
