"""`runledger demo`: real jobs on a real PostgreSQL, for a quarter of a minute."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click
from psycopg_pool import ConnectionPool

from runledger_core import InternalError, JobStatus, RunledgerError, visible_text
from runledger_postgres import connect_pool, migrate

from ..config import JobsConfig
from ..supervisor import Supervisor
from ._database import Target, connect, embedded_server
from ._demo_catalog import Witness, make_demo_catalog
from ._demo_script import Script
from ._demo_summary import Summary, next_commands, print_summary, summarize
from ._demo_view import Changes, open_view
from ._log import log_to_stderr
from ._output import make_console, print_json

_CONCURRENCY: Final = 6
_LOOK_SECONDS: Final = 0.2
_LONGEST_SECONDS: Final = 26.0
_STOP_SECONDS: Final = 10.0


@click.command("demo")
@click.option(
    "--directory",
    "--embedded",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the server keeps its data; without it a new directory, which is printed.",
)
@click.option(
    "--database-url",
    metavar="URL",
    help="A database to use instead. DATABASE_URL is not looked at: the demo leaves jobs behind.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as one JSON document.")
def command(directory: Path | None, database_url: str | None, *, as_json: bool) -> None:
    """Show real jobs at work on a PostgreSQL that comes along.

    Starts a server (no root, no container; works as root too), creates the schema, runs a worker,
    and ends by itself. The data stays for you to look at.
    """
    if directory is not None and database_url is not None:
        message = "give --directory or --database-url, not both"
        raise click.UsageError(message)
    # What attempts come to is the show itself; only what goes wrong with the worker is logged.
    log_to_stderr("error")
    with ExitStack() as stack:
        stack.enter_context(_terminate_like_ctrl_c())
        dsn, kept = _open_database(stack, directory, database_url)
        with closing(connect(dsn)) as connection:
            migrate(connection)
        pool = stack.enter_context(connect_pool(dsn, max_size=_CONCURRENCY + 2))
        summary, dead_letter_id, run_id = _show(pool, to_stderr=as_json)
        if as_json:
            print_json({"directory": None if kept is None else str(kept), **summary.to_json()})
        problems = summary.problems()
        if problems:
            raise InternalError("cli.demo_failed", "; ".join(problems))
    _say("", to_stderr=as_json)
    _say("Look at what it left:", to_stderr=as_json)
    for line in next_commands(kept, dead_letter_id, run_id):
        _say(line, to_stderr=as_json)


def _say(line: str, *, to_stderr: bool) -> None:
    click.echo(visible_text(line), err=to_stderr)


def _open_database(
    stack: ExitStack, directory: Path | None, database_url: str | None
) -> tuple[str, Path | None]:
    if database_url is not None:
        return stack.enter_context(Target(database_url, None).dsn()), None
    is_new = directory is None
    kept = _fresh_directory() if directory is None else directory
    click.echo(f"starting PostgreSQL in {visible_text(str(kept))}", err=True)
    try:
        server = stack.enter_context(embedded_server(kept))
    except RunledgerError:
        if is_new:
            with suppress(OSError):
                kept.rmdir()
        raise
    click.echo(f"PostgreSQL {server.version} runs; a worker with {_CONCURRENCY} handlers", err=True)
    return server.dsn(), kept


def _fresh_directory() -> Path:
    """Make a directory that will be kept: in the user's cache, or else where temporary files go."""
    name = time.strftime("demo-%Y%m%d-%H%M%S-")
    # Root's home is closed to the account that runs the server.
    if os.geteuid() != 0:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runledger"
        with suppress(OSError, RuntimeError):
            cache.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=name, dir=cache))
    return Path(tempfile.mkdtemp(prefix=f"runledger-{name}"))


def _show(pool: ConnectionPool[Any], *, to_stderr: bool) -> tuple[Summary, str | None, str | None]:
    witness = Witness()
    catalog = make_demo_catalog(witness)
    catalog.sync_definitions(pool)
    config = JobsConfig(
        "demo",
        max_global_concurrency=_CONCURRENCY,
        poll_interval_ms=250,
        # A schedule that is stored while the scheduler sleeps is found at its next look.
        schedule_poll_interval_seconds=1,
    )
    supervisor = Supervisor.builder(pool, config).with_catalog(catalog).build()
    told: list[str] = []
    script = Script(pool, witness, told.append)
    try:
        _play(script, told, to_stderr=to_stderr)
    except BaseException:
        with suppress(RunledgerError):
            script.cancel_all()
        with suppress(RunledgerError):
            supervisor.shutdown_with_timeout(_STOP_SECONDS)
        raise
    supervisor.shutdown_with_timeout(_STOP_SECONDS)
    summary = summarize(pool, script, witness)
    print_summary(summary, lambda line: _say(line, to_stderr=to_stderr))
    dead = (str(job.id) for job in script.jobs() if job.status is JobStatus.DEAD_LETTERED)
    run_id = script.campaign.run_id
    return summary, next(dead, None), None if run_id is None else str(run_id)


def _play(script: Script, told: list[str], *, to_stderr: bool) -> None:
    changes = Changes(script.labels)
    look = threading.Event()
    with open_view(make_console(to_stderr=to_stderr), script.labels) as view:
        while script.elapsed_seconds < _LONGEST_SECONDS:
            script.play()
            jobs = script.jobs()
            at_seconds = script.elapsed_seconds
            for sentence in (*told, *changes.since_last(jobs)):
                view.tell(sentence, at_seconds=at_seconds)
            told.clear()
            view.draw(jobs, at_seconds=at_seconds)
            if script.is_over and all(job.status.is_terminal for job in jobs):
                return
            look.wait(_LOOK_SECONDS)


@contextmanager
def _terminate_like_ctrl_c() -> Generator[None]:
    """End as tidily on SIGTERM as on Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
