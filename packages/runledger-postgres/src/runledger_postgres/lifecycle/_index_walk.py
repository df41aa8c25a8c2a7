"""The planner's settings of a claim, for the rest of a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from .._rows import Statement


@dataclass(frozen=True, slots=True)
class _SettingsRow:
    values: str


# A claim walks an index in its order, which ends after a few rows, and looks rows up by their ids.
# Where statistics tell of an empty table, a planner that may would rather collect all entries in a
# bitmap and sort them, or read the table. The way is the same whatever is asked for, but its
# estimate is so high that it would be planned anew for every claim, and compiled, which takes far
# longer than to run it.
_SETTINGS: Final[dict[LiteralString, LiteralString]] = {
    "enable_indexscan": "on",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
_SAVES: Final[list[LiteralString]] = [
    f"set_config('runledger.caller_{name}', current_setting('{name}'), true)" for name in _SETTINGS
]
_SETS: Final[list[LiteralString]] = [
    f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items()
]
_RETURNS: Final[list[LiteralString]] = [
    f"set_config('{name}', current_setting('runledger.caller_{name}'), true)" for name in _SETTINGS
]

# Operators in one expression are evaluated from the left: saved before set.
WALK_IN_ORDER: Final = Statement(f"SELECT {' || '.join([*_SAVES, *_SETS])} AS values", _SettingsRow)
WALK_AS_BEFORE: Final = Statement(f"SELECT {' || '.join(_RETURNS)} AS values", _SettingsRow)

# Ends a SELECT, and has those settings from the next statement on. An offset is evaluated once,
# also when no row comes, and unlike a limit it leaves the statement's own plan as it is.
THEN_WALK_IN_ORDER: Final = f"OFFSET length(left({' || '.join(_SETS)}, 0))"
