"""The plans of what a connection runs, as the product sends it: parameters, types and pipeline."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import psycopg

from .plan_reader import Plan


class PlanMode(StrEnum):
    """How the server plans a statement with parameters."""

    CUSTOM = "force_custom_plan"
    GENERIC = "force_generic_plan"


class PlanRecorder:
    """Has auto_explain send each executed plan as a notice; needs a superuser's connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._plans: list[Plan] = []
        for setting in (
            "LOAD 'auto_explain'",
            "SET auto_explain.log_level = 'notice'",
            "SET auto_explain.log_format = 'json'",
            "SET auto_explain.log_analyze = on",
            "SET auto_explain.log_buffers = on",
            "SET auto_explain.log_timing = off",
            "SET auto_explain.log_min_duration = -1",
        ):
            connection.execute(setting)
        connection.add_notice_handler(self._take)

    def _take(self, notice: psycopg.errors.Diagnostic) -> None:
        _, found, printed = (notice.message_primary or "").partition("plan:\n")
        if found:
            self._plans.append(Plan(json.loads(printed)))

    @contextmanager
    def recording(self, mode: PlanMode) -> Generator[list[Plan]]:
        """Collect the plans of a block in the order of their statements."""
        self.connection.execute(f"SET plan_cache_mode = {mode}".encode())
        self.connection.execute("SET auto_explain.log_min_duration = 0")
        self._plans = []
        yield self._plans
        self.connection.execute("SET auto_explain.log_min_duration = -1")
