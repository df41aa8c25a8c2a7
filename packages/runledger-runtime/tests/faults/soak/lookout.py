"""Looks at the leases all the time, from a connection that no fault is aimed at."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import psycopg

_LOOK_SECONDS = 0.1

# A lease is as old as its last proof of life; by its end too, should one be too long from birth.
OLDEST_LEASE = """
SELECT
    coalesce(max(extract(epoch FROM clock_timestamp() - last_heartbeat_at)), 0)::float8,
    coalesce(max(extract(epoch FROM lease_expires_at - clock_timestamp())), 0)::float8,
    count(*)
FROM runledger.job_queue
WHERE status = 'LEASED'
"""


@dataclass
class Sightings:
    """What was seen, in seconds; leases count again when the grace after an outage has ended."""

    looks: int = 0
    longest_lease: float = 0.0
    longest_ahead: float = 0.0
    outages: list[float] = field(default_factory=list)


class Lookout(threading.Thread):
    """Samples until `finish`, through every outage."""

    def __init__(self, dsn: str, *, grace_seconds: float) -> None:
        super().__init__(name="soak-lookout", daemon=True)
        self.seen = Sightings()
        self._dsn = dsn
        self._grace = grace_seconds
        self._counts_from = 0.0
        self._away_since: float | None = None
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                with psycopg.connect(
                    self._dsn, autocommit=True, application_name="soak", connect_timeout=2
                ) as connection:
                    while not self._is_over.wait(_LOOK_SECONDS):
                        self._look(connection)
            except psycopg.OperationalError:
                self._away_since = self._away_since or time.monotonic()
                self._is_over.wait(_LOOK_SECONDS)

    def finish(self) -> Sightings:
        self._is_over.set()
        self.join(10)
        return self.seen

    def _look(self, connection: psycopg.Connection) -> None:
        row = connection.execute(OLDEST_LEASE).fetchone()
        assert row is not None
        age, ahead, _ = row
        now = time.monotonic()
        if self._away_since is not None:
            self.seen.outages.append(now - self._away_since)
            self._away_since, self._counts_from = None, now + self._grace
        self.seen.looks += 1
        self.seen.longest_ahead = max(self.seen.longest_ahead, ahead)
        if now >= self._counts_from:
            self.seen.longest_lease = max(self.seen.longest_lease, age)
