"""A client process: runs one workload, told what to do by lines on its input.

The first line is JSON: the workload's name, the database's URL and arguments. Then `begin` and
`end` bound what is measured, `wait` waits until nothing is left, `stop` ends the process. Each is
answered by one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import by_hand, by_hand_workflows, ours, workflows
from benchmarks.loops import Workload

WORKLOADS: Final[dict[str, Callable[..., Workload]]] = {
    "hand.enqueue_one": by_hand.enqueue_one,
    "hand.enqueue_many": by_hand.enqueue_many,
    "hand.drain": by_hand.drain,
    "hand.listener": by_hand.Listener,
    "hand.flow": by_hand_workflows.flow,
    "hand.trickle": partial(ours.Trickle, insert=by_hand.insert_and_notify),
    "enqueue_one": ours.enqueue_one,
    "enqueue_many": ours.enqueue_many,
    "rounds": ours.rounds,
    "worker": ours.Worker,
    "flow": workflows.Flow,
    "one_run": workflows.OneRun,
    "trickle": partial(ours.Trickle, insert=ours.enqueue_in_transaction),
    "old_snapshot": ours.OldSnapshot,
}
_LOOK_SECONDS: Final = 0.05


class Window:
    """What is measured between `begin` and `end`."""

    def __init__(self, workload: Workload) -> None:
        """Begin."""
        self._workload = workload
        self._jobs, _ = workload.progress()
        self._cpu = time.process_time()
        self._began_at = time.monotonic()

    def end(self) -> dict[str, float]:
        """Return what was done, in which time and with how much of the processor."""
        jobs, ended_at = self._workload.progress()
        now = time.monotonic()
        return {
            "jobs": jobs - self._jobs,
            "seconds": (now if ended_at is None else ended_at) - self._began_at,
            "cpu_seconds": time.process_time() - self._cpu,
            "memory_mb": resident_bytes() / 1e6,
        }


def resident_bytes() -> int:
    """Return the memory that this process occupies."""
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Do what the lines say; end with the input."""
    logging.basicConfig(level=logging.WARNING)
    order = json.loads(sys.stdin.readline())
    workload = WORKLOADS[order["workload"]](order["dsn"], **order["arguments"])
    workload.start()
    say({})
    window = Window(workload)
    for line in sys.stdin:
        match line.strip():
            case "begin":
                window = Window(workload)
                say({})
            case "end":
                say(window.end())
            case "wait":
                while workload.progress()[1] is None:
                    time.sleep(_LOOK_SECONDS)
                say({})
            case _:
                instants = workload.stop()
                say({"jobs": workload.progress()[0], "instants": dict(instants)})
                return


def say(answer: dict[str, Any]) -> None:
    """Answer one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
