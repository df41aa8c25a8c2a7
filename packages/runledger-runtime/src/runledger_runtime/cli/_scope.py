"""Whose jobs or runs a verb sees and changes: the options --org and --global."""

from __future__ import annotations

from uuid import UUID

import click

from runledger_core import Scope

from ._options import Function


def scope_options(function: Function) -> Function:
    """Add --org and --global; the function gets a Scope as `scope`, ADMIN without either."""
    return _add_options(function, "jobs")


def run_scope_options(function: Function) -> Function:
    """Add the same for a verb that is about runs."""
    return _add_options(function, "runs")


def _add_options(function: Function, what: str) -> Function:
    def choose(ctx: click.Context, parameter: click.Parameter, value: UUID | None) -> UUID | None:
        del parameter
        is_global = ctx.params.pop("is_global", False)
        if value is not None and is_global:
            message = "give --org or --global, not both"
            raise click.UsageError(message)
        scope = Scope.GLOBAL if is_global else Scope.ADMIN
        ctx.params["scope"] = scope if value is None else Scope.organization(value)
        return value

    only_global = click.option(
        "--global",
        "is_global",
        is_flag=True,
        is_eager=True,
        help=f"Only {what} of no organization.",
    )
    organization = click.option(
        "--org",
        metavar="UUID",
        type=click.UUID,
        expose_value=False,
        callback=choose,
        help=f"Only {what} of this organization; without --org and --global, all {what}.",
    )
    return only_global(organization(function))
