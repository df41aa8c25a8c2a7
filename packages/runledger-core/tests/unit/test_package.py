import ast
import importlib.metadata
import pkgutil
import sys
from pathlib import Path

import pytest

import runledger_core
import runledger_core.jobs
import runledger_core.workflows

PACKAGE = Path(runledger_core.__file__).parent


@pytest.mark.parametrize("face", [runledger_core, runledger_core.jobs, runledger_core.workflows])
def test_public_names_are_sorted_and_exist(face):
    assert face.__all__ == sorted(set(face.__all__))
    assert all(hasattr(face, name) for name in face.__all__)


def test_jobs_are_public_at_the_top_too():
    assert set(runledger_core.jobs.__all__) <= set(runledger_core.__all__)


def test_workflows_are_public_at_the_top_too_but_for_what_only_storage_needs():
    inside = set(runledger_core.workflows.__all__) - set(runledger_core.__all__)

    assert inside == {
        "DOOMED_CODE",
        "WorkflowBlockedStep",
        "WorkflowCascade",
        "WorkflowRunCounters",
        "WorkflowSettledStep",
        "WorkflowStepCounters",
        "WorkflowStepEdge",
        "WorkflowStepVerdict",
        "outside_prerequisites",
        "run_status",
        "settle_dependents",
    }


def test_version_is_that_of_the_distribution():
    assert runledger_core.__version__ == importlib.metadata.version("runledger-core")


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_only_the_standard_library_is_imported_at_run_time():
    allowed = {*sys.stdlib_module_names, "runledger_core"}
    for module in pkgutil.walk_packages([str(PACKAGE)], "runledger_core."):
        source = module.module_finder.find_spec(module.name, None)
        assert source is not None
        assert source.origin is not None
        tree = ast.parse(Path(source.origin).read_text(encoding="utf-8"))
        assert imported(tree) <= allowed, module.name


def imported(tree):
    names = set()
    for node in tree.body:
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(module)):
                names.add(module.partition(".")[0])
            case _:
                pass
    return names
