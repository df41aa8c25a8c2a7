"""Every error of the builders has its class, its code, and the moment at which it appears."""

import pickle
import re
from pathlib import Path
from uuid import UUID

import pytest

import runledger_core
from runledger_core import (
    ValidationError,
    WorkflowBuildError,
    WorkflowDagBuilder,
    WorkflowRunEnqueueBuilder,
    WorkflowStepDependencySpec,
    WorkflowStepEnqueue,
    WorkflowStepEnqueueBuilder,
    WorkflowStepExecutionKind,
    WorkflowStepsAppend,
)
from runledger_core.workflows import spec as spec_module
from runledger_core.workflows import validation as validation_module

PAGE = Path(__file__).resolve().parents[5] / "docs/reference/core.md"

CODES = {
    "BlankDependencyStepKeyError": "workflow.invalid_dag_dependency_step_key_blank",
    "BlankIdempotencyKeyError": "workflow.invalid_dag_idempotency_key_blank",
    "BlankMutationKeyError": "workflow.append_mutation_key_blank",
    "BlankResultStepKeyError": "workflow.invalid_dag_result_step_key_blank",
    "BlankStepJobTypeError": "workflow.invalid_dag_job_type_blank",
    "BlankStepKeyError": "workflow.invalid_dag_step_key_blank",
    "BlankWorkflowTypeError": "workflow.invalid_dag_workflow_type_blank",
    "CycleDetectedError": "workflow.invalid_dag_cycle",
    "DependencyCountOverflowError": "workflow.invalid_dag_dependency_count_overflow",
    "DuplicateDependencyError": "workflow.invalid_dag_duplicate_dependency",
    "DuplicateStepKeyError": "workflow.invalid_dag_duplicate_step_key",
    "EmptyStepsError": "workflow.invalid_dag_empty",
    "ExternalStepJobTypeNotAllowedError": (
        "workflow.invalid_dag_external_step_job_type_not_allowed"
    ),
    "ExternalStepQueueSettingsNotAllowedError": (
        "workflow.invalid_dag_external_step_queue_settings_not_allowed"
    ),
    "GraphTooLargeError": "workflow.invalid_dag_too_large",
    "MissingDependencyError": "workflow.invalid_dag_missing_dependency",
    "NonPositiveStepMaxAttemptsError": "workflow.invalid_dag_step_max_attempts_non_positive",
    "NonPositiveStepTimeoutSecondsError": (
        "workflow.invalid_dag_step_timeout_seconds_non_positive"
    ),
    "SelfDependencyError": "workflow.invalid_dag_self_dependency",
    "UnknownResultStepKeyError": "workflow.invalid_dag_unknown_result_step_key",
    "UnknownStepKeyError": "workflow.invalid_dag_unknown_step_key",
}


def dag():
    return WorkflowDagBuilder("a").job("crawl", "a", {})


def run():
    return WorkflowRunEnqueueBuilder("a").step(WorkflowStepEnqueue("crawl", "a"))


def step():
    return WorkflowStepEnqueueBuilder("score", "a")


def plain(key, *prerequisites):
    return WorkflowStepEnqueueBuilder(key, "a").depends_on_success(prerequisites).build()


def typed_gate():
    return WorkflowStepEnqueue("gate", "a", execution_kind=WorkflowStepExecutionKind.EXTERNAL)


def append(mutation_key="m", *steps):
    return WorkflowStepsAppend(
        UUID(int=1), mutation_key, append_window_step_key="gate", steps=steps or [plain("a")]
    )


# A call that fails at once.
AT_ONCE = [
    ("BlankWorkflowTypeError", lambda: WorkflowDagBuilder.try_new("")),
    ("BlankWorkflowTypeError", lambda: WorkflowRunEnqueueBuilder.try_new("")),
    ("BlankStepKeyError", lambda: dag().job("", "a", {})),
    ("BlankStepKeyError", lambda: dag().external("")),
    ("BlankStepKeyError", lambda: dag().after_success("", ["crawl"])),
    ("BlankStepKeyError", lambda: dag().after_terminal("", ["crawl"])),
    ("BlankStepKeyError", lambda: WorkflowStepEnqueueBuilder.try_new("", "a")),
    ("BlankStepKeyError", lambda: WorkflowStepEnqueueBuilder.try_new_external("")),
    ("BlankStepJobTypeError", lambda: dag().job("score", "", {})),
    ("BlankStepJobTypeError", lambda: WorkflowStepEnqueueBuilder.try_new("score", "")),
    ("DuplicateStepKeyError", lambda: dag().job("crawl", "a", {})),
    ("DuplicateStepKeyError", lambda: dag().external("crawl")),
    ("DuplicateStepKeyError", lambda: dag().step(plain("crawl"))),
    ("UnknownStepKeyError", lambda: dag().after_success("score", ["crawl"])),
    ("UnknownStepKeyError", lambda: dag().after_terminal("score", ["crawl"])),
    ("BlankDependencyStepKeyError", lambda: dag().after_success("crawl", [""])),
    ("BlankDependencyStepKeyError", lambda: dag().after_terminal("crawl", [""])),
    ("BlankDependencyStepKeyError", lambda: dag().job("b", "a", {}, after_success=[""])),
    ("BlankDependencyStepKeyError", lambda: dag().external("b", after_terminal=[""])),
    ("BlankDependencyStepKeyError", lambda: WorkflowStepDependencySpec("")),
    ("BlankResultStepKeyError", lambda: dag().result_step("")),
    ("BlankResultStepKeyError", lambda: run().try_result_step_key("")),
    ("BlankMutationKeyError", lambda: append(" ")),
    ("ExternalStepJobTypeNotAllowedError", typed_gate),
]

# A builder that is made without an error, and fails when it builds.
WHEN_BUILT = [
    ("BlankWorkflowTypeError", lambda: WorkflowDagBuilder(" ").job("a", "a", {})),
    ("BlankWorkflowTypeError", lambda: WorkflowRunEnqueueBuilder(" ").step(plain("a"))),
    ("EmptyStepsError", lambda: WorkflowDagBuilder("a")),
    ("EmptyStepsError", lambda: WorkflowRunEnqueueBuilder("a")),
    ("BlankStepKeyError", lambda: WorkflowStepEnqueueBuilder(" ", "a")),
    ("BlankStepKeyError", lambda: WorkflowStepEnqueueBuilder.new_external(" ")),
    ("BlankStepJobTypeError", lambda: WorkflowStepEnqueueBuilder("a", " ")),
    ("DuplicateStepKeyError", lambda: run().step(plain("crawl"))),
    ("BlankDependencyStepKeyError", lambda: step().depends_on_success([""])),
    ("BlankDependencyStepKeyError", lambda: step().depends_on_terminal([" "])),
    ("MissingDependencyError", lambda: dag().after_success("crawl", ["missing"])),
    ("MissingDependencyError", lambda: run().step(plain("a", "missing"))),
    ("SelfDependencyError", lambda: dag().after_success("crawl", ["crawl"])),
    ("SelfDependencyError", lambda: step().depends_on_terminal(["score"])),
    ("DuplicateDependencyError", lambda: dag().after_success("crawl", ["a", "a"])),
    ("DuplicateDependencyError", lambda: step().depends_on_success(["a", "a"])),
    (
        "CycleDetectedError",
        lambda: dag().job("a", "a", {}, after_success=["crawl"]).after_success("crawl", ["a"]),
    ),
    ("CycleDetectedError", lambda: run().set_steps([plain("a", "b"), plain("b", "a")])),
    ("BlankIdempotencyKeyError", lambda: dag().idempotency_key(" ")),
    ("BlankIdempotencyKeyError", lambda: run().idempotency_key("")),
    ("BlankResultStepKeyError", lambda: run().result_step_key(" ")),
    ("UnknownResultStepKeyError", lambda: dag().result_step("persist")),
    ("UnknownResultStepKeyError", lambda: run().result_step_key("persist")),
    ("NonPositiveStepMaxAttemptsError", lambda: step().max_attempts(0)),
    ("NonPositiveStepTimeoutSecondsError", lambda: step().timeout_seconds(-1)),
    (
        "ExternalStepQueueSettingsNotAllowedError",
        lambda: WorkflowStepEnqueueBuilder.new_external("a").priority(1),
    ),
]


def subclasses(kind):
    for subclass in kind.__subclasses__():
        if not subclass.__name__.startswith("_"):
            yield subclass
        yield from subclasses(subclass)


@pytest.mark.parametrize(("name", "call"), AT_ONCE)
def test_error_appears_at_once(name, call):
    with pytest.raises(WorkflowBuildError) as caught:
        call()

    assert (type(caught.value).__name__, caught.value.code) == (name, CODES[name])


@pytest.mark.parametrize(("name", "make"), WHEN_BUILT)
def test_error_appears_when_built(name, make):
    builder = make()

    for build in (builder.build, builder.try_build):
        with pytest.raises(WorkflowBuildError) as caught:
            build()
        assert (type(caught.value).__name__, caught.value.code) == (name, CODES[name])


def test_large_graphs_are_refused_when_built(monkeypatch):
    monkeypatch.setattr(validation_module, "_MAX_GRAPH_CHARACTERS", 3)
    fits = WorkflowDagBuilder("a").job("a", "a", {})
    fits.build()

    for refused in (lambda: fits.job("b", "a", {}).build(), lambda: append("m", *2 * [plain("a")])):
        with pytest.raises(WorkflowBuildError) as caught:
            refused()
        name = "GraphTooLargeError"
        assert (type(caught.value).__name__, caught.value.code) == (name, CODES[name])


def test_too_many_prerequisites_are_refused_when_built(monkeypatch):
    monkeypatch.setattr(spec_module, "_MAX_DEPENDENCIES", 1)

    with pytest.raises(WorkflowBuildError) as caught:
        step().depends_on_success(["a", "b"]).build()

    name = "DependencyCountOverflowError"
    assert (type(caught.value).__name__, caught.value.code) == (name, CODES[name])


def test_every_error_is_public_and_has_its_own_code():
    found = {subclass.__name__: subclass._code for subclass in subclasses(WorkflowBuildError)}

    assert found == CODES
    assert len(set(found.values())) == len(found)
    assert all(hasattr(runledger_core, name) for name in found)
    assert issubclass(WorkflowBuildError, ValidationError)


def test_every_error_appears_somewhere():
    elsewhere = {"GraphTooLargeError", "DependencyCountOverflowError"}

    assert {name for name, _ in [*AT_ONCE, *WHEN_BUILT]} | elsewhere == set(CODES)


def test_table_of_the_reference_lists_every_error():
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    listed = [name for row in rows for name in re.findall(r"`(\w+Error)`", row.split("|")[1])]

    assert sorted(listed) == sorted(CODES)


def test_errors_name_the_step_and_its_position():
    twice = run().step(plain("a")).step(plain("crawl"))

    with pytest.raises(WorkflowBuildError) as caught:
        twice.build()

    error = caught.value
    assert (error.step_key, error.entry_index, error.field) == ("crawl", 2, "step_key")
    assert str(error) == (
        "workflow.invalid_dag_duplicate_step_key: there is already a step 'crawl'"
    )


def test_values_that_cannot_be_used_are_kept_with_the_error():
    with pytest.raises(runledger_core.NonPositiveStepMaxAttemptsError) as caught:
        step().max_attempts(-3).build()

    assert (caught.value.step_key, caught.value.value) == ("score", -3)


def test_missing_prerequisite_is_named_with_a_key_that_looks_like_it():
    with pytest.raises(runledger_core.MissingDependencyError) as caught:
        dag().job("score", "a", {}, after_success=["crwal"]).build()

    error = caught.value
    assert (error.prerequisite_step_key, error.suggestion) == ("crwal", "crawl")
    assert error.entry_index == 1
    assert error.client_message == (
        "step 'score' waits for 'crwal', which is no step; did you mean 'crawl'?"
    )


def test_nothing_is_suggested_when_nothing_is_alike():
    with pytest.raises(runledger_core.MissingDependencyError) as caught:
        dag().after_success("crawl", ["zzz"]).build()

    assert caught.value.suggestion is None
    assert caught.value.client_message == "step 'crawl' waits for 'zzz', which is no step"


def test_names_in_messages_are_cut_and_control_nothing():
    key = "\x1b[31m" + "x" * 100

    with pytest.raises(WorkflowBuildError) as caught:
        dag().after_success(key, ["crawl"])

    assert caught.value.client_message == (
        f"add the step '\\x1b[31m{'x' * 35}...' before its prerequisites"
    )
    assert caught.value.step_key == key


def test_long_cycles_are_shown_by_their_ends():
    keys = [str(number) for number in range(12)]
    steps = [plain(key, keys[index - 1]) for index, key in enumerate(keys)]

    with pytest.raises(runledger_core.CycleDetectedError) as caught:
        run().set_steps(steps).build()

    assert caught.value.cycle == tuple(keys)
    assert caught.value.client_message == (
        "steps wait for each other: "
        "'0' -> '1' -> '2' -> '3' -> '4' -> '5' -> '6' -> (4 more) -> '11' -> '0'"
    )


def test_errors_survive_pickling():
    with pytest.raises(runledger_core.CycleDetectedError) as caught:
        run().set_steps([plain("a", "b"), plain("b", "a")]).build()

    loaded = pickle.loads(pickle.dumps(caught.value))  # our own bytes

    assert type(loaded) is runledger_core.CycleDetectedError
    assert loaded.code == CODES["CycleDetectedError"]
    assert (loaded.cycle, loaded.step_key) == (("a", "b"), "a")
    assert str(loaded) == str(caught.value)
