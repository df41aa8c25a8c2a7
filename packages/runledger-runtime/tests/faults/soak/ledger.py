"""What a process has seen, written so that kill -9 takes nothing of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Ledger:
    """Appends facts to a file, each as one line in one write; threads may share it."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, fact: str, **fields: object) -> None:
        line = json.dumps({"fact": fact, "at": time.time(), **fields}) + "\n"
        os.write(self._descriptor, line.encode())


def read_facts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the facts of all processes of a soak, those of each process in order."""
    for path in sorted(folder.glob("*.ledger")):
        with path.open() as lines:
            # A process that was killed while it wrote may have left half a line at the end.
            yield from (json.loads(line) for line in lines if line.endswith("\n"))
