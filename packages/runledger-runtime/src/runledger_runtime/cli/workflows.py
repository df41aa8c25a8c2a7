"""`runledger workflows`: look at runs, draw them, cancel them, and complete their gates."""

from __future__ import annotations

import click

from ._workflow_change import cancel, complete_step
from ._workflow_graph import graph
from ._workflow_list import list_command
from ._workflow_show import show


@click.group("workflows")
def command() -> None:
    """Look at workflow runs, draw them, cancel them, and complete their gates."""


for _verb in (list_command, show, graph, cancel, complete_step):
    command.add_command(_verb)
