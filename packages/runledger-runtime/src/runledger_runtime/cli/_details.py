"""Printing what is known about one job, run or step."""

from __future__ import annotations

from collections.abc import Mapping

import click

from runledger_core import JsonValue, Unset, visible_text

from ._output import NOTHING, print_heading
from ._text import json_block


def print_fields(fields: Mapping[str, str | None]) -> None:
    """Print names and values below each other, without what is absent or a dash."""
    shown = {name: text for name, text in fields.items() if text is not None and text != NOTHING}
    width = max(len(name) for name in shown)
    for name, text in shown.items():
        click.echo(f"{name.ljust(width)}  {visible_text(text)}")


def print_body(title: str, body: JsonValue | Unset) -> None:
    """Print JSON under its title; nothing if there is none."""
    if not isinstance(body, Unset):
        print_heading(title)
        click.echo(json_block(body))


def show_status(status: str, reason: str | None) -> str:
    """Return a status, and why it is so if somebody said."""
    return f"{status} ({reason})" if reason else status


def show_error(code: str | None, message: str | None) -> str:
    """Return the code of a failure and its text; a dash without any."""
    if not code:
        return NOTHING
    return f"{code}: {message}" if message else code
