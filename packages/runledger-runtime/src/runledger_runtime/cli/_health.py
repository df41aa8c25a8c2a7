"""`runledger worker --health-port`: the health server of a worker, with metrics if they can be."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from runledger_core.limits import INT32_MAX

from ..catalog import JobCatalog
from ..config import JobsConfig
from ..health_server import DEFAULT_PASS_AGE_SECONDS, HealthServer
from ..supervisor import Supervisor, SupervisorBuilder

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

    from ..telemetry.prometheus import PrometheusMetrics

# Of passes that a loop may miss before it counts as late.
_MISSED_PASSES: Final = 3


class HealthPort:
    """The server and the metrics of one worker; without a port it does nothing."""

    def __init__(self, server: HealthServer | None, metrics: PrometheusMetrics | None) -> None:
        """Take both."""
        self._server = server
        self._metrics = metrics

    def observe(self, builder: SupervisorBuilder) -> None:
        """Have attempts counted."""
        if self._metrics is not None:
            builder.with_job_lifecycle_observer(self._metrics)

    def watch(self, supervisor: Supervisor, pool: ConnectionPool[Any]) -> None:
        """Tell the health of the Supervisor from now on."""
        if self._metrics is not None:
            self._metrics.watch(supervisor, pool)
        if self._server is not None:
            self._server.watch(supervisor)


@contextmanager
def health_port_of(
    address: tuple[str, int] | None, config: JobsConfig, catalog: JobCatalog
) -> Generator[HealthPort]:
    """Listen for the length of the block; before the worker runs, so that it tells at once.

    Raises:
        UnavailableError: `health.port_unavailable`.
    """
    if address is None:
        yield HealthPort(None, None)
        return
    host, port = address
    metrics = _metrics(catalog)
    with HealthServer(
        None,
        host=host,
        port=port,
        metrics=None if metrics is None else metrics.answer,
        pass_age_seconds=_pass_age_seconds(config),
    ) as server:
        yield HealthPort(server, metrics)


def require_free_ports(address: tuple[str, int] | None, count: int) -> None:
    """Listen on the ports of so many workers for a moment, to tell before any of them starts.

    Raises:
        UnavailableError: `health.port_unavailable`.
        ValidationError: `input.out_of_range` if there are not so many.
    """
    if address is None:
        return
    host, port = address
    with ExitStack() as opened:
        for number in range(count):
            opened.enter_context(HealthServer(None, host=host, port=port + number))


def _metrics(catalog: JobCatalog) -> PrometheusMetrics | None:
    try:
        from ..telemetry.prometheus import PrometheusMetrics  # noqa: PLC0415  # needs an extra
    except ImportError:
        return None
    return PrometheusMetrics(spec.job_type for spec in catalog.definitions())


def _pass_age_seconds(config: JobsConfig) -> int:
    longest = max(
        config.poll_interval_ms // 1000,
        config.reaper_interval_seconds,
        config.schedule_poll_interval_seconds,
    )
    return min(max(DEFAULT_PASS_AGE_SECONDS, _MISSED_PASSES * longest), INT32_MAX)
