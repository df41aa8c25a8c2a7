"""`runledger workflows graph`: a run as a drawing, for Mermaid, Graphviz or a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import click

from runledger_core import JsonValue, Scope, visible_text
from runledger_core.workflows import (
    WorkflowDependencyReleaseMode,
    WorkflowStepExecutionKind,
    WorkflowStepStatus,
)
from runledger_postgres import WorkflowStepSummary

from ._database import Target, database_options
from ._output import print_json, row_to_json
from ._scope import run_scope_options
from ._workflow_run import RunGraph, read_graph

# Fill and border; text on them is black.
_COLORS: Final[Mapping[WorkflowStepStatus, tuple[str, str]]] = {
    WorkflowStepStatus.BLOCKED: ("#eeeeee", "#999999"),
    WorkflowStepStatus.WAITING_FOR_EXTERNAL: ("#fff3bf", "#e0a800"),
    WorkflowStepStatus.ENQUEUED: ("#d0ebff", "#339af0"),
    WorkflowStepStatus.RUNNING: ("#a5d8ff", "#1864ab"),
    WorkflowStepStatus.SUCCEEDED: ("#d3f9d8", "#2f9e44"),
    WorkflowStepStatus.FAILED: ("#ffc9c9", "#c92a2a"),
    WorkflowStepStatus.CANCELED: ("#e5dbff", "#7048e8"),
}
# Mermaid has no escape but its own entities, in which `#` takes the place of `&`.
_MERMAID: Final = str.maketrans({char: f"#{ord(char)};" for char in "#&\"'<>`|{}[]()\\;%"})
_DOT: Final = str.maketrans({"\\": "\\\\", '"': '\\"'})


@click.command("graph")
@click.argument("run_id", type=click.UUID, metavar="ID")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "dot", "json"]),
    default="mermaid",
    show_default=True,
    help="What to print: a Mermaid flowchart, a Graphviz digraph, or JSON.",
)
@run_scope_options
@database_options
def graph(run_id: UUID, *, form: str, scope: Scope, target: Target) -> None:
    """Draw a run: its steps with their statuses, and what waits for what.

    Dashed arrows are of steps that wait for any end of another, all others for its success.
    """
    with target.connect() as connection:
        drawn = read_graph(connection, run_id, scope=scope)
    if form == "json":
        print_json(_document(drawn))
        return
    lines: Callable[[RunGraph], list[str]] = _mermaid if form == "mermaid" else _dot
    click.echo("\n".join(lines(drawn)))


def _document(drawn: RunGraph) -> dict[str, JsonValue]:
    edges: list[JsonValue] = [
        {
            "from": edge.prerequisite_step_key,
            "to": edge.dependent_step_key,
            "release_mode": edge.release_mode,
        }
        for edge in drawn.edges
    ]
    return {
        "run": row_to_json(drawn.run),
        "steps": [row_to_json(step) for step in drawn.steps],
        "edges": edges,
    }


def _mermaid(drawn: RunGraph) -> list[str]:
    names = _names(drawn)
    lines = ["flowchart LR"]
    for step in drawn.steps:
        opening, closing = ("{{", "}}") if _is_gate(step) else ("[", "]")
        label = f"{visible_text(step.step_key).translate(_MERMAID)}<br/>{step.status}"
        lines.append(f'    {names[step.id]}{opening}"{label}"{closing}:::{step.status}')
    for edge in drawn.edges:
        arrow = "-.->" if _is_dashed(edge.release_mode) else "-->"
        before, behind = names[edge.prerequisite_step_id], names[edge.dependent_step_id]
        lines.append(f"    {before} {arrow} {behind}")
    for status in dict.fromkeys(step.status for step in drawn.steps):
        fill, border = _COLORS[status]
        lines.append(f"    classDef {status} fill:{fill},stroke:{border},color:#000")
    return lines


def _dot(drawn: RunGraph) -> list[str]:
    names = _names(drawn)
    lines = ["digraph run {", "    rankdir=LR;", "    node [shape=box, style=filled];"]
    for step in drawn.steps:
        fill, border = _COLORS[step.status]
        # The backslash of the line break is DOT's own.
        label = f"{visible_text(step.step_key).translate(_DOT)}\\n{step.status}"
        shape = ", shape=hexagon" if _is_gate(step) else ""
        lines.append(
            f'    {names[step.id]} [label="{label}", fillcolor="{fill}", color="{border}"{shape}];'
        )
    for edge in drawn.edges:
        style = " [style=dashed]" if _is_dashed(edge.release_mode) else ""
        before, behind = names[edge.prerequisite_step_id], names[edge.dependent_step_id]
        lines.append(f"    {before} -> {behind}{style};")
    return [*lines, "}"]


def _names(drawn: RunGraph) -> dict[UUID, str]:
    # Keys may hold anything, these may not.
    return {step.id: f"s{number}" for number, step in enumerate(drawn.steps, start=1)}


def _is_gate(step: WorkflowStepSummary) -> bool:
    return step.execution_kind is WorkflowStepExecutionKind.EXTERNAL


def _is_dashed(mode: WorkflowDependencyReleaseMode) -> bool:
    return mode is WorkflowDependencyReleaseMode.ON_TERMINAL
