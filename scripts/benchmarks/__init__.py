"""Parts of the benchmark: what is measured, by which processes, and how it is told.

`model` says what a figure is, `catalogue` which there are; `runner` lets contenders take turns on
`server`; `process` starts a `client` for each, which runs a workload of `by_hand` or `ours`;
`report` prints. To add a figure, add a `Figure` to `catalogue`.
"""
