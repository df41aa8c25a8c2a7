"""Checks of what callers give to specs and builders."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from runledger_core import codes
from runledger_core._kinds import is_kind, type_name
from runledger_core.errors import ValidationError
from runledger_core.identifiers import JobType, StepKey, WorkflowType
from runledger_core.jsonvalue import UNSET, JsonInput, JsonValue, Unset, decode_json, encode_json
from runledger_core.limits import current_limits
from runledger_core.text import check_text
from runledger_core.workflows.errors import WorkflowBuildError

NameT = TypeVar("NameT", JobType, StepKey, WorkflowType)
MemberT = TypeVar("MemberT")


def is_blank(text: str) -> bool:
    """Tell whether text is empty or only white space."""
    return not text or text.isspace()


def unchecked_name(value: object, *, field: str) -> str:
    """Return text that is a name once it is known not to be blank.

    Builders may be given blank text and refuse it when they build.
    """
    limit = current_limits().identifier_characters
    return check_text(value, field=field, max_characters=limit, allow_blank=True)


def unchecked_key(value: object, *, field: str) -> str:
    """Return text that is an idempotency key once it is known not to be blank."""
    return check_text(value, field=field, max_bytes=current_limits().key_bytes, allow_blank=True)


def checked_name(
    kind: type[NameT], value: object, *, field: str, blank: Callable[[], WorkflowBuildError]
) -> NameT:
    """Return the value as a name, or raise what `blank` makes."""
    if type(value) is kind:
        return value
    text = unchecked_name(value, field=field)
    if is_blank(text):
        raise blank()
    return kind(text)


def unchecked_names(values: Iterable[str], *, field: str) -> list[str]:
    """Return several names, of which some may be blank.

    One string is refused: it would be taken for as many names as it has characters.
    """
    if is_kind(values, str):
        message = f"{field} must be a list of step keys, not one of them"
        raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field)
    return [unchecked_name(value, field=field) for value in _listed(values, field=field)]


def checked_members(
    kind: type[MemberT], values: Iterable[MemberT], *, field: str
) -> tuple[MemberT, ...]:
    """Return the values, each of which is of this kind."""
    members = tuple(_listed(values, field=field))
    for index, member in enumerate(members):
        if not is_kind(member, kind):
            message = f"{field} must hold {kind.__name__}, not {type_name(member)}"
            raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field, entry_index=index)
    return members


def own_copy(value: JsonInput | Unset, *, field: str, max_bytes: int) -> JsonValue:
    """Return a JSON value that nobody else can change, an empty object for none."""
    if value is UNSET:
        return {}
    return decode_json(encode_json(value, field=field, max_bytes=max_bytes), field=field)


def _listed(values: Iterable[MemberT], *, field: str) -> Iterable[MemberT]:
    try:
        return iter(values)
    except TypeError:
        message = f"{field} must be a list, not {type_name(values)}"
        raise ValidationError(codes.INPUT_WRONG_TYPE, message, field=field) from None
