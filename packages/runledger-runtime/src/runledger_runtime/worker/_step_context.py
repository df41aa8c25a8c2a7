"""What a context tells of the step that its job is: read when a handler asks for it, and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from runledger_core import JsonValue, StepKey
from runledger_postgres.workflows import WorkflowStepInputs, get_step_inputs, get_step_key

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class StepContext:
    """The step that a job is."""

    # A claim does not bring the key: every claim, of direct jobs too, would open the table of
    # steps and its index for it, while most handlers never ask.

    def __init__(
        self, job_id: UUID, pool: ConnectionPool[Any], *, refuse: Callable[[], None]
    ) -> None:
        """Read nothing yet.

        Args:
            refuse: Raises where the database must not be asked.
        """
        self._job_id = job_id
        self._pool = pool
        self._refuse = refuse
        self._key: StepKey | None = None
        self._inputs: WorkflowStepInputs | None = None

    @property
    def step_key(self) -> StepKey:
        """The key of the step; see `JobContext.step_key`."""
        # Read alone: outputs may be large, or unreadable, and are none of its business.
        key = self._key
        if key is None:
            self._refuse()
            # Two threads of a handler may both come here; they read the same.
            key = self._key = get_step_key(self._pool, self._job_id)
        return key

    @property
    def prerequisite_outputs(self) -> Mapping[str, JsonValue]:
        """What the steps before it gave; see `JobContext.prerequisite_outputs`."""
        inputs = self._inputs
        if inputs is None:
            self._refuse()
            inputs = self._inputs = get_step_inputs(self._pool, self._job_id)
            self._key = inputs.step_key
        return inputs.prerequisite_outputs
