"""`drain`, which runs everything due in the calling thread; needs the extra `[runtime]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runledger_core import UnavailableError

from .errors import RUNTIME_MISSING

if TYPE_CHECKING:
    from runledger_runtime.testing import drain

__all__ = ["drain"]


def __getattr__(name: str) -> object:
    # Only when asked for: this distribution works without the runtime.
    if name != "drain":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        from runledger_runtime import testing  # noqa: PLC0415  # Optional, see above.
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "runledger_runtime":
            raise
        raise UnavailableError(
            RUNTIME_MISSING,
            "drain needs the runtime: pip install 'runledger-test-support[runtime]'",
        ) from error
    return testing.drain
