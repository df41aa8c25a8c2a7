"""What every list checks before it runs SQL."""

from __future__ import annotations

from typing import Final

from runledger_core import ErrorCategory, is_kind

from .errors import QueryError, refusal

MAX_PAGE: Final = 1_000


def require_page(limit: object, *, after: object = None, before: object = None) -> None:
    """Refuse a page that is empty or too long, or that goes both ways.

    Raises:
        ValidationError: `job.invalid_pagination`.
    """
    if not _is_length(limit):
        raise invalid_pagination("limit", f"a page has 1 to {MAX_PAGE:,} rows")
    if after is not None and before is not None:
        raise invalid_pagination("before", "a page goes on after one row or ends before one")


def require_cursor(cursor: object, kind: type[object], *, field: str) -> None:
    """Refuse a cursor that comes from another list.

    Raises:
        ValidationError: `job.invalid_pagination`.
    """
    if cursor is not None and not is_kind(cursor, kind):
        raise invalid_pagination(field, f"this list goes on from a {kind.__name__}")


def invalid_pagination(field: str, client_message: str) -> QueryError:
    """Return the refusal of a page."""
    return refusal(ErrorCategory.VALIDATION, "job.invalid_pagination", client_message, field=field)


def _is_length(limit: object) -> bool:
    # The number itself, whatever a subclass says of it.
    return is_kind(limit, int) and not is_kind(limit, bool) and 1 <= int.__pos__(limit) <= MAX_PAGE
