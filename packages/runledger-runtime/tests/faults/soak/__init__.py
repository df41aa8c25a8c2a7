"""A soak: load with faults, and an account of every job afterwards.

Producers enqueue and write down what was acknowledged, two workers run handlers that write down
what they did, a third process reaps, and the test breaks things. `run` is the whole of it from
start to account; `programs` are the processes, `referee` counts, `ledger` and `lookout` are what
it counts from.
"""
