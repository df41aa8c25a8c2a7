"""Real signals to real processes; no server is needed, the reaper waits for one that is away."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

PRELUDE = """
import logging, os, signal, sys, threading
from psycopg_pool import ConnectionPool
from runledger_runtime import supervisor as module
from runledger_runtime.catalog import JobCatalog
from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import LoopExit, ShutdownAbortedError
from runledger_runtime.stop_signals import StopSignals
from runledger_runtime.supervisor import Supervisor

logging.getLogger("runledger_runtime.reaper").addHandler(logging.NullHandler())

def say(text):
    # One write, as several threads speak.
    os.write(1, f"{text}\\n".encode())

def say_when_handled():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        threading.Event().wait(0.001)
    say("ready")

def stubborn(pool, config, stop, **_):
    stop.wait()
    say("draining")
    threading.Event().wait()

def tellable(pool, config, stop, **_):
    aborted = threading.Event()
    stop.add_abort_callback(aborted.set)
    stop.wait()
    say("draining")
    aborted.wait()
    say("told")
    return LoopExit.SHUTDOWN

def build():
    pool = ConnectionPool("postgresql://postgres@127.0.0.1:1/nothing", open=False)
    builder = Supervisor.builder(pool, JobsConfig("test")).with_catalog(JobCatalog())
    return builder.disable_worker().disable_scheduler().build()

threading.Thread(target=say_when_handled, daemon=True).start()
"""


@contextmanager
def program(text):
    process = subprocess.Popen(  # our own text
        [sys.executable, "-c", PRELUDE + textwrap.dedent(text)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process):
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.endswith("\n"), process.communicate()
    return line.removesuffix("\n")


def tell(process, line):
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def expect(process, line):
    assert heard(process) == line


def end(process):
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_stops_the_loops_and_the_process_ends_well(number):
    with program("build().run_until_shutdown(); say('ended')") as process:
        expect(process, "ready")

        process.send_signal(number)

        assert end(process) == (0, "ended\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_previous_handlers_are_put_back(number):
    text = """
    def leave(number, frame):
        sys.exit(3)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    supervisor = build()
    supervisor.request_shutdown()
    supervisor.run_until_shutdown()
    say("ended")
    sys.stdin.readline()
    """
    with program(text) as process:
        assert "ended" in {heard(process), heard(process)}

        process.send_signal(number)

        assert end(process) == (3, "", "")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
    ],
)
def test_a_second_signal_ends_the_process_at_once_with_an_error(first, second):
    text = """
    module.run_reaper_loop = stubborn
    build().run_until_shutdown(timeout=3600)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(first)
        expect(process, "draining")

        process.send_signal(second)

        returncode, output, errors = end(process)
    assert returncode == 1
    assert output == ""
    assert "supervisor.shutdown_aborted: a second signal ended the wait for: reaper" in errors


@pytest.mark.parametrize("third", [signal.SIGTERM, signal.SIGINT])
def test_a_third_signal_does_not_disturb_the_exit(third):
    text = """
    module.run_reaper_loop = stubborn
    try:
        build().run_until_shutdown(timeout=3600)
    except ShutdownAbortedError as error:
        say(error.tasks)
        say(sys.stdin.readline().strip())
        sys.exit(70)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(signal.SIGTERM)
        expect(process, "draining")
        process.send_signal(signal.SIGTERM)
        expect(process, "('reaper',)")

        process.send_signal(third)
        tell(process, "cleaned up")

        assert end(process) == (70, "cleaned up\n", "")


def test_a_second_signal_tells_what_still_runs_before_the_process_ends():
    text = """
    module.run_reaper_loop = tellable
    try:
        build().run_until_shutdown(timeout=3600)
    except ShutdownAbortedError as error:
        say(error.tasks)
        sys.exit(70)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(signal.SIGTERM)
        expect(process, "draining")

        process.send_signal(signal.SIGTERM)

        assert end(process) == (70, "told\n('reaper',)\n", "")


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM, signal.SIGINT),
    ],
)
def test_three_signals_at_once_end_the_process_as_two_do(numbers):
    text = """
    module.run_reaper_loop = stubborn
    build().run_until_shutdown(timeout=3600)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(numbers[0])
        expect(process, "draining")

        process.send_signal(numbers[1])
        process.send_signal(numbers[2])

        returncode, output, errors = end(process)
    assert returncode == 1
    assert output == ""
    assert "supervisor.shutdown_aborted: a second signal ended the wait for: reaper" in errors


@pytest.mark.parametrize("third", [signal.SIGTERM, signal.SIGINT])
def test_a_third_signal_leaves_handlers_the_moment_that_the_second_gave_them(third):
    text = """
    from runledger_runtime import task_group
    task_group._UNWIND_SECONDS = 60.0

    def giving_back(*arguments, **options):
        tellable(*arguments, **options)
        say(sys.stdin.readline().strip())
        return LoopExit.SHUTDOWN

    class Heard(StopSignals):
        def _handle(self, *arguments):
            super()._handle(*arguments)
            say("heard")

    module.run_reaper_loop = giving_back
    try:
        build().run_until_shutdown(Heard(), timeout=3600)
    except ShutdownAbortedError as error:
        say(error.tasks)
        sys.exit(70)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(signal.SIGTERM)
        assert {heard(process), heard(process)} == {"heard", "draining"}
        process.send_signal(signal.SIGTERM)
        assert {heard(process), heard(process)} == {"heard", "told"}

        process.send_signal(third)
        expect(process, "heard")
        tell(process, "given back")

        assert end(process) == (70, "given back\n('reaper',)\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_run_stops_the_loops_and_the_process_ends_well(number):
    text = f"""
    with StopSignals() as signals:
        signal.raise_signal({number:d})
        supervisor = build()
        supervisor.run_until_shutdown(signals)
    say("ended")
    """
    with program(text) as process:
        code, output, errors = end(process)

    assert (code, output.split()[-1], errors) == (0, "ended", "")


def test_a_signal_before_the_run_is_the_first_of_two():
    text = """
    module.run_reaper_loop = stubborn
    with StopSignals() as signals:
        supervisor = build()
        signal.raise_signal(signal.SIGTERM)
        supervisor.run_until_shutdown(signals, timeout=600)
    """
    with program(text) as process:
        assert {heard(process), heard(process)} == {"ready", "draining"}

        process.send_signal(signal.SIGTERM)

        code, _, errors = end(process)
    assert code == 1
    assert "supervisor.shutdown_aborted" in errors


def test_the_process_ends_after_the_deadline_though_a_loop_is_stuck():
    text = """
    module.run_reaper_loop = stubborn
    build().run_until_shutdown(timeout=0.05)
    """
    with program(text) as process:
        expect(process, "ready")
        process.send_signal(signal.SIGTERM)

        returncode, _, errors = end(process)
    assert returncode == 1
    assert "supervisor.shutdown_timeout: still running after 0.05 s: reaper" in errors


def test_a_request_to_stop_before_the_run_is_not_lost():
    text = """
    supervisor = build()
    supervisor.request_shutdown()
    supervisor.run_until_shutdown()
    sys.exit(5)
    """
    with program(text) as process:
        returncode, _, errors = end(process)

    assert (returncode, errors) == (5, "")


def test_signals_are_refused_outside_the_main_thread():
    text = """
    from runledger_runtime.errors import SignalsUnavailableError

    def run(supervisor):
        try:
            supervisor.run_until_shutdown()
        except SignalsUnavailableError as error:
            say(error)

    with build() as supervisor:
        thread = threading.Thread(target=run, args=[supervisor])
        thread.start()
        thread.join()
    """
    with program(text) as process:
        returncode, output, _ = end(process)

    assert returncode == 0
    assert output == (
        "supervisor.signals_unavailable: outside the main thread pass `stop`: an Event or a"
        " function that blocks\n"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_dies_of_a_signal_and_is_refused_by_the_supervisor():
    text = """
    from runledger_runtime.errors import ForkedSupervisorError

    supervisor = build()

    def fork():
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            threading.Event().wait(0.001)
        child = os.fork()
        if child == 0:
            try:
                supervisor.request_shutdown()
            except ForkedSupervisorError as error:
                say(error.code)
            signal.pause()
            os._exit(0)
        say(child)
        _, status = os.waitpid(child, 0)
        say(os.WTERMSIG(status))
        supervisor.request_shutdown()

    threading.Thread(target=fork).start()
    supervisor.run_until_shutdown()
    """
    with program(text) as process:
        lines = {heard(process) for _ in range(3)}
        assert {"ready", "supervisor.forked"} < lines
        (child,) = lines - {"ready", "supervisor.forked"}

        os.kill(int(child), signal.SIGTERM)

        assert end(process)[:2] == (0, "15\n")


def test_a_program_that_forgets_its_supervisor_still_ends():
    text = """
    module.run_reaper_loop = stubborn
    supervisor = build()
    """
    with program(text) as process:
        returncode, _, errors = end(process)

    assert returncode == 0
    assert "a supervisor was dropped before its loops were joined" in errors
