"""Contenders take turns; each run has a fresh database and fresh processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .model import ROWS, Client, Contender, Figure
from .process import ClientProcess, ask_all
from .samples import Sample
from .server import BenchmarkServer

_COUNTED_WINDOWS: Final = 0.5


@dataclass(frozen=True)
class Pace:
    """How long and how often.

    Attributes:
        seconds: Length of a run.
        repeats: Runs of each contender.
        settle: Share of the settling times.
    """

    seconds: float
    repeats: int
    settle: float


@dataclass
class Runs:
    """All runs of one contender."""

    contender: Contender
    timed: list[Sample] = field(default_factory=list[Sample])
    counted: Sample | None = None


class Runner:
    """Runs what figures need."""

    def __init__(self, server: BenchmarkServer, pace: Pace, tell: Callable[[str], None]) -> None:
        """Tell of every run before it starts."""
        self._server = server
        self._pace = pace
        self._tell = tell

    def run(self, figures: Sequence[Figure]) -> dict[str, Runs]:
        """Run the contenders of the figures, by group; return the runs by contender's name."""
        results: dict[str, Runs] = {}
        for group in dict.fromkeys(figure.group for figure in figures):
            contenders = {
                contender.name: contender
                for figure in figures
                if figure.group == group
                for contender in figure.contenders
            }
            results |= self._take_turns(group, list(contenders.values()))
            self._server.forget_fills()
        return results

    def _take_turns(self, group: str, contenders: Sequence[Contender]) -> dict[str, Runs]:
        runs = {contender.name: Runs(contender) for contender in contenders}
        for turn in range(self._pace.repeats):
            for contender in contenders:
                self._tell(f"{group}: {contender.name} ({turn + 1} of {self._pace.repeats})")
                runs[contender.name].timed.append(self._run(contender, self._pace.seconds))
        if counted := [contender for contender in contenders if contender.is_counted]:
            with self._server.counting():
                for contender in counted:
                    self._tell(f"{group}: {contender.name} (counted)")
                    runs[contender.name].counted = self._run(
                        contender, self._pace.seconds * _COUNTED_WINDOWS
                    )
        return runs

    def _run(self, contender: Contender, seconds: float) -> Sample:
        processes: list[ClientProcess] = []
        with self._server.database(contender.fill) as (name, dsn):

            def start(clients: Sequence[Client]) -> list[ClientProcess]:
                started = [
                    ClientProcess(client, dsn, self._arguments(client, contender))
                    for client in clients
                ]
                processes.extend(started)
                for process in started:
                    process.answer()
                return started

            try:
                helpers, clients = start(contender.helpers), start(contender.clients)
                return self._measure(contender, name, clients, helpers, seconds)
            except BaseException:
                for process in processes:
                    process.kill()
                raise

    def _measure(
        self,
        contender: Contender,
        database: str,
        clients: Sequence[ClientProcess],
        helpers: Sequence[ClientProcess],
        seconds: float,
    ) -> Sample:
        server = self._server
        if not contender.runs_out:
            time.sleep(contender.settle_seconds * self._pace.settle)
        before = server.counters(database)
        ask_all(clients, "begin")
        if contender.runs_out:
            ask_all(clients, "wait")
        else:
            time.sleep(seconds * contender.windows)
        ends = ask_all(clients, "end")
        after = server.counters(database)
        stopped = ask_all(clients, "stop")
        helped = ask_all(helpers, "stop")
        for process in (*clients, *helpers):
            process.end()
        server.wait_for_disconnect(database)
        done = sum(int(answer["jobs"]) for answer in stopped)
        self._require_rest(contender, done)
        values = {"memory_mb": max(end["memory_mb"] for end in ends)}
        if contender.values is not None:
            values |= contender.values(
                [answer["instants"] for answer in stopped],
                [answer["instants"] for answer in helped],
            )
        return Sample(
            jobs=sum(int(end["jobs"]) for end in ends),
            seconds=max(end["seconds"] for end in ends),
            client_cpu_seconds=sum(end["cpu_seconds"] for end in ends),
            server_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
            wal_bytes=after.wal_bytes - before.wal_bytes,
            commits_per_job=server.commits(database) / max(1, done),
            statements=after.statements - before.statements,
            values=values,
        )

    def _arguments(self, client: Client, contender: Contender) -> dict[str, object]:
        rows = self._server.rows_of(contender.fill)
        return {name: rows if value == ROWS else value for name, value in client.arguments.items()}

    def _require_rest(self, contender: Contender, done: int) -> None:
        # One client knows when it was through; of several none does, unless it is to run out.
        rows = self._server.rows_of(contender.fill)
        if len(contender.clients) > 1 and not contender.runs_out and 0 < rows <= done:
            message = f"{contender.name}: {rows} jobs did not last for the run; fill in more"
            raise RuntimeError(message)
