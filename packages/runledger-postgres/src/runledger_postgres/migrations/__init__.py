"""The schema: apply it, check it, print it."""

from ._apply import migrate
from ._errors import LegacyIdempotencySnapshotsMissingError, SchemaCompatibilityError
from ._history import ensure_schema_compatible
from ._script import migration_script

__all__ = [
    "LegacyIdempotencySnapshotsMissingError",
    "SchemaCompatibilityError",
    "ensure_schema_compatible",
    "migrate",
    "migration_script",
]
