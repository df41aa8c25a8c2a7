"""How tests are shared out when several processes run them: a plugin of `./scripts/test`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each file in one process, and all soaks: they load the machine and watch the time."""
    # First what takes longest, so that no process is left alone with it.
    items.sort(key=is_soak, reverse=True)
    for item in items:
        item.add_marker(pytest.mark.xdist_group("soak" if is_soak(item) else str(item.path)))


def is_soak(item: pytest.Item) -> bool:
    """Tell whether a test is a load with faults, or many interleavings."""
    return item.get_closest_marker("soak") is not None or "faults" in item.path.parts
