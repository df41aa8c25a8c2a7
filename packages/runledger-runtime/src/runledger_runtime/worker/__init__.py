"""The worker loop: claims jobs, runs their handlers, stores what they return."""

from ._loop import run_worker_loop

__all__ = ["run_worker_loop"]
