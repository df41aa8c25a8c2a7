"""A process that can open no more files, for a moment."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

# What is open stays so, and below this everything is.
_ALWAYS_OPEN = 3


@contextmanager
def no_descriptor_to_be_had() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_ALWAYS_OPEN, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
