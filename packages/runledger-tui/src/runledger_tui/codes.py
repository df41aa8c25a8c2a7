"""Stable codes of the errors that this distribution raises itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tui.driver_missing": "The driver finds no libpq, the client library of PostgreSQL.",
        "tui.embedded_not_found": "The directory of --embedded holds no server.",
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tui.driver_missing": "`pip install 'psycopg[binary]'`, or install libpq.",
        "tui.embedded_not_found": "Name the directory that `runledger demo` printed.",
    }
)
"""What to do about a code, where its category does not say enough."""
