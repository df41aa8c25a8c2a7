"""Options that several verbs have, and how a verb gets them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)


def status_option(kind: type[StrEnum], *, of: str) -> Callable[[Function], Function]:
    """Return --status, which may be repeated; the function gets the texts as `statuses`."""
    return click.option(
        "--status",
        "statuses",
        multiple=True,
        type=click.Choice([status.value for status in kind], case_sensitive=False),
        help=f"Only {of} of this status; may be repeated.",
    )


# Any: arguments, options, and what adds several of them.
def all_of(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return one decorator for several, named in the order in which help shows them."""

    def add(function: Function) -> Function:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return add
