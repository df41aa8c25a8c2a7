"""What is stored of the exception that a handler raised."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Final, cast

from runledger_core import sanitize_text, type_name

_HEAD_FRAMES: Final = 20
_TAIL_FRAMES: Final = 20
_EXCEPTIONS: Final = 8
_TEXT_BYTES: Final = 2_048
_FILE_CHARACTERS: Final = 120
_TRACEBACK_BYTES: Final = 32_768


def describe_exception(error: BaseException) -> str:
    """Return a traceback of 32 KiB at most: frames, texts and notes, of causes and groups, too.

    The exception that was raised last comes last. It is kept whole before those that led to it, and
    of each the first and last twenty frames.
    """
    parts: list[str] = []
    left = _TRACEBACK_BYTES
    try:
        for described, relation in islice(_related(error), _EXCEPTIONS):
            part = _part(described) + relation
            left -= len(part.encode("utf-8", "replace"))
            if left < 0 and parts:
                break
            parts.append(part)
    except Exception as failure:  # noqa: BLE001  # its attributes may be properties of the user's
        parts.append(f"({type_name(failure)} while the traceback was taken)\n\n")
    return sanitize_text("".join(reversed(parts)), max_bytes=_TRACEBACK_BYTES)


def safe_text(error: BaseException) -> str:
    """Return an exception's text, cut, whatever its `__str__` does."""
    return sanitize_text(error, max_bytes=_TEXT_BYTES)


def _related(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Yield an exception, what it groups and what led to it, each with what is said behind it."""
    seen: set[int] = set()
    pending = [(error, "")]
    while pending:
        current, relation = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current, relation
        earlier = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
        if earlier is not None:
            pending.append((earlier, "\n\nThe above exception led to this one:\n\n"))
        if isinstance(current, BaseExceptionGroup):
            grouped = cast("BaseExceptionGroup[BaseException]", current).exceptions
            for number, member in reversed([*enumerate(grouped[:_EXCEPTIONS], start=1)]):
                pending.append(
                    (
                        member,
                        f"\n\nThe above exception is {number} of {len(grouped)} in a group:\n\n",
                    )
                )


def _part(error: BaseException) -> str:
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    lines = [*_frames(error.__traceback__), f"{type_name(error)}: {safe_text(error)}"]
    if notes:
        lines.append(sanitize_text("\n".join(notes), max_bytes=_TEXT_BYTES))
    return "\n".join(lines)


def _frames(trace: TracebackType | None) -> list[str]:
    frames = list(traceback.walk_tb(trace))
    middle = len(frames) - _HEAD_FRAMES - _TAIL_FRAMES
    chosen = frames if middle <= 0 else frames[:_HEAD_FRAMES] + frames[-_TAIL_FRAMES:]
    lines = [
        f'  File "{_file(frame.f_code.co_filename)}", line {number}, in {frame.f_code.co_name}'
        for frame, number in chosen
    ]
    if middle > 0:
        lines.insert(_HEAD_FRAMES, f"  ... {middle} frames ...")
    return lines


def _file(path: str) -> str:
    # The end of a long path tells more than its beginning.
    return path if len(path) <= _FILE_CHARACTERS else f"...{path[-_FILE_CHARACTERS:]}"
