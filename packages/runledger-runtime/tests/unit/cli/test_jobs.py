import pytest

ID = "0198c1a2-0000-7000-8000-000000000001"
NOWHERE = ("--database-url", "host=127.0.0.1 port=1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["cancel"], "give either ids or a filter"),
        (["requeue", ID, "--type", "a.b"], "give either ids or a filter"),
        (["show", "not-an-id"], "not a valid UUID"),
        (["list", "--org", ID, "--global"], "give --org or --global, not both"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["list", "--status", "DONE"], "'DONE' is not one of"),
        (["enqueue", "a.b", "--run-at", "soon"], "write it as 2030-01-31T08:00:00Z"),
        (["enqueue", "a.b", "--run-at", "2030-01-31T08:00:00"], "needs a UTC offset"),
        (["enqueue", "a.b", "--delay", "-5s"], "write a number with s, m, h or d"),
        (["enqueue", "a.b", "--delay", "999999999999d"], "is too long"),
        (["enqueue", "a.b", "--delay", "99999999h"], "beyond the year 9999"),
        (["enqueue", "a.b", "--delay", "5s", "--key", "k"], "give --run-at with --key"),
        (
            ["enqueue", "a.b", "--delay", "5s", "--run-at", "2030-01-31T08:00:00Z"],
            "give --run-at or --delay, not both",
        ),
    ],
)
def test_wrong_usage_is_told_before_a_connection_is_made(run_cli, arguments, problem):
    result = run_cli("jobs", *arguments, *NOWHERE)

    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ("{", "input.json_malformed"),
        ("NaN", "input.json_not_finite"),
        ('"\\u0000"', "input.json_invalid_text"),
    ],
)
def test_bad_payload_is_refused_by_code_before_a_connection_is_made(run_cli, payload, code):
    result = run_cli("jobs", "enqueue", "a.b", payload, *NOWHERE)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {code}: ")
