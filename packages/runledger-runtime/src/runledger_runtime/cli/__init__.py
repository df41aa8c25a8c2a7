"""The `runledger` command; nothing else in the wheel imports it, nor click and rich."""

from ._main import main

__all__ = ["main"]
