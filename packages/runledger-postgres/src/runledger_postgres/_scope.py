"""Scope as a condition of statements that name a row by id, key or filter."""

from __future__ import annotations

from typing import Final

from runledger_core import Scope

from ._arguments import check_kind

# For a row aliased q: any for ADMIN, none for GLOBAL, the one for an organization.
IN_SCOPE: Final = """(
    %(scope_kind)s::text = 'ADMIN'
    OR (%(scope_kind)s::text = 'GLOBAL' AND q.organization_id IS NULL)
    OR q.organization_id = %(scope_organization_id)s::uuid
)"""


def scope_parameters(scope: Scope) -> dict[str, object]:
    """Return the parameters that IN_SCOPE needs.

    Raises:
        ValidationError: `input.wrong_type` if it is no Scope.
    """
    check_kind(scope, Scope, field="scope")
    return {"scope_kind": scope.kind, "scope_organization_id": scope.organization_id}
