"""An event loop that loses its own file descriptors, as by a handler that closes all there are."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from typing import Any


def descriptors_of(loop: AbstractEventLoop) -> list[int]:
    """Return the descriptors that the loop itself has open."""
    parts: Any = loop
    return [part.fileno() for part in (parts._selector, parts._ssock, parts._csock)]


def close_descriptors(loop: AbstractEventLoop) -> None:
    """Close them behind its back."""
    for descriptor in descriptors_of(loop):
        os.close(descriptor)


def close_pipe(loop: AbstractEventLoop) -> None:
    """Close those only by which others wake it."""
    _, *pipe = descriptors_of(loop)
    for descriptor in pipe:
        os.close(descriptor)


def give_descriptors_away(loop: AbstractEventLoop) -> None:
    """Have their numbers stand for a file of somebody else."""
    with open(os.devnull, "rb") as file:  # noqa: PTH123  # no path
        for descriptor in descriptors_of(loop):
            os.dup2(file.fileno(), descriptor)
