import json

import pytest

from runledger_core import JobDefinitionSpec, JobEnqueue, Scope
from runledger_postgres import (
    enqueue_job,
    get_job,
    get_job_definition,
    upsert_job_definition,
)
from runledger_postgres.errors import QueryError
from runledger_runtime.catalog import JobCatalog, JobCatalogSyncScope

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\u202e\x9b1m"


def handle(context, payload):
    return None


def define(pool, job_type, **values):
    return upsert_job_definition(pool, JobDefinitionSpec(job_type, **values))


def schedule(connection, job_type, name="nightly"):
    connection.execute(
        "INSERT INTO runledger.job_schedules (name, job_type, cron_expr, next_fire_at)"
        " VALUES (%s, %s, '0 0 * * *', now())",
        [name, job_type],
    )


def is_enabled(pool, job_type):
    definition = get_job_definition(pool, job_type)
    assert definition is not None
    return definition.is_enabled


def test_list_shows_what_new_jobs_get(run_cli, runledger_pool):
    define(
        runledger_pool,
        "mail.send",
        version=4,
        max_attempts=5,
        default_timeout_seconds=60,
        default_priority=-2,
    )
    define(runledger_pool, "fax.send", is_enabled=False)

    result = run_cli("definitions", "list")

    assert result.exit_code == 0
    header, first, second = (line.split() for line in result.stdout.splitlines())
    assert header[:4] == ["TYPE", "ENABLED", "ATTEMPTS", "TIMEOUT"]
    assert first[:6] == ["fax.send", "no", "3", "300s", "0", "1"]
    assert second == ["mail.send", "yes", "5", "60s", "-2", "4", "0s", "ago"]


def test_list_as_json_has_every_column(run_cli, runledger_pool):
    stored = define(runledger_pool, "mail.send", max_attempts=5)

    document = json.loads(run_cli("definitions", "list", "--json").stdout)

    assert document == {
        "definitions": [
            {
                "job_type": "mail.send",
                "version": 1,
                "max_attempts": 5,
                "default_timeout_seconds": 300,
                "default_priority": 0,
                "is_enabled": True,
                "created_at": stored.created_at.isoformat(),
                "updated_at": stored.updated_at.isoformat(),
            }
        ],
        "next_after": None,
    }


def test_list_filters_and_goes_on_after_a_page(run_cli, runledger_pool):
    for job_type in ("mail.b", "fax", "mail.a", "mail.c"):
        define(runledger_pool, job_type)

    def listed(*options):
        document = json.loads(run_cli("definitions", "list", "--json", *options).stdout)
        return [row["job_type"] for row in document["definitions"]], document["next_after"]

    assert listed("--type-contains", "MAIL") == (["mail.a", "mail.b", "mail.c"], None)
    assert listed("--limit", "2") == (["fax", "mail.a"], "mail.a")
    assert listed("--after", "mail.a") == (["mail.b", "mail.c"], None)
    assert run_cli("definitions", "list", "--limit", "1").stderr == "more: --after fax\n"


def test_empty_list_is_no_failure_and_says_so(run_cli):
    result = run_cli("definitions", "list")

    assert (result.exit_code, result.stdout) == (0, "no definitions\n")


def test_disabled_type_takes_no_jobs_until_it_is_enabled(run_cli, runledger_pool):
    define(runledger_pool, "mail.send")
    queued = enqueue_job(runledger_pool, JobEnqueue("mail.send", {})).id

    disabled = run_cli("definitions", "disable", "mail.send")

    assert (disabled.exit_code, disabled.stdout) == (0, "mail.send is disabled\n")
    with pytest.raises(QueryError) as refused:
        enqueue_job(runledger_pool, JobEnqueue("mail.send", {}))
    assert refused.value.code == "job.definition_not_found_or_disabled"
    job = get_job(runledger_pool, queued, scope=Scope.ADMIN)
    assert job is not None
    assert job.status == "PENDING"

    enabled = run_cli("definitions", "enable", "mail.send")

    assert (enabled.exit_code, enabled.stdout) == (0, "mail.send is enabled\n")
    assert enqueue_job(runledger_pool, JobEnqueue("mail.send", {})).id != queued


@pytest.mark.parametrize(("verb", "wanted"), [("enable", True), ("disable", False)])
def test_change_that_is_made_already_writes_nothing(run_cli, runledger_pool, verb, wanted):
    before = define(runledger_pool, "mail.send", is_enabled=wanted)

    result = run_cli("definitions", verb, "mail.send")

    assert result.exit_code == 0
    assert get_job_definition(runledger_pool, "mail.send") == before


def test_change_as_json_is_the_definition(run_cli, runledger_pool):
    define(runledger_pool, "mail.send", max_attempts=5)

    changed = json.loads(run_cli("definitions", "disable", "mail.send", "--json").stdout)

    assert changed["job_type"] == "mail.send"
    assert changed["max_attempts"] == 5
    assert changed["is_enabled"] is False


def test_scheduled_type_is_not_disabled_and_the_way_out_is_told(
    run_cli, runledger_pool, runledger_database
):
    define(runledger_pool, "mail.send")
    with runledger_database.connect(autocommit=True) as connection:
        schedule(connection, "mail.send")

    result = run_cli("definitions", "disable", "mail.send")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job_definition.active_schedule_exists: ")
    assert "mail.send" in result.stderr
    assert " next: runledger schedules list " in result.stderr
    assert is_enabled(runledger_pool, "mail.send")


@pytest.mark.parametrize("verb", ["enable", "disable"])
def test_change_of_an_unknown_type_says_where_to_look(run_cli, verb):
    result = run_cli("definitions", verb, "mail.sned")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job.definition_not_found: ")
    assert " next: runledger definitions list" in result.stderr


def test_change_of_a_name_that_no_type_can_have_is_refused(run_cli):
    result = run_cli("definitions", "enable", " ")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: input.blank: ")


def test_disable_lasts_through_an_additive_sync_but_not_through_an_exact_one(
    run_cli, runledger_pool
):
    catalog = JobCatalog().job("mail.send", handle)
    catalog.sync_definitions(runledger_pool)
    run_cli("definitions", "disable", "mail.send")

    catalog.sync_definitions(runledger_pool)
    assert not is_enabled(runledger_pool, "mail.send")

    catalog.sync_definitions_exact(runledger_pool, JobCatalogSyncScope(["mail.send"]))
    assert is_enabled(runledger_pool, "mail.send")


def test_hostile_names_cannot_control_the_terminal(run_cli, runledger_pool):
    define(runledger_pool, HOSTILE)
    define(runledger_pool, f"{HOSTILE}2")

    outputs = [
        run_cli("definitions", *verb).output
        for verb in (
            ["list", "--limit", "1"],
            ["list", "--json"],
            ["disable", HOSTILE],
            ["enable", HOSTILE],
            ["enable", HOSTILE, "--json"],
            ["enable", f"{HOSTILE}3"],
        )
    ]

    for output in outputs:
        text = output.replace("\n", "")
        assert text
        assert not [character for character in text if not character.isprintable()]
