"""Spares a run of the core tests the import of all other files."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out test files without a test marked core or pgbouncer, if only those are to run."""
    is_test_file = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if not is_test_file or config.option.markexpr not in {"core", "core or pgbouncer"}:
        return None
    text = collection_path.read_text("utf-8")
    return not any(f"pytest.mark.{marker}" in text for marker in ("core", "pgbouncer")) or None
