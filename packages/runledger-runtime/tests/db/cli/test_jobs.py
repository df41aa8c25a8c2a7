import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from runledger_core import JobEnqueue, JobFailure, JobStatus, Scope
from runledger_postgres.jobs import enqueue_job, enqueue_jobs, get_job, insert_job_log
from runledger_postgres.lifecycle import (
    FailureEntry,
    cancel_jobs,
    claim_jobs,
    complete_job_failure,
    complete_job_success,
    fail_jobs,
)

pytestmark = pytest.mark.usefixtures("defined")

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\u202e\x9b1m"
UNKNOWN = "0198c1a2-0000-7000-8000-000000000001"


def enqueue(pool, count=1, job_type="mail.send", organization_id=None):
    requests = [
        JobEnqueue(job_type, {"n": n}, organization_id=organization_id) for n in range(count)
    ]
    return [job.id for job in enqueue_jobs(pool, requests)]


def kill(pool, count, code="mail.refused"):
    """Dead-letter the next jobs that are due."""
    for job in claim_jobs(pool, worker_id="w", limit=count, lease_ttl_seconds=60):
        complete_job_failure(pool, job.lease, JobFailure.terminal(code, "no"))


def status_of(pool, job_id):
    job = get_job(pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    return job.status


def test_list_shows_newest_first_with_status_and_error(run_cli, runledger_pool):
    (first,) = enqueue(runledger_pool)
    kill(runledger_pool, 1)
    (second,) = enqueue(runledger_pool, job_type="photo.scale")

    result = run_cli("jobs", "list")

    assert result.exit_code == 0
    header, newest, oldest = result.stdout.splitlines()
    assert header.split()[:3] == ["ID", "TYPE", "STATUS"]
    assert newest.split() == [str(second), "photo.scale", "PENDING", "0/3", "0s", "ago", "-"]
    assert oldest.split()[:4] == [str(first), "mail.send", "DEAD_LETTERED", "1/5"]
    assert oldest.split()[-1] == "mail.refused"


def test_list_filters_by_status_type_and_part_of_it(run_cli, runledger_pool):
    (mail,) = enqueue(runledger_pool)
    kill(runledger_pool, 1)
    (photo,) = enqueue(runledger_pool, job_type="photo.scale")

    by_status = run_cli("jobs", "list", "--status", "dead_lettered", "--json")
    by_type = run_cli("jobs", "list", "--type", "photo.scale", "--json")
    by_part = run_cli("jobs", "list", "--type-contains", "SCALE", "--json")

    assert [job["id"] for job in json.loads(by_status.stdout)["jobs"]] == [str(mail)]
    assert [job["id"] for job in json.loads(by_type.stdout)["jobs"]] == [str(photo)]
    assert [job["id"] for job in json.loads(by_part.stdout)["jobs"]] == [str(photo)]


def test_list_goes_on_after_a_page(run_cli, runledger_pool):
    ids = [str(job_id) for job_id in enqueue(runledger_pool, 3)]

    page = json.loads(run_cli("jobs", "list", "--limit", "2", "--json").stdout)
    rest = json.loads(run_cli("jobs", "list", "--after", page["next_after"], "--json").stdout)

    assert [job["id"] for job in page["jobs"]] == [ids[2], ids[1]]
    assert [job["id"] for job in rest["jobs"]] == [ids[0]]
    assert rest["next_after"] is None


def test_scope_limits_what_is_listed(run_cli, runledger_pool):
    mine, other = uuid4(), uuid4()
    (owned,) = enqueue(runledger_pool, organization_id=mine)
    (free,) = enqueue(runledger_pool)

    def listed(*scope):
        jobs = json.loads(run_cli("jobs", "list", "--json", *scope).stdout)["jobs"]
        return [job["id"] for job in jobs]

    assert listed() == [str(free), str(owned)]
    assert listed("--global") == [str(free)]
    assert listed("--org", str(mine)) == [str(owned)]
    assert listed("--org", str(other)) == []


def test_empty_list_is_no_failure_and_says_so(run_cli):
    result = run_cli("jobs", "list")

    assert (result.exit_code, result.stdout) == (0, "no jobs\n")
    assert json.loads(run_cli("jobs", "list", "--json").stdout) == {"jobs": [], "next_after": None}


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_change_of_unknown_jobs_does_not_advise_to_show_them(run_cli, runledger_pool, verb):
    unknown = run_cli("jobs", verb, UNKNOWN)
    (job_id,) = enqueue(runledger_pool)
    cancel_jobs(runledger_pool, [job_id], scope=Scope.ADMIN)
    mixed = run_cli("jobs", "cancel", UNKNOWN, str(job_id))

    assert (unknown.exit_code, mixed.exit_code) == (1, 1)
    assert "jobs show" not in unknown.stderr
    assert " next: runledger jobs list; " in unknown.stderr
    assert " next: runledger jobs show ID" in mixed.stderr


def test_show_tells_row_payload_attempts_and_timeline(run_cli, runledger_pool):
    (job_id,) = enqueue(runledger_pool)
    kill(runledger_pool, 1)

    shown = run_cli("jobs", "show", str(job_id))

    assert shown.exit_code == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert f"job {job_id}" in lines
    assert "status DEAD_LETTERED (TERMINAL)" in lines
    assert "error mail.refused: no" in lines
    assert "run 1, attempt 1 of 5" in lines
    assert '"n": 0' in lines
    parts = {"Payload", "Checkpoint", "Output", "Attempts", "Timeline"}
    assert [line for line in lines if line in parts] == ["Payload", "Attempts", "Timeline"]
    events = [line.split()[2] for line in lines[lines.index("Timeline") + 2 :]]
    assert events == ["ENQUEUED", "LEASED", "FAILED", "DEAD_LETTERED"]


def test_show_tells_the_log_and_the_newest_traceback(run_cli, runledger_pool):
    (job_id,) = enqueue(runledger_pool)
    (claimed,) = claim_jobs(runledger_pool, worker_id="w", limit=1, lease_ttl_seconds=60)
    insert_job_log(
        runledger_pool,
        job_id,
        scope=Scope.ADMIN,
        level="INFO",
        message="half\x1b[31m",
        payload={"page": 2},
    )
    failure = JobFailure.terminal("mail.refused", "no")
    fail_jobs(runledger_pool, [FailureEntry(claimed.lease, failure, traceback="line 1\nline 2\n")])

    shown = run_cli("jobs", "show", str(job_id)).stdout
    as_json = json.loads(run_cli("jobs", "show", str(job_id), "--json").stdout)

    log = shown[shown.index("Log") :]
    assert "half\N{SYMBOL FOR ESCAPE}[31m" in log
    assert '{"page": 2}' in log
    assert log.endswith("Traceback\nline 1\nline 2\n")
    assert [line["level"] for line in as_json["logs"]] == ["INFO", "ERROR"]
    assert as_json["logs"][1]["payload"] == {"traceback": "line 1\nline 2\n"}


def test_show_as_json_has_job_attempts_and_events(run_cli, runledger_pool):
    (job_id,) = enqueue(runledger_pool)
    (claimed,) = claim_jobs(runledger_pool, worker_id="w", limit=1, lease_ttl_seconds=60)
    complete_job_success(runledger_pool, claimed.lease)

    shown = json.loads(run_cli("jobs", "show", str(job_id), "--json").stdout)

    assert shown["job"]["status"] == "SUCCEEDED"
    assert shown["job"]["payload"] == {"n": 0}
    assert "output" not in shown["job"]
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["SUCCEEDED"]
    assert [event["event_type"] for event in shown["events"]] == [
        "ENQUEUED",
        "LEASED",
        "SUCCEEDED",
    ]


@pytest.mark.parametrize("scope", [[], ["--global"], ["--org", UNKNOWN]])
def test_show_of_an_unknown_job_fails_by_code(run_cli, runledger_pool, scope):
    (owned,) = enqueue(runledger_pool, organization_id=uuid4())

    result = run_cli("jobs", "show", str(owned) if scope else UNKNOWN, *scope)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job.not_found: ")
    assert " next: runledger jobs list" in result.stderr


def test_hostile_data_cannot_control_the_terminal(run_cli, runledger_pool):
    request = JobEnqueue("mail.send", {HOSTILE: HOSTILE}, idempotency_key=HOSTILE)
    job_id = enqueue_job(runledger_pool, request).id
    (job,) = claim_jobs(runledger_pool, worker_id=HOSTILE, limit=1, lease_ttl_seconds=60)
    complete_job_failure(runledger_pool, job.lease, JobFailure.terminal(HOSTILE, HOSTILE))

    outputs = [
        run_cli("jobs", *verb).output
        for verb in (
            ["list"],
            ["list", "--json"],
            ["show", str(job_id)],
            ["show", str(job_id), "--json"],
            ["requeue", str(job_id), "--reason", "x"],
            ["enqueue", HOSTILE],
        )
    ]

    for output in outputs:
        text = output.replace("\n", "")
        assert text
        assert not [character for character in text if not character.isprintable()]
    assert "␛]52;c;ZXZpbA==␇" in outputs[2]


def test_enqueue_makes_a_job_with_what_was_given(run_cli, runledger_pool):
    organization = uuid4()

    result = run_cli(
        *("jobs", "enqueue", "mail.send", '{"to": "a@example.com"}', "--key", "order:1"),
        *("--priority", "-3", "--max-attempts", "7", "--timeout", "11", "--org", str(organization)),
        *("--run-at", "2031-01-31T08:00:00+01:00", "--json"),
    )

    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["disposition"] == "INSERTED"
    job = get_job(runledger_pool, UUID(made["id"]), scope=Scope.organization(organization))
    assert job is not None
    assert job.payload == {"to": "a@example.com"}
    assert (job.priority, job.max_attempts, job.timeout_seconds) == (-3, 7, 11)
    assert job.next_run_at == datetime(2031, 1, 31, 7, tzinfo=UTC)
    assert job.idempotency_key == "order:1"


def test_enqueue_reads_its_payload_from_standard_input(run_cli, runledger_pool):
    result = run_cli("jobs", "enqueue", "mail.send", "-", stdin='{"to": "日本"}')

    job_id, disposition = result.stdout.split()
    assert disposition == "inserted"
    job = get_job(runledger_pool, UUID(job_id), scope=Scope.ADMIN)
    assert job is not None
    assert job.payload == {"to": "日本"}


def test_enqueue_with_a_delay_is_due_later(run_cli, runledger_pool):
    before = datetime.now(UTC)

    result = run_cli("jobs", "enqueue", "mail.send", "--delay", "2h")

    job = get_job(runledger_pool, UUID(result.stdout.split()[0]), scope=Scope.ADMIN)
    assert job is not None
    assert job.payload == {}
    assert timedelta(hours=2) <= job.next_run_at - before < timedelta(hours=2, minutes=1)


def test_repeated_key_returns_the_same_job(run_cli):
    first = run_cli("jobs", "enqueue", "mail.send", "--key", "k").stdout.split()
    second = run_cli("jobs", "enqueue", "mail.send", "--key", "k").stdout.split()

    assert [first[1], second[1]] == ["inserted", "existing"]
    assert first[0] == second[0]


def test_other_request_under_a_key_is_refused_without_showing_it(run_cli):
    run_cli("jobs", "enqueue", "mail.send", "--key", "secret-key")

    result = run_cli("jobs", "enqueue", "mail.send", '{"secret": 1}', "--key", "secret-key")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job.idempotency_conflict: ")
    assert "secret" not in result.output


def test_enqueue_of_an_unknown_type_says_what_to_do(run_cli):
    result = run_cli("jobs", "enqueue", "mail.sned")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: job.definition_not_found_or_disabled: ")
    assert " next: runledger definitions list shows the types: enable a" in result.stderr


def test_cancel_by_id_tells_what_became_of_each(run_cli, runledger_pool):
    ended, open_ = enqueue(runledger_pool, 2)
    cancel_jobs(runledger_pool, [ended], scope=Scope.ADMIN)

    result = run_cli("jobs", "cancel", str(open_), str(ended), UNKNOWN, "--reason", "test")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{open_} canceled",
        f"{ended} its status does not allow this",
        f"{UNKNOWN} no such job in this scope",
    ]
    assert "cli.some_jobs_refused: 2 of 3 jobs were not canceled" in result.stderr
    job = get_job(runledger_pool, open_, scope=Scope.ADMIN)
    assert job is not None
    assert (job.status, job.status_reason) == (JobStatus.CANCELED, "test")


def test_cancel_respects_the_scope(run_cli, runledger_pool):
    (owned,) = enqueue(runledger_pool, organization_id=uuid4())

    result = run_cli("jobs", "cancel", str(owned), "--global", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"jobs": {str(owned): "NOT_FOUND"}}
    assert status_of(runledger_pool, owned) is JobStatus.PENDING


def test_requeue_by_id_starts_another_run(run_cli, runledger_pool):
    (job_id,) = enqueue(runledger_pool)
    kill(runledger_pool, 1)

    result = run_cli("jobs", "requeue", str(job_id))

    assert (result.exit_code, result.stdout) == (0, f"{job_id} requeued\n")
    job = get_job(runledger_pool, job_id, scope=Scope.ADMIN)
    assert job is not None
    assert (job.status, job.run_number) == (JobStatus.PENDING, 2)


def test_filter_without_yes_counts_and_changes_nothing(run_cli, runledger_pool):
    ids = enqueue(runledger_pool, 3)

    result = run_cli("jobs", "cancel", "--type", "mail.send")

    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "3 jobs match",
        "error: cli.confirmation_required: nothing was canceled: 3 jobs would be",
        " next: add --yes to do it",
    ]
    assert {status_of(runledger_pool, job_id) for job_id in ids} == {JobStatus.PENDING}


def test_filter_with_yes_changes_all_it_chooses(run_cli, runledger_pool):
    mails = enqueue(runledger_pool, 1_003)
    (photo,) = enqueue(runledger_pool, job_type="photo.scale")

    result = run_cli("jobs", "cancel", "--type", "mail.send", "--yes")

    assert result.exit_code == 0
    assert result.stderr == "1003 jobs match\n"
    assert result.stdout == "1003 jobs canceled\n"
    assert status_of(runledger_pool, mails[0]) is JobStatus.CANCELED
    assert status_of(runledger_pool, photo) is JobStatus.PENDING


def test_bulk_requeue_takes_dead_letters_unless_told_otherwise(run_cli, runledger_pool):
    dead, canceled = enqueue(runledger_pool, 2)
    cancel_jobs(runledger_pool, [canceled], scope=Scope.ADMIN)
    kill(runledger_pool, 1)

    result = run_cli("jobs", "requeue", "--type-contains", "mail", "--yes", "--json")

    assert json.loads(result.stdout) == {"matched": 1, "requeued": 1, "refused": {}}
    assert status_of(runledger_pool, dead) is JobStatus.PENDING
    assert status_of(runledger_pool, canceled) is JobStatus.CANCELED


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_error_in_a_later_page_tells_what_was_done_before(
    run_cli, runledger_pool, refuse_updates, monkeypatch, options
):
    monkeypatch.setattr("runledger_runtime.cli._job_change.MOST_ROWS", 1)
    oldest, newest = enqueue(runledger_pool, 2)
    refuse_updates("job_queue", f"OLD.id = '{oldest}'")

    result = run_cli("jobs", "cancel", "--type", "mail.send", "--yes", *options)

    assert result.exit_code == 1
    assert "error: db.query_failed: " in result.stderr
    expected = '{"matched": 2, "canceled": 1, "refused": {}}' if options else "1 jobs canceled"
    assert result.stdout == f"{expected}\n"
    assert status_of(runledger_pool, oldest) is JobStatus.PENDING
    assert status_of(runledger_pool, newest) is JobStatus.CANCELED


def test_bulk_verb_refuses_a_status_it_cannot_change(run_cli):
    result = run_cli("jobs", "cancel", "--status", "SUCCEEDED", "--yes")

    assert result.exit_code == 2
    assert "jobs that are SUCCEEDED cannot be canceled" in result.stderr


def test_bulk_verb_that_chooses_nothing_succeeds(run_cli):
    result = run_cli("jobs", "requeue", "--status", "DEAD_LETTERED")

    assert (result.exit_code, result.stdout) == (0, "0 jobs requeued\n")
