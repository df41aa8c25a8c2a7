"""The worker loop: claims jobs, runs their handlers, stores what they return."""

from ._loop import run_worker_loop
from ._refused_claims import MOST_LEFT_OUT

__all__ = ["MOST_LEFT_OUT", "run_worker_loop"]
