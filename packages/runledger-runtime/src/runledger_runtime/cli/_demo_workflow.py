"""The workflow of the demo: a campaign that fans out, waits for an approval, and is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from psycopg_pool import ConnectionPool

from runledger_core import JsonValue, RunledgerError, Scope
from runledger_core.workflows import (
    WorkflowDagBuilder,
    WorkflowExternalCompletion,
    WorkflowStepStatus,
)
from runledger_postgres import (
    WorkflowRunWaitOptions,
    WorkflowStepSummary,
    cancel_workflow_run,
    complete_external_workflow_step,
    enqueue_workflow_run,
    list_workflow_steps,
    workflow_run_handle,
)

from ._demo_catalog import PLAN, PUBLISH, RENDER

EXPECTED_RESULT: Final[JsonValue] = {"approved_by": "ops", "variants": 12}
STEPS: Final = 6

_REGIONS: Final = ("north", "south", "west")
_TYPE: Final = "campaign.launch"
_GATE: Final = "approval"


class Campaign:
    """One run: a plan, a rendering for each region, a gate, and what is published behind all."""

    def __init__(
        self, pool: ConnectionPool[Any], scope: Scope, tell: Callable[[str], None]
    ) -> None:
        """Prepare; nothing is enqueued yet."""
        self._pool = pool
        self._scope = scope
        self._tell = tell
        self._labels: dict[UUID, str] = {}
        self.run_id: UUID | None = None

    def enqueue(self, organization_id: UUID) -> bool:
        """Enqueue the run; a scene."""
        renderings = [f"render {region}" for region in _REGIONS]
        dag = WorkflowDagBuilder(_TYPE, {"season": "summer"}).organization_id(organization_id)
        dag.job("plan", PLAN, {"regions": list(_REGIONS)})
        for region, key in zip(_REGIONS, renderings, strict=True):
            payload: JsonValue = {"region": region, "fonts_missing": int(region == "west")}
            dag.job(key, RENDER, payload, after_success=["plan"])
        dag.external(_GATE, {"ask": "marketing"}, after_success=renderings)
        dag.job("publish", PUBLISH, {}, after_success=[*renderings, _GATE]).result_step("publish")
        self.run_id = enqueue_workflow_run(self._pool, dag.build()).id
        self._tell(
            f"enqueued a workflow of {STEPS} steps: plan, {len(_REGIONS)} renderings at once,"
            " an approval, publish"
        )
        return True

    def approve(self) -> bool:
        """Complete the gate once it is open; a scene that is played until then."""
        steps = self._steps()
        gate = next((step for step in steps if step.step_key == _GATE), None)
        if self.run_id is None or gate is None or gate.status.is_terminal:
            return True
        if gate.status is not WorkflowStepStatus.WAITING_FOR_EXTERNAL:
            return False
        complete_external_workflow_step(
            self._pool,
            self.run_id,
            _GATE,
            WorkflowExternalCompletion.succeeded({"by": "ops"}),
            scope=self._scope,
        )
        self._tell("the approval came in: the gate lets the last step go")
        return True

    def label(self, job_id: UUID) -> str | None:
        """Return what to call the job of a step; None if it is no job of this run."""
        if job_id not in self._labels:
            self._labels = {
                step.job_id: f"campaign, {step.step_key}"
                for step in self._steps()
                if step.job_id is not None
            }
        return self._labels.get(job_id)

    def cancel(self) -> None:
        """Cancel what has not ended: the show was broken off."""
        if self.run_id is not None:
            cancel_workflow_run(
                self._pool, self.run_id, scope=self._scope, reason="demo broken off"
            )

    def result(self) -> JsonValue:
        """Return the result; None if there is none."""
        if self.run_id is None:
            return None
        handle = workflow_run_handle(self._pool, self._scope, self.run_id)
        try:
            return handle.get_result(WorkflowRunWaitOptions(timeout=0)).result
        except RunledgerError:
            return None

    def _steps(self) -> list[WorkflowStepSummary]:
        if self.run_id is None:
            return []
        return list_workflow_steps(self._pool, self.run_id, scope=self._scope)
