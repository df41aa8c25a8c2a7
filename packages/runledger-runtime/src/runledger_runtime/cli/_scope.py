"""Whose jobs a verb sees and changes: the options --org and --global."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

import click

from runledger_core import Scope

Function = TypeVar("Function", bound=Callable[..., Any])


def scope_options(function: Function) -> Function:
    """Add --org and --global; the function gets a Scope as `scope`, ADMIN without either."""

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
        "--global", "is_global", is_flag=True, is_eager=True, help="Only jobs of no organization."
    )
    organization = click.option(
        "--org",
        metavar="UUID",
        type=click.UUID,
        expose_value=False,
        callback=choose,
        help="Only jobs of this organization; without --org and --global, all jobs.",
    )
    return only_global(organization(function))
