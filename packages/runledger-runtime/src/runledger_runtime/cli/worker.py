"""`runledger worker`: run the jobs of a catalog until told to stop."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from dataclasses import replace
from types import FrameType
from typing import Any, Final, NoReturn, Self

import click

from runledger_core import visible_text
from runledger_postgres import connect_pool, ensure_schema_compatible

from ..catalog import JobCatalog
from ..config import JobsConfig
from ..errors import ShutdownAbortedError, ShutdownTimeoutError, SupervisorError
from ..supervisor import DEFAULT_SHUTDOWN_TIMEOUT_SECONDS, Supervisor
from ._app import load_catalog
from ._database import Target, connect, database_options
from ._errors import EXIT_UNSETTLED
from ._log import flush_logs, log_to_stderr

# Handlers borrow connections for moments; the engine has its own.
_POOL_CONNECTIONS: Final = 10
_LEVELS: Final = ("debug", "info", "warning", "error")
# The first character keeps click from filling the lines; in a docstring it would need a raw one.
_EXIT_CODES: Final = """\b
Exit codes:
  0   stopped by a signal, everything settled
  1   could not start, or a loop failed
  2   wrong usage
  70  stopped, but handlers still ran: after the timeout or a second signal
"""


@click.command("worker", epilog=_EXIT_CODES)
@click.option(
    "--app", required=True, metavar="MODULE:CATALOG", help="The JobCatalog with the handlers."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    help="Handlers at once; without it JOBS_MAX_GLOBAL_CONCURRENCY, or 32.",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0),
    default=DEFAULT_SHUTDOWN_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time that running handlers have to end after a signal.",
)
@click.option(
    "--sync/--no-sync",
    "syncs",
    default=True,
    help="Whether to write the catalog's definitions first (they are by default).",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Least level of log lines on stderr.",
)
@database_options
def command(
    app: str,
    *,
    concurrency: int | None,
    shutdown_timeout: float,
    syncs: bool,
    log_level: str,
    target: Target,
) -> None:
    """Run the jobs of a catalog until SIGINT or SIGTERM.

    The first signal ends claiming and lets running handlers end; a second one ends the process at
    once. What was running then is run again when its lease has expired. JOBS_* variables of the
    environment are the settings.
    """
    log_to_stderr(log_level)
    config = JobsConfig.from_env()
    if concurrency is not None:
        config = replace(config, max_global_concurrency=concurrency)
    catalog = load_catalog(app)
    if not catalog.definitions():
        click.echo(
            f"warning: the catalog {visible_text(app)} is empty, so no job will run; register"
            " handlers with @catalog.job(...) in modules that it imports",
            err=True,
        )
    with target.dsn() as dsn:
        # One connection first: it tells at once, and plainly, what a pool would retry.
        with closing(connect(dsn)) as connection:
            ensure_schema_compatible(connection)
            if syncs:
                catalog.sync_definitions(connection)
        _run(dsn, catalog, config, shutdown_timeout)


def _run(dsn: str, catalog: JobCatalog, config: JobsConfig, timeout: float) -> None:
    pool_size = min(config.max_global_concurrency, _POOL_CONNECTIONS)
    with connect_pool(dsn, max_size=pool_size) as pool, _EarlySignals() as signals:
        supervisor = Supervisor.builder(pool, config).with_catalog(catalog).build()
        signals.pass_on_to(supervisor)
        click.echo(
            f"worker {supervisor.worker_id} runs {len(catalog.definitions())} job types;"
            " end it with Ctrl-C or SIGTERM",
            err=True,
        )
        try:
            supervisor.run_until_shutdown(timeout=timeout)
        except (ShutdownTimeoutError, ShutdownAbortedError) as error:
            _leave(error)
    click.echo("worker stopped", err=True)


class _EarlySignals:
    """Keeps signals that come while the loops start; `run_until_shutdown` takes over later.

    By default they would end the process while jobs are running already.
    """

    def __init__(self) -> None:
        self._was_told = False
        self._supervisor: Supervisor | None = None
        # Any: the handlers of others, as the signal module returns them.
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def pass_on_to(self, supervisor: Supervisor) -> None:
        """Ask for a stop if a signal came before there was somebody to ask."""
        self._supervisor = supervisor
        if self._was_told:
            supervisor.request_shutdown()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._was_told = True
        if self._supervisor is not None:
            # The thread that this interrupts may hold the lock that a request takes.
            threading.Thread(target=self._supervisor.request_shutdown, daemon=True).start()


def _leave(error: SupervisorError) -> NoReturn:
    # Handler threads still run: an orderly exit would wait for what they hold.
    click.echo(f"error: {visible_text(str(error))}", err=True)
    flush_logs()
    os._exit(EXIT_UNSETTLED)
