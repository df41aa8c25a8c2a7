import pytest

ID = "0198c1a2-0000-7000-8000-000000000001"
NOWHERE = ("--database-url", "host=127.0.0.1 port=1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["cancel"], "Missing argument 'ID...'"),
        (["show", "not-an-id"], "not a valid UUID"),
        (["show", ID, "--limit", "0"], "0 is not in the range"),
        (["list", "--org", ID, "--global"], "give --org or --global, not both"),
        (["list", "--status", "DONE"], "'DONE' is not one of"),
        (["graph", ID, "--format", "png"], "'png' is not one of"),
        (["complete-step", ID], "Missing argument 'STEP'"),
        (["complete-step", ID, "gate", "--as", "BLOCKED"], "'BLOCKED' is not one of"),
    ],
)
def test_wrong_usage_is_told_before_a_connection_is_made(run_cli, arguments, problem):
    result = run_cli("workflows", *arguments, *NOWHERE)

    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--output", "{"], "input.json_malformed"),
        (["--output", "NaN"], "input.json_not_finite"),
        (["--as", "failed", "--output", "1"], "workflow.external_step_output_invalid_status"),
    ],
)
def test_bad_completion_is_refused_by_code_before_a_connection_is_made(run_cli, options, code):
    result = run_cli("workflows", "complete-step", ID, "gate", *options, *NOWHERE)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {code}: ")


def test_help_of_a_verb_about_runs_speaks_of_runs(run_cli):
    shown = " ".join(run_cli("workflows", "list", "--help").stdout.split())

    assert "Only runs of this organization; without --org and --global, all runs." in shown
    assert "jobs" not in shown
