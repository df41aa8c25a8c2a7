"""A loop that makes passes, and what it reports meanwhile."""

from contextlib import contextmanager
from queue import SimpleQueue

from runledger_runtime.config import JobsConfig
from runledger_runtime.errors import LoopExit
from runledger_runtime.health import LoopHealth, LoopState

from ._running_loop import WAIT_SECONDS, RunningLoop

RARELY = JobsConfig("test", reaper_interval_seconds=3_600, schedule_poll_interval_seconds=3_600)


class WatchedHealth(LoopHealth):
    """Lets a test wait for passes and errors."""

    def __init__(self, name):
        super().__init__(name)
        self.passes = SimpleQueue()
        self.errors = SimpleQueue()

    def passed(self, *, backlog=None):
        super().passed(backlog=backlog)
        self.passes.put(backlog)

    def failed(self, error):
        super().failed(error)
        self.errors.put(error)


class WatchedLoop(RunningLoop):
    """The function of a loop, to be run for a block."""

    def __init__(self, name, run, *, stop=None):
        super().__init__()
        self.name = name
        self.health = WatchedHealth(name)
        self.stop = stop or self.stop
        self._run = run

    @contextmanager
    def running(self, pool, config=RARELY):
        self.start(lambda: self._run(pool, config, self.stop, health=self.health))
        try:
            yield self
        finally:
            assert self.end() is LoopExit.SHUTDOWN

    def next_pass(self):
        return self.health.passes.get(timeout=WAIT_SECONDS)

    def next_error(self):
        return self.health.errors.get(timeout=WAIT_SECONDS)

    @property
    def status(self):
        return self.health.status(LoopState.RUNNING)
