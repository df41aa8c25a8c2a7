import json
from datetime import datetime
from itertools import pairwise

import pytest

NOWHERE = ("--database-url", "host=127.0.0.1 port=1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["pause"], "give either names or --name-contains"),
        (["resume", "nightly", "--name-contains", "night"], "give either names"),
        (["preview"], "give the NAME of a schedule or --cron EXPRESSION"),
        (["preview", "nightly", "--cron", "@daily"], "give the NAME of a schedule or --cron"),
        (["preview", "--cron", "@daily", "--count", "0"], "0 is not in the range"),
        (["list", "--limit", "1001"], "1001 is not in the range"),
    ],
)
def test_wrong_usage_is_told_before_a_connection_is_made(run_cli, arguments, problem):
    result = run_cli("schedules", *arguments, *NOWHERE)

    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("names", [["nightly", ""], ["nightly", "a\0b"], ["nightly", "n" * 201]])
def test_name_that_no_schedule_can_have_is_told_before_a_connection_is_made(run_cli, verb, names):
    result = run_cli("schedules", verb, *names, *NOWHERE)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: input.")


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_blank_filter_chooses_nothing(run_cli, verb, text):
    result = run_cli("schedules", verb, "--name-contains", text, "--yes", *NOWHERE)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: input.blank: name_contains ")


def test_fires_of_an_expression_need_no_database(run_cli):
    result = run_cli("schedules", "preview", "--cron", "0 0 12 24 12 ? 2090-2092")

    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["FIRE", "DAY", "WHEN"]
    assert [line.split()[:3] for line in lines] == [
        ["2090-12-24", "12:00:00Z", "Sun"],
        ["2091-12-24", "12:00:00Z", "Mon"],
        ["2092-12-24", "12:00:00Z", "Wed"],
    ]


def test_fires_of_an_expression_as_json(run_cli):
    result = run_cli("schedules", "preview", "--cron", "*/10 * * * * ?", "--count", "3", "--json")

    shown = json.loads(result.stdout)
    assert shown["cron_expr"] == "*/10 * * * * ?"
    fires = [datetime.fromisoformat(fire["scheduled_for"]) for fire in shown["fires"]]
    assert [(after - before).total_seconds() for before, after in pairwise(fires)] == [10, 10]
    assert [fire["run_at"] for fire in shown["fires"]] == [
        fire["scheduled_for"] for fire in shown["fires"]
    ]


def test_an_expression_whose_fires_are_over_says_so(run_cli):
    result = run_cli("schedules", "preview", "--cron", "0 0 0 1 1 ? 2020")

    assert (result.exit_code, result.stdout) == (0, "no further fire\n")


def test_what_is_no_expression_is_refused_by_code(run_cli):
    result = run_cli("schedules", "preview", "--cron", "0 0 0 ? * 1-5")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job_schedule.invalid_cron: cron_expr has '1-5'")
    assert "write names such as MON-FRI" in result.stderr
