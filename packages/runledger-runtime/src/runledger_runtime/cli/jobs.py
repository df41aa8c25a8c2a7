"""`runledger jobs`: look at jobs, make them, and change them."""

from __future__ import annotations

import click

from ._job_change import cancel, requeue
from ._job_enqueue import enqueue
from ._job_list import list_command
from ._job_show import show


@click.group("jobs")
def command() -> None:
    """Look at jobs, make them, and change them."""


for _verb in (list_command, show, enqueue, cancel, requeue):
    command.add_command(_verb)
