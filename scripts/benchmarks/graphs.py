"""The graphs of the workflows: for each step the places, from 0, of those it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

Graph: TypeAlias = list[list[int]]

DIAMOND_STEPS: Final = 4
_FAN: Final = 100
_CHAINS: Final = 100


def diamond() -> Graph:
    """Return one step, two behind it, one behind both."""
    return [[], [0], [0], [1, 2]]


def fan() -> Graph:
    """Return one step, a hundred behind it, one behind all of those."""
    middle = range(1, _FAN + 1)
    return [[], *([0] for _ in middle), [*middle]]


def chains(steps: int) -> Graph:
    """Return a hundred chains of equal length, so that every end releases a step."""
    return [[place - _CHAINS] if place >= _CHAINS else [] for place in range(steps)]


GRAPHS: Final[dict[str, Callable[[], Graph]]] = {"diamond": diamond, "fan": fan}
