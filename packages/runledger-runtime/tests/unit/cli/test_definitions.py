import pytest

NOWHERE = ("--database-url", "host=127.0.0.1 port=1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--limit", "0"], "0 is not in the range"),
        (["list", "--limit", "1001"], "1001 is not in the range"),
        (["enable"], "Missing argument 'TYPE'"),
        (["disable"], "Missing argument 'TYPE'"),
        (["disable", "a.b", "c.d"], "Got unexpected extra argument (c.d)"),
        (["pause", "a.b"], "No such command 'pause'"),
    ],
)
def test_wrong_usage_is_told_before_a_connection_is_made(run_cli, arguments, problem):
    result = run_cli("definitions", *arguments, *NOWHERE)

    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_verbs_without_a_database_say_how_to_name_one(run_cli):
    for verb in (["list"], ["enable", "a.b"], ["disable", "a.b"]):
        result = run_cli("definitions", *verb)

        assert result.exit_code == 1
        assert result.stderr.startswith("error: config.database_url_missing: ")
        assert " next: set DATABASE_URL" in result.stderr
