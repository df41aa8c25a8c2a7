"""Telemetry with the libraries of others: each module needs an extra of this distribution.

`runledger_runtime.telemetry.otel` needs `[otel]`, `runledger_runtime.telemetry.prometheus` needs
`[prometheus]`; importing one without its extra says what to install.
"""
