"""Waiting for the end of a task."""

from runledger_runtime.health import LoopState


def wait_until_ended(group, name):
    # A group says nothing by itself; a second waiter sees each task end.
    with group._inbox() as inbox:
        while group.states[name] is LoopState.RUNNING:
            inbox.get(timeout=10)
