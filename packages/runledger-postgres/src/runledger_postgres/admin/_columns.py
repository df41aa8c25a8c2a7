"""What the descriptions of all tables share."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlalchemy import DateTime, MetaData
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.types import TypeEngine

SCHEMA: Final = "runledger"
INSTANT: Final = DateTime(timezone=True)

metadata: Final = MetaData(schema=SCHEMA)


def enum_of(name: str, kind: type[StrEnum]) -> TypeEngine[str]:
    """Return the type of the database whose values are those of an enumeration."""
    values = (member.value for member in kind)
    return ENUM(*values, name=name, schema=SCHEMA, create_type=False)
