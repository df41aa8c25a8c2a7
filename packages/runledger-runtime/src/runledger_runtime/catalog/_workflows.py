"""Workflows of a catalog's jobs, whose types it checks while a graph is written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from runledger_core import UNSET, JsonInput, Unset
from runledger_core.workflows import (
    WorkflowDagBuilder,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
)

from ._entries import CatalogEntries


class CatalogWorkflowDagBuilder(WorkflowDagBuilder):
    """Build a run as `WorkflowDagBuilder` does, of jobs that a catalog has and enables.

    `JobCatalog.workflow_dag` makes it. The database is not asked: a definition that an operator
    disabled is refused when the run is enqueued.
    """

    def __init__(
        self,
        workflow_type: str,
        metadata: JsonInput | Unset = UNSET,
        *,
        catalog: CatalogEntries | None = None,
    ) -> None:
        """Begin a run; a blank type is refused by `build`.

        Args:
            workflow_type: Kind of workflow.
            metadata: What the run is about; an empty object if left out.
            catalog: Knows the job types; None for one without jobs, which allows gates alone.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        super().__init__(workflow_type, metadata)
        self._catalog = CatalogEntries() if catalog is None else catalog

    def job(
        self,
        step_key: str,
        job_type: str,
        payload: JsonInput,
        *,
        after_success: Iterable[str] = (),
        after_terminal: Iterable[str] = (),
    ) -> Self:
        """Add a step that makes a job, as `WorkflowDagBuilder.job` does.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
            WorkflowBuildError: As `WorkflowDagBuilder.job`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        known = self._catalog.require_catalog_enabled_job_type(job_type)
        return super().job(
            step_key, known, payload, after_success=after_success, after_terminal=after_terminal
        )

    def step(self, step: WorkflowStepEnqueue) -> Self:
        """Add a step that is built already, as `WorkflowDagBuilder.step` does.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
            DuplicateStepKeyError: `workflow.invalid_dag_duplicate_step_key`.
        """
        # A gate has none; what is no step at all is refused below.
        job_type: object = getattr(step, "job_type", None)
        if isinstance(job_type, str):
            self._catalog.require_catalog_enabled_job_type(job_type)
        return super().step(step)


class CatalogWorkflows(CatalogEntries):
    """A catalog that begins workflows."""

    def workflow_dag(
        self, workflow_type: str, metadata: JsonInput | Unset = UNSET
    ) -> CatalogWorkflowDagBuilder:
        """Begin a run of this catalog's jobs.

        Args:
            workflow_type: Kind of workflow; a blank one is refused by `build`.
            metadata: What the run is about; an empty object if left out.

        Raises:
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        return CatalogWorkflowDagBuilder(workflow_type, metadata, catalog=self)

    def workflow_step(
        self, step_key: str, job_type: str, payload: JsonInput | Unset = UNSET
    ) -> WorkflowStepEnqueueBuilder:
        """Begin a step with settings of its own, whose job the catalog has and enables.

        Args:
            step_key: Name of the step within its run; a blank one is refused by `build`.
            job_type: Type of its job.
            payload: What the handler receives; an empty object if left out.

        Raises:
            CatalogError: `catalog.unknown_job_type` or `catalog.disabled_job_type`.
            ValidationError: An `input.*` code that names the field or the JSON path.
        """
        known = self.require_catalog_enabled_job_type(job_type)
        return WorkflowStepEnqueueBuilder(step_key, known, payload)
