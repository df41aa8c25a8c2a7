"""`runledger worker`: run the jobs of a catalog until told to stop."""

from __future__ import annotations

import math
import sys
import threading
from contextlib import closing
from dataclasses import replace
from typing import Final

import click

from runledger_core import visible_text
from runledger_postgres import connect_pool, ensure_schema_compatible

from ..catalog import JobCatalog
from ..config import JobsConfig
from ..errors import ShutdownAbortedError, ShutdownTimeoutError
from ..stop_signals import StopSignals
from ..supervisor import DEFAULT_SHUTDOWN_TIMEOUT_SECONDS, Supervisor
from ._app import load_catalog
from ._burst import EXIT_JOBS_LEFT, Burst
from ._database import Target, connect, database_options
from ._end import ProcessEnd
from ._errors import EXIT_FAILURE
from ._health import health_port_of, require_free_ports
from ._log import log_to_stderr, tell
from ._main import PROCESS_IS_OURS
from ._parent import Parent
from ._processes import WorkerProcesses
from ._sync import sync_catalog

# Handlers borrow connections for moments; the engine has its own.
_POOL_CONNECTIONS: Final = 10
_LEVELS: Final = ("debug", "info", "warning", "error")
# The first character keeps click from filling the lines; in a docstring it would need a raw one.
_EXIT_CODES: Final = """\b
Exit codes:
  0   stopped by a signal, everything settled
  1   could not start, or a loop failed
  2   wrong usage
  70  stopped, but handlers still ran: after the timeout or a second signal,
      or where a process of --burst was killed
  75  --burst ended, but jobs are due that the database refuses to have claimed
"""


def _number(ctx: click.Context, parameter: click.Parameter, value: float) -> float:
    # It lies outside of no range.
    if math.isnan(value):
        message = "nan is no number"
        raise click.BadParameter(message, ctx, parameter)
    return value


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
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes, each with so many handlers; one that ends is started again.",
)
@click.option("--burst", is_flag=True, help="End when nothing is due any more.")
@click.option(
    "--health-port",
    type=click.IntRange(1, 65535),
    help="Serve /live, /ready and /metrics on this port; further processes on the next ports.",
)
@click.option(
    "--health-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address of the health port; whoever reaches it may ask.",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(min=0, max=threading.TIMEOUT_MAX),
    callback=_number,
    default=DEFAULT_SHUTDOWN_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time that running handlers have to end after a signal.",
)
@click.option(
    "--sync/--no-sync",
    "syncs",
    default=True,
    help="Whether to write the catalog's definitions and schedules first (they are by default).",
)
@click.option("--stop-at-eof", is_flag=True, hidden=True)
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
    processes: int,
    burst: bool,
    health_port: int | None,
    health_host: str,
    shutdown_timeout: float,
    syncs: bool,
    stop_at_eof: bool,
    log_level: str,
    target: Target,
) -> None:
    """Run the jobs of a catalog until SIGINT or SIGTERM.

    The first signal ends claiming and lets running handlers end. A second one, or the end of the
    timeout, tells those that still run to stop; the process is gone within two seconds of the
    timeout, or three of the second signal. A handler that leaves gives its job back; the job of
    one that goes on runs again when its lease has expired. JOBS_* variables of the environment
    are the settings.
    """
    http = None if health_port is None else (health_host, health_port)
    fields = log_to_stderr(log_level)
    config = JobsConfig.from_env()
    end = _process_end(shutdown_timeout)
    # Before the application registers its own.
    end.flush_at_exit()
    if concurrency is not None:
        config = replace(config, max_global_concurrency=concurrency)
    catalog = load_catalog(app).middleware(fields)
    _warn_if_empty(app, catalog)
    with target.dsn() as dsn:
        # One connection first: it tells at once, and plainly, what a pool would retry.
        with closing(connect(dsn)) as connection:
            ensure_schema_compatible(connection)
            if syncs:
                sync_catalog(connection, catalog)
        if processes > 1:
            require_free_ports(http, processes)
            options = ["--app", app, "--shutdown-timeout", str(shutdown_timeout)]
            options += ["--log-level", log_level, "--no-sync", "--stop-at-eof"]
            options += ["--burst"] if burst else []
            options += [] if concurrency is None else ["--concurrency", str(concurrency)]
            workers = WorkerProcesses(
                processes,
                lambda number: ["worker", *options, *_health_options(http, number)],
                # Not an option: everybody can read those.
                environment={"DATABASE_URL": dsn},
                shutdown_timeout=shutdown_timeout,
                restarts_success=not burst,
            )
            sys.exit(_run_processes(workers, end))
        parent = Parent() if stop_at_eof else None
        code = _run(dsn, catalog, config, end, burst=burst, parent=parent, http=http)
    sys.exit(code)


def _warn_if_empty(app: str, catalog: JobCatalog) -> None:
    if not catalog.definitions():
        click.echo(
            f"warning: the catalog {visible_text(app)} is empty, so no job will run; register"
            " handlers with @catalog.job(...) in modules that it imports",
            err=True,
        )


def _run(
    dsn: str,
    catalog: JobCatalog,
    config: JobsConfig,
    end: ProcessEnd,
    *,
    burst: bool,
    parent: Parent | None,
    http: tuple[str, int] | None,
) -> int:
    pool_size = min(config.max_global_concurrency, _POOL_CONNECTIONS)
    with (
        health_port_of(http, config, catalog) as port,
        connect_pool(dsn, max_size=pool_size) as pool,
        # Before jobs run.
        end.signals(parent) as signals,
    ):
        builder = Supervisor.builder(pool, config).with_catalog(catalog)
        port.observe(builder)
        supervisor = builder.build()
        end.watch(lambda: supervisor.is_shutdown_requested)
        port.watch(supervisor, pool)
        if parent is not None:
            parent.listen(supervisor.request_shutdown)
        work = Burst(supervisor, pool, catalog.to_registry().registered_types())
        if burst:
            work.stop_when_idle()
        tell(
            f"worker {supervisor.worker_id} runs {len(catalog.definitions())} job types;"
            " end it with Ctrl-C or SIGTERM"
        )
        _run_until_shutdown(supervisor, signals, end)
        code = EXIT_JOBS_LEFT if work.jobs_left else 0
        end.over(code)
    if work.jobs_left:
        tell(f"warning: {work.jobs_left}")
    tell("worker stopped")
    return code


def _process_end(timeout: float) -> ProcessEnd:
    root = click.get_current_context().find_root()
    return ProcessEnd(timeout, is_ours=root.obj is PROCESS_IS_OURS)


def _run_processes(workers: WorkerProcesses, end: ProcessEnd) -> int:
    code = workers.run()
    # Watched from here on only: while its workers end, the parent waits for them.
    end.over(code)
    end.watch()
    return code


def _run_until_shutdown(supervisor: Supervisor, signals: StopSignals, end: ProcessEnd) -> None:
    try:
        supervisor.run_until_shutdown(signals, end.timeout)
    except (ShutdownTimeoutError, ShutdownAbortedError) as error:
        # Handler threads still run: an orderly exit would wait for what they hold.
        tell(f"error: {visible_text(str(error))}")
        end.cut_off()
    except BaseException:
        end.over(EXIT_FAILURE)
        raise


def _health_options(http: tuple[str, int] | None, number: int) -> list[str]:
    if http is None:
        return []
    host, port = http
    return ["--health-host", host, "--health-port", str(port + number - 1)]
