"""A look at a Runledger job queue from the terminal; the command is `runledger-tui`."""

from importlib.metadata import version
from typing import Final

__version__: Final = version("runledger-tui")

__all__ = ["__version__"]
