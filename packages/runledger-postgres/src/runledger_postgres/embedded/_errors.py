"""The one error of the embedded server, and its codes."""

from __future__ import annotations

from typing import Final

from ..errors import QueryUnavailableError

ACCOUNT_NOT_FOUND: Final = "embedded.account_not_found"
BINARIES_NOT_FOUND: Final = "embedded.binaries_not_found"
BINARIES_UNUSABLE: Final = "embedded.binaries_unusable"
DIRECTORY_FORBIDDEN: Final = "embedded.directory_forbidden"
DIRECTORY_NOT_OURS: Final = "embedded.directory_not_ours"
DIRECTORY_UNREACHABLE: Final = "embedded.directory_unreachable"
INIT_FAILED: Final = "embedded.init_failed"
LOCK_TIMEOUT: Final = "embedded.lock_timeout"
NOT_STARTED: Final = "embedded.not_started"
PASSWORD_MISSING: Final = "embedded.password_missing"  # noqa: S105  # A code, no password.
SETTING_RESERVED: Final = "embedded.setting_reserved"
START_FAILED: Final = "embedded.start_failed"
START_TIMEOUT: Final = "embedded.start_timeout"
STOP_FAILED: Final = "embedded.stop_failed"
VERSION_MISMATCH: Final = "embedded.version_mismatch"
VERSION_UNSUPPORTED: Final = "embedded.version_unsupported"


class EmbeddedServerError(QueryUnavailableError):
    """The embedded server cannot be found, started, used or stopped; the code says why.

    `internal_message` holds the last lines of the server's log, where there are any.
    """
