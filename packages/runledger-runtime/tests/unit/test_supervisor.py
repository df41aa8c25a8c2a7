import gc
import os
import re
import threading
from dataclasses import replace
from queue import SimpleQueue

import pytest
from psycopg_pool import ConnectionPool

from runledger_core import ValidationError
from runledger_postgres import require_own_pool
from runledger_runtime import supervisor as supervisor_module
from runledger_runtime.catalog import JobCatalog
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import (
    ForkedSupervisorError,
    InvalidJobsConfigError,
    JobsConfigError,
    LoopExit,
    MissingRegistryError,
    MixedRegistrySourcesError,
    ShutdownTimeoutError,
    ShutdownTimeoutTooLargeError,
    TaskFailedError,
)
from runledger_runtime.health import LoopState, LoopStatus
from runledger_runtime.observers import JobLifecycleObserver
from runledger_runtime.reaper import run_reaper_loop
from runledger_runtime.registry import JobRegistry
from runledger_runtime.supervisor import Supervisor

pytestmark = pytest.mark.usefixtures("no_thread_left")

CONFIG = JobsConfig("test", poll_interval_ms=25, lease_ttl_seconds=10, max_global_concurrency=4)


@pytest.fixture
def pool():
    # Never opened; nobody listens there. Only its settings are looked at.
    return ConnectionPool("postgresql://postgres@127.0.0.1:1/nothing", open=False)


@pytest.fixture
def builder(pool):
    return Supervisor.builder(pool, CONFIG)


@pytest.fixture
def idle(builder):
    """A supervisor without loops."""
    return without_loops(builder).build()


@pytest.fixture
def reaper(builder, monkeypatch, release):
    """Build a supervisor with one loop, which does as it is told."""

    def build(run):
        monkeypatch.setattr(supervisor_module, "run_reaper_loop", run)
        return builder.with_registry(JobRegistry()).disable_worker().disable_scheduler().build()

    return build


def without_loops(builder):
    return builder.disable_worker().disable_scheduler().disable_reaper()


def cooperative(pool, config, stop, **_):
    stop.wait(60)
    return LoopExit.SHUTDOWN


def failing(pool, config, stop, **_):
    raise ZeroDivisionError


def drop(owner):
    owner.clear()
    gc.collect()


def wait_until_failed(supervisor):
    with supervisor._tasks._inbox() as inbox:
        while supervisor.health().loops[0].state is LoopState.RUNNING:
            inbox.get(timeout=10)


def loop_names(supervisor):
    return [loop.name for loop in supervisor.health().loops]


def runledger_threads():
    return [each.name for each in threading.enumerate() if each.name.startswith("runledger-")]


def test_a_builder_enables_all_loops_and_has_no_handlers(builder):
    assert builder._worker_enabled
    assert builder._scheduler_enabled
    assert builder._reaper_enabled
    assert builder._registry is None
    assert builder._catalog is None
    assert len(builder._observers) == 0


def test_a_builder_accepts_a_registry_or_a_catalog(builder, pool):
    registry, catalog = JobRegistry(), JobCatalog()

    assert builder.with_registry(registry) is builder
    assert builder._registry is registry
    assert Supervisor.builder(pool, CONFIG).with_catalog(catalog)._catalog is catalog


def test_each_loop_can_be_disabled(builder):
    assert without_loops(builder) is builder
    assert not builder._worker_enabled
    assert not builder._scheduler_enabled
    assert not builder._reaper_enabled


def test_observers_are_collected_in_order_and_reach_worker_and_reaper(builder, monkeypatch):
    first, second, seen = JobLifecycleObserver(), JobLifecycleObserver(), SimpleQueue()

    def look(*_, observers, **__):
        seen.put(list(observers))
        return LoopExit.SHUTDOWN

    monkeypatch.setattr(supervisor_module, "run_worker_loop", look)
    monkeypatch.setattr(supervisor_module, "run_reaper_loop", look)
    builder.with_registry(JobRegistry()).disable_scheduler()

    assert builder.with_job_lifecycle_observer(first) is builder
    builder.with_job_lifecycle_observer(second).build().join()

    assert [seen.get(timeout=10) for _ in range(2)] == [[first, second]] * 2


def test_an_observer_that_cannot_be_called_is_refused_at_once(builder):
    with pytest.raises(ValidationError) as caught:
        builder.with_job_lifecycle_observer("nobody")

    assert caught.value.code == "observer.invalid_observer"


@pytest.mark.parametrize("order", [1, -1])
def test_both_sources_of_handlers_are_refused_in_either_order(builder, order):
    steps = [
        lambda: builder.with_registry(JobRegistry()),
        lambda: builder.with_catalog(JobCatalog()),
    ]
    for step in steps[::order]:
        step()

    with pytest.raises(MixedRegistrySourcesError) as caught:
        without_loops(builder).build()

    assert caught.value.code == "supervisor.mixed_registry_sources"


@pytest.mark.parametrize("scheduler", [True, False])
@pytest.mark.parametrize(("worker", "reaper"), [(True, True), (True, False), (False, True)])
def test_missing_handlers_name_the_loops_that_need_them(builder, worker, reaper, scheduler):
    if not worker:
        builder.disable_worker()
    if not scheduler:
        builder.disable_scheduler()
    if not reaper:
        builder.disable_reaper()

    with pytest.raises(MissingRegistryError) as caught:
        builder.build()

    assert (caught.value.worker_enabled, caught.value.reaper_enabled) == (worker, reaper)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("worker_id", "config.empty_worker_id"),
        ("poll_interval_ms", "config.zero_poll_interval"),
        ("claim_batch_size", "config.invalid_claim_batch_size"),
        ("lease_ttl_seconds", "config.invalid_lease_ttl_seconds"),
        ("max_global_concurrency", "config.invalid_max_global_concurrency"),
        ("reaper_interval_seconds", "config.zero_reaper_interval"),
        ("schedule_poll_interval_seconds", "config.zero_schedule_poll_interval"),
        ("reaper_retry_delay_ms", "config.invalid_reaper_retry_delay_ms"),
    ],
)
def test_any_invalid_setting_is_refused_though_all_loops_are_off(pool, field, code):
    config = replace(CONFIG, **{field: "" if field == "worker_id" else 0})
    before = runledger_threads()

    with pytest.raises(InvalidJobsConfigError) as caught:
        without_loops(Supervisor.builder(pool, config)).build()

    assert caught.value.source.code == code
    assert caught.value.__cause__ is caught.value.source
    assert caught.value.task is None
    assert runledger_threads() == before


def test_settings_are_checked_before_sources_and_sources_before_handlers(pool):
    builder = (
        Supervisor.builder(pool, replace(CONFIG, claim_batch_size=0))
        .with_registry(JobRegistry())
        .with_catalog(JobCatalog())
    )
    with pytest.raises(InvalidJobsConfigError):
        builder.build()

    with pytest.raises(MixedRegistrySourcesError):
        Supervisor.builder(pool, CONFIG).with_catalog(JobCatalog()).with_registry(
            JobRegistry()
        ).build()


def test_a_scheduler_alone_needs_no_handlers(builder):
    supervisor = builder.disable_worker().disable_reaper().build()

    assert loop_names(supervisor) == ["scheduler"]
    supervisor.shutdown_with_timeout(30)


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("scheduler", [True, False])
@pytest.mark.parametrize("reaper", [True, False])
def test_only_enabled_loops_run_in_a_fixed_order(builder, worker, scheduler, reaper):
    builder.with_registry(JobRegistry())
    choices = {"worker": worker, "scheduler": scheduler, "reaper": reaper}
    for name, is_enabled in choices.items():
        if not is_enabled:
            getattr(builder, f"disable_{name}")()

    supervisor = builder.build()

    assert loop_names(supervisor) == [name for name, is_enabled in choices.items() if is_enabled]
    supervisor.shutdown_with_timeout(30)


def test_the_environment_gives_the_settings_by_default(pool, monkeypatch):
    monkeypatch.setenv("JOBS_WORKER_ID", "from-env")
    assert re.fullmatch(
        "from-env:[0-9a-f]{8}",
        without_loops(Supervisor.builder(pool)).build().worker_id,
    )

    monkeypatch.setenv("JOBS_POLL_INTERVAL_MS", "soon")
    with pytest.raises(JobsConfigError):
        Supervisor.builder(pool)


def test_something_else_is_no_pool():
    with pytest.raises(ValidationError) as caught:
        Supervisor.builder("postgresql://host/db", CONFIG)  # pyright: ignore[reportArgumentType]  # the mistake

    assert caught.value.code == "input.wrong_type"
    assert caught.value.field == "pool"


def test_each_supervisor_has_a_worker_id_of_its_own(builder, reaper):
    seen = []

    def look(pool, config, stop, **_):
        seen.append(config.worker_id)
        return LoopExit.SHUTDOWN

    first = reaper(look)
    first.join()
    second = builder.build()
    second.join()

    assert seen == [first.worker_id, second.worker_id]
    assert first.worker_id != second.worker_id
    assert re.fullmatch(r"test:[0-9a-f]{8}", first.worker_id)


def test_a_supervisor_freezes_its_catalog(builder):
    catalog = JobCatalog()

    supervisor = without_loops(builder.with_catalog(catalog)).build()

    assert catalog.frozen
    supervisor.join()


def test_a_supervisor_freezes_its_registry(builder):
    registry = JobRegistry()

    without_loops(builder.with_registry(registry)).build()

    with pytest.raises(ValidationError) as caught:
        registry.register_function("jobs.one", lambda context, payload: None)
    assert caught.value.code == "registry.frozen"


def test_a_build_that_is_refused_leaves_the_catalog_open(pool):
    catalog = JobCatalog()

    with pytest.raises(InvalidJobsConfigError):
        Supervisor.builder(pool, replace(CONFIG, claim_batch_size=0)).with_catalog(catalog).build()

    assert not catalog.frozen


def test_jobs_added_after_with_catalog_are_known(builder):
    catalog = JobCatalog()
    builder.with_catalog(catalog)
    catalog.job("jobs.late", lambda context, payload: None)

    assert builder._frozen_registry().registered_types() == ["jobs.late"]


def test_without_loops_everything_returns_at_once(idle):
    idle.join()
    idle.shutdown()
    idle.shutdown_with_timeout(0)


def test_without_loops_a_run_waits_for_its_source(idle):
    gate, is_waited_for = threading.Event(), threading.Event()

    def source():
        is_waited_for.set()
        gate.wait(60)

    run = threading.Thread(target=idle.run_until_shutdown, args=(source, 1), daemon=True)
    run.start()
    assert is_waited_for.wait(10)
    run.join(0.05)
    assert run.is_alive()
    gate.set()

    run.join(10)

    assert not run.is_alive()
    assert idle.is_shutdown_requested


def test_loops_that_have_just_begun_are_stopped_though_the_server_is_away(builder):
    # Real ones, and nobody listens at that address.
    catalog = JobCatalog().job("jobs.one", lambda context, payload: None)
    builder.with_catalog(catalog)

    for _ in range(20):
        supervisor = builder.build()
        supervisor.shutdown_with_timeout(30)

        assert [loop.state for loop in supervisor.health().loops] == [LoopState.STOPPED] * 3


def test_handles_share_their_state_and_a_request_before_join_is_honoured(reaper):
    supervisor = reaper(cooperative)
    one, other = supervisor.shutdown_handle(), supervisor.shutdown_handle()

    assert not one.is_shutdown_requested
    other.request_shutdown()

    assert one.is_shutdown_requested
    assert supervisor.is_shutdown_requested
    supervisor.join()


def test_a_request_before_the_loops_look_is_honoured(reaper):
    supervisor = reaper(run_reaper_loop)
    supervisor.request_shutdown()

    supervisor.run_until_shutdown(threading.Event(), 30)

    assert supervisor.health().loops[0].state is LoopState.STOPPED


def test_a_supervisor_runs_until_an_event_is_set(reaper):
    event = threading.Event()
    event.set()
    supervisor = reaper(cooperative)

    supervisor.run_until_shutdown(event, timeout=30)

    assert supervisor.is_shutdown_requested


def test_a_loop_that_fails_ends_the_supervisor(reaper):
    supervisor = reaper(failing)

    with pytest.raises(TaskFailedError) as caught:
        supervisor.run_until_shutdown(threading.Event(), timeout=30)

    assert caught.value.task == "reaper"
    assert supervisor.is_shutdown_requested
    assert not supervisor.health().is_healthy


def test_a_stuck_loop_is_named_after_the_deadline(reaper, release):
    def stuck(pool, config, stop, **_):
        release.wait(60)
        return LoopExit.SHUTDOWN

    supervisor = reaper(stuck)

    with pytest.raises(ShutdownTimeoutTooLargeError):
        supervisor.shutdown_with_timeout(float("inf"))
    assert not supervisor.is_shutdown_requested
    with pytest.raises(ShutdownTimeoutError) as caught:
        supervisor.shutdown_with_timeout(0.05)

    assert caught.value.tasks == ("reaper",)
    assert supervisor.health().loops[0].state is LoopState.ABANDONED


def test_a_thread_that_cannot_start_stops_those_that_did(builder, monkeypatch):
    start, stopped = threading.Thread.start, threading.Event()

    def refuse(thread):
        if thread.name == "runledger-reaper":
            raise RuntimeError("can't start new thread")
        start(thread)

    def tell(pool, registry, config, stop, **_):
        stop.wait(60)
        stopped.set()
        return LoopExit.SHUTDOWN

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(supervisor_module, "run_worker_loop", tell)

    with pytest.raises(TaskFailedError) as caught:
        builder.with_registry(JobRegistry()).build()

    assert caught.value.task == "reaper"
    assert stopped.wait(10)


def test_a_with_block_stops_the_loops(reaper):
    with reaper(cooperative) as supervisor:
        assert supervisor.health().loops == (LoopStatus("reaper", LoopState.RUNNING),)

    assert supervisor.health().loops == (LoopStatus("reaper", LoopState.STOPPED),)
    assert supervisor.health().is_shutdown_requested


def test_a_with_block_raises_the_failure_of_a_loop(reaper):
    with pytest.raises(TaskFailedError), reaper(failing):
        pass


def test_a_with_block_raises_a_failure_only_once(reaper):
    with pytest.raises(TaskFailedError), reaper(failing) as supervisor:
        supervisor.join()


def test_the_error_of_a_with_block_goes_before_that_of_a_loop(reaper, caplog):
    with pytest.raises(LookupError), reaper(failing):
        raise LookupError

    assert "the supervisor did not end well" in caplog.text


def test_health_tells_what_a_loop_reports(reaper):
    reported = threading.Event()

    def report(pool, config, stop, *, health, **_):
        health.failed(ZeroDivisionError())
        health.passed(backlog=4)
        reported.set()
        return cooperative(pool, config, stop)

    with reaper(report) as supervisor:
        assert reported.wait(10)
        (status,) = supervisor.health().loops

    assert status.backlog == 4
    assert status.last_error == "ZeroDivisionError"
    assert status.last_pass_at is not None


def test_a_dropped_supervisor_warns_and_asks_its_loops_to_stop(reaper, caplog):
    stopped = threading.Event()

    def tell(pool, config, stop, **_):
        stop.wait(60)
        stopped.set()
        return LoopExit.SHUTDOWN

    owner = [reaper(tell)]

    with pytest.warns(ResourceWarning, match="before its loops were joined"):
        drop(owner)

    assert stopped.wait(10)
    assert "a supervisor was dropped" in caplog.text


def test_a_joined_supervisor_is_dropped_in_silence(reaper):
    owner = [reaper(cooperative)]
    owner[0].shutdown()

    drop(owner)


def test_a_failure_that_nobody_saw_is_worth_the_warning(reaper):
    owner = [reaper(failing)]
    wait_until_failed(owner[0])

    with pytest.warns(ResourceWarning):
        drop(owner)


@pytest.mark.parametrize(
    "use",
    [
        lambda supervisor, handle: supervisor.join(),
        lambda supervisor, handle: supervisor.shutdown(),
        lambda supervisor, handle: supervisor.shutdown_with_timeout(0),
        lambda supervisor, handle: supervisor.run_until_shutdown(),
        lambda supervisor, handle: supervisor.request_shutdown(),
        lambda supervisor, handle: supervisor.is_shutdown_requested,
        lambda supervisor, handle: supervisor.shutdown_handle(),
        lambda supervisor, handle: supervisor.health(),
        lambda supervisor, handle: handle.request_shutdown(),
        lambda supervisor, handle: handle.is_shutdown_requested,
    ],
)
def test_a_child_process_is_refused(idle, monkeypatch, use):
    handle = idle.shutdown_handle()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)

    with pytest.raises(ForkedSupervisorError) as caught:
        use(idle, handle)

    assert caught.value.code == "supervisor.forked"


def test_a_pool_of_the_parent_process_is_refused(builder, pool, monkeypatch):
    require_own_pool(pool)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)

    with pytest.raises(ValidationError) as caught:
        builder.build()

    assert caught.value.code == "db.forked"


def test_a_child_process_may_leave_the_block_and_drop_the_supervisor(reaper, monkeypatch):
    supervisor = reaper(cooperative)
    own, child = os.getpid, os.getpid() + 1

    monkeypatch.setattr(os, "getpid", lambda: child)
    with supervisor:
        pass
    monkeypatch.setattr(os, "getpid", own)

    assert not supervisor.is_shutdown_requested
    supervisor.shutdown()
