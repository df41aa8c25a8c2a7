"""Statements that undo themselves where a trigger of the host kept back what they wrote."""

from __future__ import annotations

from typing import Final, LiteralString

# Recognised in the server's message, whatever its language.
KEPT_BACK: Final = "runledger: rows were kept back"


def whole_or_error(condition: LiteralString) -> LiteralString:
    """Return an expression that is true if all was written, and otherwise fails.

    The statement is undone by that, without a further trip before COMMIT: as `db.rows_kept_back`. A
    CASE in a text: what is constant the planner would evaluate, and fail always.
    """
    return f"(CASE WHEN {condition} THEN 'true' ELSE '{KEPT_BACK}' END)::bool"
