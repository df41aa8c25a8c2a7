"""A worker process whose clock is moved; ends when its standard input does."""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
from typing import Any

offset = float(json.loads(sys.argv[2])["offset"])
step = float(json.loads(sys.argv[2]).get("step", 0))
_real_time, _real_monotonic, _real_datetime = time.time, time.monotonic, dt.datetime
moved = [offset]


class MovedDatetime(_real_datetime):
    """The wall clock that is wrong."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return _real_datetime.now(tz) + dt.timedelta(seconds=moved[0])


# The monotonic clock counts from somewhere else, always above 0; only the wall clock ever jumps.
time.time = lambda: _real_time() + moved[0]
time.monotonic = lambda: _real_monotonic() + abs(offset)
dt.datetime = MovedDatetime  # pyright: ignore[reportAttributeAccessIssue]  # the point

from _faults import supervised  # noqa: E402  # behind the changed clocks

from runledger_postgres import connect_pool  # noqa: E402  # as above


def run_long(context: object, payload: object) -> None:
    """Run for so many seconds; the clock jumps in the middle."""
    seconds = payload["seconds"]  # pyright: ignore[reportIndexIssue]  # a JSON object
    pause = threading.Event()
    pause.wait(seconds / 2)
    moved[0] += step
    pause.wait(seconds / 2)


name = sys.argv[3]
handlers = {f"long.{name}": run_long, f"short.{name}": lambda *_: None}
with connect_pool(sys.argv[1]) as pool, supervised(pool, handlers, lease_ttl_seconds=2):
    sys.stdin.read()
