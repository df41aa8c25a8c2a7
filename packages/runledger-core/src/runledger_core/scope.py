"""Whose rows an operation may see or change."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self
from uuid import UUID

from runledger_core import codes
from runledger_core.errors import ValidationError
from runledger_core.text import check_choice, check_uuid


class ScopeKind(StrEnum):
    """Tell the three scopes apart."""

    ORGANIZATION = "ORGANIZATION"
    GLOBAL = "GLOBAL"
    ADMIN = "ADMIN"


@dataclass(frozen=True, slots=True)
class Scope:
    """Limit an operation to the rows of one organization, to global rows, or not at all.

    Use `Scope.organization(id)`, `Scope.GLOBAL` or `Scope.ADMIN`.

    Attributes:
        kind: Which of the three.
        organization_id: The organization; None for the other two.
        GLOBAL: Only rows that belong to no organization.
        ADMIN: All rows.
    """

    kind: ScopeKind
    organization_id: UUID | None = None

    GLOBAL: ClassVar["Scope"]
    ADMIN: ClassVar["Scope"]

    def __post_init__(self) -> None:
        """Refuse a scope that names an organization without its kind, or the reverse.

        Raises:
            ValidationError: `input.wrong_type` or `input.out_of_range`.
        """
        kind = check_choice(self.kind, field="kind", choices=ScopeKind)
        object.__setattr__(self, "kind", kind)
        if kind is ScopeKind.ORGANIZATION:
            organization_id = check_uuid(self.organization_id, field="organization_id")
            object.__setattr__(self, "organization_id", organization_id)
        elif self.organization_id is not None:
            message = f"organization_id must be None in scope {kind}"
            raise ValidationError(codes.INPUT_OUT_OF_RANGE, message, field="organization_id")

    @classmethod
    def organization(cls, organization_id: UUID) -> Self:
        """Return the scope of one organization's rows.

        Raises:
            ValidationError: `input.wrong_type`.
        """
        return cls(ScopeKind.ORGANIZATION, organization_id)


Scope.GLOBAL = Scope(ScopeKind.GLOBAL)
Scope.ADMIN = Scope(ScopeKind.ADMIN)
