"""How the parent of worker processes passes signals on, tells of an end, and pauses."""

import os
import signal
import subprocess
from contextlib import suppress

import pytest

from runledger_runtime.cli._processes import _ending, _pass_on, _pause_seconds


def test_pause_doubles_to_half_a_minute_and_stays_there_for_weeks():
    pauses = [_pause_seconds(failures) for failures in (0, 1, 2, 3, 4, 5, 6, 100_000)]

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(
    ("status", "text"),
    [(3, "ended with code 3"), (-9, "was ended by SIGKILL"), (-40, "was ended by signal 40")],
)
def test_end_is_told_by_code_or_signal_also_by_one_without_a_name(status: int, text: str):
    assert _ending(status) == text


def test_signal_is_passed_on_to_a_worker_that_has_not_read_those_before():
    process = subprocess.Popen(["/bin/sleep", "60"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    pipe = process.stdin.fileno()
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    os.set_blocking(pipe, True)

    _pass_on(process)

    assert process.wait(10) == -signal.SIGTERM
    process.stdin.close()


def test_signal_is_passed_on_though_a_worker_has_just_ended():
    process = subprocess.Popen(["/bin/true"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    _pass_on(process)

    assert process.wait(10) == 0
    process.stdin.close()
