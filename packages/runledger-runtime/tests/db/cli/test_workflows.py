"""`runledger workflows`."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID, uuid4

import pytest

from runledger_core import JobCompletion, JobFailure, Scope
from runledger_core.workflows import WorkflowDagBuilder
from runledger_postgres.lifecycle import (
    cancel_workflow_run,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
)
from runledger_postgres.workflows import enqueue_workflow_run, get_workflow_run, get_workflow_step

pytestmark = pytest.mark.usefixtures("defined")

UNKNOWN = "0198c1a2-0000-7000-8000-000000000001"
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\u202e\x9b1m"


def approval(workflow_type: str = "photo.publish") -> WorkflowDagBuilder:
    """A run that scales, waits for an approval, and mails; a cleanup at the end."""
    return (
        WorkflowDagBuilder(workflow_type, {"source": "api"})
        .job("scale", "photo.scale", {"n": 1})
        .external("approval", {"who": "ops"}, after_success=["scale"])
        .job("mail", "mail.send", {}, after_success=["scale", "approval"])
        .job("cleanup", "photo.scale", {}, after_terminal=["mail"])
        .result_step("mail")
    )


def enqueue(pool: Any, dag: WorkflowDagBuilder | None = None) -> UUID:
    return enqueue_workflow_run(pool, (dag or approval()).build()).id


def work(pool: Any, output: Any = None) -> None:
    """Let the jobs that are due succeed."""
    for job in claim_jobs(pool, worker_id="w", limit=10, lease_ttl_seconds=60):
        complete_job_success(pool, job.lease, JobCompletion.with_output(output))


def refuse(pool: Any) -> None:
    """Dead-letter the jobs that are due."""
    for job in claim_jobs(pool, worker_id="w", limit=10, lease_ttl_seconds=60):
        complete_job_failure(pool, job.lease, JobFailure.terminal("mail.refused", "no"))


def status_of(pool: Any, run_id: UUID) -> str:
    run = get_workflow_run(pool, run_id, scope=Scope.ADMIN)
    assert run is not None
    return run.status


def lines_of(text: str) -> list[str]:
    # However slow the machine.
    told = re.sub(r"\d+s ago", "0s ago", text)
    return [" ".join(line.split()) for line in told.splitlines()]


def test_list_shows_newest_first_with_what_is_open_or_went_wrong(run_cli, runledger_pool):
    first = enqueue(runledger_pool)
    refuse(runledger_pool)
    work(runledger_pool)
    second = enqueue(runledger_pool, approval("photo.review"))
    work(runledger_pool)

    result = run_cli("workflows", "list")

    assert result.exit_code == 0
    header, newest, oldest = lines_of(result.stdout)
    assert header == "ID TYPE STATUS STEPS WHEN"
    assert newest == f"{second} photo.review RUNNING 2 open, 1 waiting 0s ago"
    assert oldest == (f"{first} photo.publish COMPLETED_WITH_ERRORS 1 failed, 2 canceled 0s ago")


def test_list_filters_by_status_type_and_part_of_it(run_cli, runledger_pool):
    first = enqueue(runledger_pool)
    cancel_workflow_run(runledger_pool, first, scope=Scope.ADMIN)
    second = enqueue(runledger_pool, approval("photo.review"))

    def listed(*options: str) -> list[str]:
        runs = json.loads(run_cli("workflows", "list", "--json", *options).stdout)["runs"]
        return [run["id"] for run in runs]

    assert listed() == [str(second), str(first)]
    assert listed("--status", "canceled") == [str(first)]
    assert listed("--type", "photo.review") == [str(second)]
    assert listed("--type-contains", "PUBLISH") == [str(first)]
    assert listed("--status", "canceled", "--type", "photo.review") == []


def test_list_goes_on_after_a_page(run_cli, runledger_pool):
    ids = [str(enqueue(runledger_pool)) for _ in range(3)]

    page = json.loads(run_cli("workflows", "list", "--limit", "2", "--json").stdout)
    rest = json.loads(run_cli("workflows", "list", "--after", page["next_after"], "--json").stdout)
    shown = run_cli("workflows", "list", "--limit", "2")

    assert [run["id"] for run in page["runs"]] == [ids[2], ids[1]]
    assert [run["id"] for run in rest["runs"]] == [ids[0]]
    assert rest["next_after"] is None
    assert shown.stderr == f"more: --after {ids[1]}\n"


def test_empty_list_is_no_failure_and_says_so(run_cli):
    result = run_cli("workflows", "list")

    assert (result.exit_code, result.stdout) == (0, "no runs\n")


def test_scope_limits_what_is_seen_and_changed(run_cli, runledger_pool):
    mine, other = uuid4(), uuid4()
    owned = enqueue(runledger_pool, approval().organization_id(mine))
    work(runledger_pool)
    outside = ("--org", str(other))

    def listed(*scope: str) -> list[str]:
        runs = json.loads(run_cli("workflows", "list", "--json", *scope).stdout)["runs"]
        return [run["id"] for run in runs]

    assert listed("--org", str(mine)) == [str(owned)]
    assert listed("--global") == listed(*outside) == []
    for arguments in (
        ("show", str(owned)),
        ("show", str(owned), "--step", "mail"),
        ("graph", str(owned)),
        ("graph", str(owned), "--format", "json"),
        ("complete-step", str(owned), "approval"),
    ):
        result = run_cli("workflows", *arguments, *outside)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: workflow.run_not_found: ")
        assert " next: runledger workflows list; " in result.stderr
    assert run_cli("workflows", "cancel", str(owned), *outside).exit_code == 1
    assert status_of(runledger_pool, owned) == "RUNNING"
    assert run_cli("workflows", "cancel", str(owned), "--org", str(mine)).exit_code == 0
    assert status_of(runledger_pool, owned) == "CANCELED"


def test_show_tells_the_run_its_metadata_and_its_steps(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool, approval().idempotency_key("photo:1"))
    work(runledger_pool)

    result = run_cli("workflows", "show", str(run_id))

    assert result.exit_code == 0
    lines = lines_of(result.stdout)
    assert f"run {run_id}" in lines
    assert "status RUNNING" in lines
    assert "steps 2 open, 1 waiting" in lines
    assert "result step mail" in lines
    assert "key photo:1" in lines
    assert '"source": "api"' in lines
    assert "Result" not in lines
    table = lines[lines.index("Steps") + 1 :]
    assert table[0] == "STEP TYPE STATUS ATTEMPT WAITS FOR WHEN ERROR"
    assert table[1:] == [
        "scale photo.scale SUCCEEDED 1/3 - 0s ago -",
        "approval (gate) WAITING_FOR_EXTERNAL - 0/1 0s ago -",
        "mail mail.send BLOCKED - 1/2 - -",
        "cleanup photo.scale BLOCKED - 1/1 - -",
    ]


def test_show_tells_the_result_once_there_is_one(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    work(runledger_pool)
    assert run_cli("workflows", "complete-step", str(run_id), "approval").exit_code == 0
    work(runledger_pool, {"sent": 3})
    work(runledger_pool)

    shown = lines_of(run_cli("workflows", "show", str(run_id)).stdout)
    document = json.loads(run_cli("workflows", "show", str(run_id), "--json").stdout)

    assert "status SUCCEEDED" in shown
    assert "steps all succeeded" in shown
    assert shown[shown.index("Result") + 2] == '"sent": 3'
    assert document["result"] == {"sent": 3}
    assert document["run"]["status"] == "SUCCEEDED"
    assert [step["step_key"] for step in document["steps"]] == [
        "scale", "approval", "mail", "cleanup",
    ]  # fmt: skip


def test_show_tells_one_step_with_its_bodies(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    refuse(runledger_pool)

    failed = lines_of(run_cli("workflows", "show", str(run_id), "--step", "scale").stdout)
    doomed = lines_of(run_cli("workflows", "show", str(run_id), "--step", "mail").stdout)
    gate = run_cli("workflows", "show", str(run_id), "--step", "approval", "--json")
    unknown = run_cli("workflows", "show", str(run_id), "--step", "none")

    assert "status FAILED (TERMINAL)" in failed
    assert "error mail.refused: no" in failed
    assert "attempt 1/3" in failed
    assert '"n": 1' in failed
    assert "error workflow.dependency_unsatisfied" in doomed
    assert json.loads(gate.stdout)["step"]["payload"] == {"who": "ops"}
    assert unknown.exit_code == 1
    assert unknown.stderr.startswith("error: cli.step_not_found: ")


def test_show_goes_on_after_a_page_of_steps(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)

    page = json.loads(run_cli("workflows", "show", str(run_id), "--limit", "3", "--json").stdout)
    rest = json.loads(
        run_cli("workflows", "show", str(run_id), "--after", page["next_after"], "--json").stdout
    )

    assert [step["step_key"] for step in page["steps"]] == ["scale", "approval", "mail"]
    assert [step["step_key"] for step in rest["steps"]] == ["cleanup"]
    assert rest["next_after"] is None


def test_mermaid_shows_steps_statuses_and_edges(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    claim_jobs(runledger_pool, worker_id="w", limit=1, lease_ttl_seconds=60)

    result = run_cli("workflows", "graph", str(run_id))

    assert result.exit_code == 0
    assert result.stdout == (
        "flowchart LR\n"
        '    s1["scale<br/>RUNNING"]:::RUNNING\n'
        '    s2{{"approval<br/>BLOCKED"}}:::BLOCKED\n'
        '    s3["mail<br/>BLOCKED"]:::BLOCKED\n'
        '    s4["cleanup<br/>BLOCKED"]:::BLOCKED\n'
        "    s1 --> s2\n"
        "    s1 --> s3\n"
        "    s2 --> s3\n"
        "    s3 -.-> s4\n"
        "    classDef RUNNING fill:#a5d8ff,stroke:#1864ab,color:#000\n"
        "    classDef BLOCKED fill:#eeeeee,stroke:#999999,color:#000\n"
    )


def test_dot_shows_the_same(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)

    result = run_cli("workflows", "graph", str(run_id), "--format", "dot")

    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "digraph run {"
    assert lines[-1] == "}"
    assert 's1 [label="scale\\nENQUEUED", fillcolor="#d0ebff", color="#339af0"];' in lines
    assert (
        's2 [label="approval\\nBLOCKED", fillcolor="#eeeeee", color="#999999", shape=hexagon];'
        in lines
    )
    assert "s1 -> s2;" in lines
    assert "s3 -> s4 [style=dashed];" in lines


def test_json_of_a_graph_names_steps_by_their_keys(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)

    result = run_cli("workflows", "graph", str(run_id), "--format", "json")

    document = json.loads(result.stdout)
    assert document["run"]["id"] == str(run_id)
    assert [(step["step_key"], step["status"]) for step in document["steps"]] == [
        ("scale", "ENQUEUED"), ("approval", "BLOCKED"), ("mail", "BLOCKED"), ("cleanup", "BLOCKED"),
    ]  # fmt: skip
    assert document["edges"] == [
        {"from": "scale", "to": "approval", "release_mode": "ON_SUCCESS"},
        {"from": "scale", "to": "mail", "release_mode": "ON_SUCCESS"},
        {"from": "approval", "to": "mail", "release_mode": "ON_SUCCESS"},
        {"from": "mail", "to": "cleanup", "release_mode": "ON_TERMINAL"},
    ]


def test_graph_reads_all_pages_of_a_large_run(run_cli, runledger_pool):
    dag = WorkflowDagBuilder("photo.many", {}).job("first", "photo.scale", {})
    for number in range(1_100):
        dag.job(f"photo-{number}", "photo.scale", {}, after_success=["first"])
    run_id = enqueue(runledger_pool, dag)

    result = run_cli("workflows", "graph", str(run_id))

    lines = result.stdout.splitlines()
    assert sum("<br/>" in line for line in lines) == 1_101
    assert sum("-->" in line for line in lines) == 1_100


def test_hostile_text_controls_neither_terminal_nor_drawing(run_cli, runledger_pool):
    key = f'a"];}}\\"<script>#quot;|{HOSTILE}\n'
    dag = WorkflowDagBuilder(f"t{HOSTILE}", {"m": HOSTILE}).job(key, "photo.scale", {"p": HOSTILE})
    run_id = enqueue(runledger_pool, dag.result_step(key))
    work(runledger_pool, HOSTILE)

    printed = [
        run_cli("workflows", *arguments).stdout
        for arguments in (
            ("list",),
            ("list", "--json"),
            ("show", str(run_id)),
            ("show", str(run_id), "--json"),
            ("show", str(run_id), "--step", key),
            ("graph", str(run_id)),
            ("graph", str(run_id), "--format", "dot"),
            ("graph", str(run_id), "--format", "json"),
        )
    ]

    for text in printed:
        assert text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    # What the drawing's languages read as their own is gone from the label.
    (node,) = (line for line in printed[5].splitlines() if "<br/>" in line)
    label = node[node.index('["') + 2 : node.index("<br/>")]
    assert not set('"<>|{}[]\\') & set(label)
    (node,) = (line for line in printed[6].splitlines() if "label=" in line)
    label = node[node.index('label="') + 7 : node.index('\\nSUCCEEDED"')]
    assert re.fullmatch(r'(?:[^"\\]|\\["\\])*', label)


def test_cancel_ends_runs_and_tells_what_of_each(run_cli, runledger_pool):
    first, second = enqueue(runledger_pool), enqueue(runledger_pool)
    cancel_workflow_run(runledger_pool, first, scope=Scope.ADMIN)

    result = run_cli("workflows", "cancel", str(first), str(second), "--reason", "not needed")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{first} has ended before: CANCELED",
        f"{second} canceled: 4 steps, 1 jobs",
    ]
    step = get_workflow_step(runledger_pool, second, "scale", scope=Scope.ADMIN)
    assert step is not None
    assert (step.status, step.status_reason) == ("CANCELED", "not needed")


def test_cancel_of_an_unknown_run_changes_the_others_and_fails(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)

    result = run_cli("workflows", "cancel", UNKNOWN, str(run_id), "--json")

    assert result.exit_code == 1
    runs = json.loads(result.stdout)["runs"]
    assert runs[UNKNOWN] == {"status": "NOT_FOUND"}
    assert runs[str(run_id)]["status"] == "CANCELED"
    assert result.stderr.startswith("error: cli.some_runs_refused: 1 of 2 ")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_error_in_the_middle_of_a_cancel_tells_what_was_done_before(
    run_cli, runledger_pool, refuse_updates, options
):
    first, held, last = (enqueue(runledger_pool) for _ in range(3))

    refuse_updates("workflow_runs", f"OLD.id = '{held}'")

    result = run_cli("workflows", "cancel", *map(str, (first, held, last)), *options)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: db.query_failed: ")
    if options:
        assert json.loads(result.stdout)["runs"].keys() == {str(first)}
    else:
        assert result.stdout == f"{first} canceled: 4 steps, 1 jobs\n"
    assert status_of(runledger_pool, first) == "CANCELED"
    assert status_of(runledger_pool, last) == "RUNNING"


def test_gate_is_completed_once_and_again_to_no_effect(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    work(runledger_pool)
    arguments = ("workflows", "complete-step", str(run_id), "approval", "--output", '{"by": "ops"}')

    first, again = run_cli(*arguments), run_cli(*arguments)
    other = run_cli("workflows", "complete-step", str(run_id), "approval", "--output", "1")

    assert (first.exit_code, first.stdout) == (0, "approval succeeded\n")
    assert (again.exit_code, again.stdout) == (0, "approval succeeded\n")
    assert other.exit_code == 1
    assert other.stderr.startswith("error: workflow.external_step_conflicting_output_retry: ")
    step = get_workflow_step(runledger_pool, run_id, "approval", scope=Scope.ADMIN)
    assert step is not None
    assert step.output == {"by": "ops"}


def test_gate_takes_its_output_from_the_standard_input(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    work(runledger_pool)

    result = run_cli(
        "workflows", "complete-step", str(run_id), "approval", "--output", "-", "--json",
        stdin='{"by": "ops"}',
    )  # fmt: skip

    step = json.loads(result.stdout)["step"]
    assert (step["status"], step["output"]) == ("SUCCEEDED", {"by": "ops"})


def test_gate_is_refused_with_code_and_reason(run_cli, runledger_pool):
    run_id = enqueue(runledger_pool)
    work(runledger_pool)

    result = run_cli(
        "workflows", "complete-step", str(run_id), "approval", "--as", "failed",
        "--reason", "denied", "--code", "approval.denied", "--message", "not this one",
    )  # fmt: skip

    assert (result.exit_code, result.stdout) == (0, "approval failed\n")
    shown = lines_of(run_cli("workflows", "show", str(run_id), "--step", "approval").stdout)
    assert "status FAILED (denied)" in shown
    assert "error approval.denied: not this one" in shown
    doomed = get_workflow_step(runledger_pool, run_id, "mail", scope=Scope.ADMIN)
    assert doomed is not None
    assert doomed.status == "CANCELED"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("approval", "workflow.external_step_not_waiting"),
        ("scale", "workflow.external_step_not_external"),
        ("none", "workflow.external_step_not_found"),
    ],
)
def test_what_cannot_be_completed_is_refused_by_code(run_cli, runledger_pool, step, code):
    run_id = enqueue(runledger_pool)

    result = run_cli("workflows", "complete-step", str(run_id), step)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {code}: ")
