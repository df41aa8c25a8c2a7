"""`runledger schedules`: look at schedules and their next fires, pause and resume them."""

from __future__ import annotations

import click

from ._schedule_change import pause, resume
from ._schedule_list import list_command
from ._schedule_preview import preview


@click.group("schedules")
def command() -> None:
    """Look at schedules and their next fires, pause and resume them."""


for _verb in (list_command, pause, resume, preview):
    command.add_command(_verb)
