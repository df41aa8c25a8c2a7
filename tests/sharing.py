"""How tests are shared out when several processes run them: a plugin of `./scripts/test`."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling


class Sharing(LoadFileScheduling):
    """Keep each file in one process, and all faults: they load the machine and watch the time."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "faults" if "/faults/" in file else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing:
    """Share out by file, whatever `--dist` says."""
    return Sharing(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no process is left alone with it."""
    items.sort(key=lambda item: "faults" in item.path.parts, reverse=True)
