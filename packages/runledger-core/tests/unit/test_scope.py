import copy
import dataclasses
import pickle
from uuid import UUID

import pytest

from runledger_core import Scope, ScopeKind, ValidationError

ORGANIZATION = UUID(int=1)


def test_the_three_scopes_differ():
    scopes = {Scope.organization(ORGANIZATION), Scope.GLOBAL, Scope.ADMIN}

    assert len(scopes) == 3
    assert Scope.organization(ORGANIZATION).organization_id == ORGANIZATION
    assert [scope.kind for scope in (Scope.GLOBAL, Scope.ADMIN)] == ["GLOBAL", "ADMIN"]


def test_equal_scopes_are_equal():
    assert Scope.organization(ORGANIZATION) == Scope(ScopeKind.ORGANIZATION, ORGANIZATION)
    assert pickle.loads(pickle.dumps(Scope.GLOBAL)) == Scope.GLOBAL  # our own bytes
    assert copy.deepcopy(Scope.ADMIN) == Scope.ADMIN


def test_scopes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scope.GLOBAL.organization_id = ORGANIZATION  # pyright: ignore[reportAttributeAccessIssue]  # the mistake


@pytest.mark.parametrize(
    ("kind", "organization_id", "code", "field"),
    [
        (ScopeKind.ORGANIZATION, None, "input.wrong_type", "organization_id"),
        (ScopeKind.ORGANIZATION, str(ORGANIZATION), "input.wrong_type", "organization_id"),
        (ScopeKind.GLOBAL, ORGANIZATION, "input.out_of_range", "organization_id"),
        (ScopeKind.ADMIN, ORGANIZATION, "input.out_of_range", "organization_id"),
        ("ALL", None, "input.out_of_range", "kind"),
        (None, None, "input.wrong_type", "kind"),
    ],
)
def test_contradictions_are_refused(kind, organization_id, code, field):
    with pytest.raises(ValidationError) as caught:
        Scope(kind, organization_id)

    assert caught.value.code == code
    assert caught.value.field == field
