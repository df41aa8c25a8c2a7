"""What a log may hold of a failure of the database: no rows, no connection string."""

from __future__ import annotations

import psycopg

from runledger_core import RunledgerError, type_name
from runledger_postgres.errors import QueryError


def failure_fields(error: BaseException) -> dict[str, object]:
    """Return the fields of a log record that tell of an error."""
    cause = error.__cause__ if isinstance(error, QueryError) else error
    fields: dict[str, object] = {"error": type_name(error)}
    if isinstance(error, RunledgerError):
        fields["error_code"] = error.code
    if isinstance(cause, psycopg.Error):
        fields["sqlstate"] = cause.sqlstate
    # The server refused to serve or was not reached; texts of other errors quote rows.
    if isinstance(cause, psycopg.OperationalError):
        fields["reason"] = str(cause).strip()
    return fields
