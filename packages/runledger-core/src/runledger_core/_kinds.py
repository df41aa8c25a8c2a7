"""Questions about the real type of a value, which no value can answer falsely."""

from typing import Final, TypeGuard, TypeVar

KindT = TypeVar("KindT")

_NAME_CHARACTERS: Final = 80


def is_kind(value: object, kind: type[KindT]) -> TypeGuard[KindT]:
    """Tell whether the value really is an instance.

    `isinstance` also believes `__class__`, which a mock with a spec fakes and a property can make
    raise; the unbound methods used on checked values accept neither.
    """
    return issubclass(type(value), kind)


def type_name(value: object) -> str:
    """Return the name of the value's type, whatever its metaclass does."""
    try:
        name = str.__str__(type(value).__name__)
        return name[:_NAME_CHARACTERS].encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001  # a metaclass may raise anything
        return "object"
