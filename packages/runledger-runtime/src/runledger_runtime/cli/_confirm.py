"""Changes of all that a filter chooses: counted first, and made only with --yes."""

from __future__ import annotations

from typing import Final

import click

from runledger_core import ValidationError

confirm_option: Final = click.option(
    "--yes", "is_confirmed", is_flag=True, help="Change what the filter chooses; else count."
)


def require_confirmation(matched: int, rows: str, *, done: str, is_confirmed: bool) -> None:
    """Tell how many rows a filter chooses, and refuse to change any without --yes.

    Raises:
        ValidationError: `cli.confirmation_required`.
    """
    click.echo(f"{matched} {rows} match", err=True)
    if matched and not is_confirmed:
        raise ValidationError(
            "cli.confirmation_required", f"nothing was {done}: {matched} {rows} would be"
        )
