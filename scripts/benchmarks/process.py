"""Client processes as the benchmark holds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .model import Client

_SCRIPTS: Final = Path(__file__).resolve().parent.parent
_STOP_SECONDS: Final = 60


class ClientProcess:
    """A process of `client`, started at once."""

    def __init__(self, client: Client, dsn: str, arguments: dict[str, object]) -> None:
        """Start it; `answer` tells when it goes."""
        self._name = client.workload
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.client"],
            cwd=_SCRIPTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        order = {"workload": client.workload, "dsn": dsn, "arguments": arguments}
        self.send(json.dumps(order))

    def send(self, line: str) -> None:
        """Say one line."""
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to one line."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            message = f"the client {self._name} died; its error is above"
            raise RuntimeError(message)
        return json.loads(line)

    def end(self) -> None:
        """Wait for its end, or kill it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self.end()


def ask_all(processes: Sequence[ClientProcess], line: str) -> list[dict[str, Any]]:
    """Say a line to all, then wait for each answer."""
    for process in processes:
        process.send(line)
    return [process.answer() for process in processes]
