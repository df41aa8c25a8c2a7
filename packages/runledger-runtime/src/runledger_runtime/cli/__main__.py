"""`python -m runledger_runtime.cli` is `runledger`; the processes of a worker are started so."""

from ._main import main

main()
