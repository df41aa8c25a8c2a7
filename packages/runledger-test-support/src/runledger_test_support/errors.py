"""The codes of the test helpers; the classes are Runledger's own."""

from __future__ import annotations

from typing import Final

BUDGET_EXHAUSTED: Final = "test_support.connection_budget_exhausted"
BUDGET_TOO_SMALL: Final = "test_support.connection_budget_too_small"
ENVIRONMENT_INVALID: Final = "test_support.environment_invalid"
PROXY_CLOSED: Final = "test_support.proxy_closed"
ROLE_NOT_ALLOWED: Final = "test_support.role_not_allowed"
ROW_NOT_FOUND: Final = "test_support.row_not_found"
RUNTIME_MISSING: Final = "test_support.runtime_missing"
SERVER_TOO_OLD: Final = "test_support.server_too_old"
SERVER_UNAVAILABLE: Final = "test_support.server_unavailable"
SESSION_INVALID: Final = "test_support.session_invalid"
WAIT_TIMEOUT: Final = "test_support.wait_timeout"
