from __future__ import annotations

from enum import StrEnum

import pytest

import runledger_core
from runledger_postgres import errors
from runledger_test_support import TemporaryDatabase

ENUMS = {
    "job_status": "JobStatus",
    "job_event_type": "JobEventType",
    "job_failure_kind": "JobFailureKind",
    "job_outcome": "JobOutcome",
    "workflow_run_status": "WorkflowRunStatus",
    "workflow_step_status": "WorkflowStepStatus",
    "workflow_dependency_release_mode": "WorkflowDependencyReleaseMode",
    "workflow_step_execution_kind": "WorkflowStepExecutionKind",
}

LABELS = """
SELECT t.typname, array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
FROM pg_catalog.pg_type AS t
JOIN pg_catalog.pg_enum AS e ON e.enumtypid = t.oid
WHERE t.typnamespace = 'runledger'::regnamespace
GROUP BY t.typname
"""

# Unique indexes count: PostgreSQL reports their names as constraints.
CONSTRAINT_NAMES = """
SELECT c.conname::text FROM pg_catalog.pg_constraint AS c
WHERE c.connamespace = 'runledger'::regnamespace
UNION
SELECT i.indexrelid::regclass::text FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = 'runledger'::regnamespace AND i.indisunique
"""


@pytest.mark.core
def test_enums_have_the_labels_of_the_database(runledger_database: TemporaryDatabase):
    labels = dict(runledger_database.connect().execute(LABELS).fetchall())

    assert labels.keys() == ENUMS.keys()
    for type_name, class_name in ENUMS.items():
        members: type[StrEnum] | None = getattr(runledger_core, class_name, None)
        # Those of workflows are part of core when core knows workflows.
        if members is None and type_name.startswith("workflow_"):
            continue
        assert members is not None, class_name
        assert [member.value for member in members] == labels[type_name], class_name


def test_constraints_with_a_code_exist(runledger_database: TemporaryDatabase):
    connection = runledger_database.connect()
    connection.execute("SET search_path = runledger")
    existing = {name for (name,) in connection.execute(CONSTRAINT_NAMES).fetchall()}

    assert set(errors._CONSTRAINTS) - existing == set()


def test_ids_of_the_host_have_no_foreign_keys(runledger_database: TemporaryDatabase):
    constrained = runledger_database.connect().execute(
        """
        SELECT c.conname::text FROM pg_catalog.pg_constraint AS c
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
        WHERE c.connamespace = 'runledger'::regnamespace AND c.contype = 'f'
            AND a.attname IN ('organization_id', 'created_by_user_id', 'updated_by_user_id')
        """
    )

    assert constrained.fetchall() == []
