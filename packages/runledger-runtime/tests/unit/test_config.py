import re
from dataclasses import replace
from uuid import UUID

import pytest

from runledger_core import ErrorCategory, ValidationError
from runledger_runtime.config import JobsConfig, instance_worker_id
from runledger_runtime.errors import JobsConfigError


def test_defaults():
    config = JobsConfig("me")

    assert config == JobsConfig(
        worker_id="me",
        poll_interval_ms=500,
        claim_batch_size=100,
        lease_ttl_seconds=60,
        max_global_concurrency=32,
        reaper_interval_seconds=15,
        schedule_poll_interval_seconds=30,
        reaper_retry_delay_ms=30_000,
        wakeups=True,
        direct_database_url=None,
        handler_grace_seconds=5,
        max_stuck_handlers=8,
    )
    config.validate()


def test_an_empty_environment_gives_the_defaults():
    config = JobsConfig.from_env({})

    assert replace(config, worker_id="me") == JobsConfig("me")


def test_the_process_environment_is_read_by_default(monkeypatch):
    monkeypatch.setenv("JOBS_POLL_INTERVAL_MS", "7")

    assert JobsConfig.from_env().poll_interval_ms == 7


def test_default_worker_id_is_a_new_uuid_of_version_7():
    first, second = JobsConfig().worker_id, JobsConfig().worker_id

    assert first != second
    for worker_id in (first, second):
        identity = UUID(worker_id.removeprefix("worker-"))
        assert worker_id == f"worker-{identity}"
        assert identity.version == 7
        assert identity.variant == "specified in RFC 4122"


def test_every_variable_is_read():
    config = JobsConfig.from_env(
        {
            "JOBS_WORKER_ID": " blue ",
            "JOBS_POLL_INTERVAL_MS": "250",
            "JOBS_CLAIM_BATCH_SIZE": "+12",
            "JOBS_LEASE_TTL_SECONDS": "90",
            "JOBS_MAX_GLOBAL_CONCURRENCY": "4",
            "JOBS_REAPER_INTERVAL_SECONDS": "20",
            "JOBS_SCHEDULE_POLL_INTERVAL_SECONDS": "40",
            "JOBS_REAPER_RETRY_DELAY_MS": "5000",
            "JOBS_WAKEUPS": "Off",
            "JOBS_DIRECT_DATABASE_URL": "postgresql://direct/app",
        }
    )

    assert config == JobsConfig(
        "blue",
        poll_interval_ms=250,
        claim_batch_size=12,
        lease_ttl_seconds=90,
        max_global_concurrency=4,
        reaper_interval_seconds=20,
        schedule_poll_interval_seconds=40,
        reaper_retry_delay_ms=5_000,
        wakeups=False,
        direct_database_url="postgresql://direct/app",
    )


CLAMPED = [
    ("JOBS_POLL_INTERVAL_MS", "poll_interval_ms", 1, 2**31 - 1),
    ("JOBS_CLAIM_BATCH_SIZE", "claim_batch_size", 1, 1_000),
    ("JOBS_LEASE_TTL_SECONDS", "lease_ttl_seconds", 10, 2**31 - 1),
    ("JOBS_MAX_GLOBAL_CONCURRENCY", "max_global_concurrency", 1, 2**31 - 1),
    ("JOBS_REAPER_INTERVAL_SECONDS", "reaper_interval_seconds", 1, 2**31 - 1),
    ("JOBS_SCHEDULE_POLL_INTERVAL_SECONDS", "schedule_poll_interval_seconds", 1, 2**31 - 1),
    ("JOBS_REAPER_RETRY_DELAY_MS", "reaper_retry_delay_ms", 1_000, 2**31 - 1),
]


@pytest.mark.parametrize(("variable", "field", "lowest", "highest"), CLAMPED)
@pytest.mark.parametrize("text", ["0", "-5", "-" + "9" * 5_000])
def test_too_small_values_are_moved_to_the_bound(variable, field, lowest, highest, text):
    config = JobsConfig.from_env({variable: text})

    assert getattr(config, field) == lowest
    config.validate()


@pytest.mark.parametrize(("variable", "field", "lowest", "highest"), CLAMPED)
@pytest.mark.parametrize("text", ["9999999999", "9" * 5_000])
def test_too_large_values_are_moved_to_the_bound(variable, field, lowest, highest, text):
    config = JobsConfig.from_env({variable: text})

    assert getattr(config, field) == highest
    config.validate()


@pytest.mark.parametrize(
    "variable", [*(case[0] for case in CLAMPED), "JOBS_WAKEUPS", "JOBS_DIRECT_DATABASE_URL"]
)
@pytest.mark.parametrize("text", ["", "  \t"])
def test_blank_variables_have_their_default(variable, text):
    assert JobsConfig.from_env({variable: text, "JOBS_WORKER_ID": "me"}) == JobsConfig("me")


@pytest.mark.parametrize("text", ["", "   "])
def test_a_blank_worker_id_is_generated(text):
    assert JobsConfig.from_env({"JOBS_WORKER_ID": text}).worker_id.startswith("worker-")


@pytest.mark.parametrize("variable", [case[0] for case in CLAMPED])
@pytest.mark.parametrize("text", ["abc", "1.5", "1_000", "0x10", "5s", "\u0665", "- 5", "1e3"])
def test_unparsable_text_is_an_error_that_names_the_variable(variable, text):
    with pytest.raises(JobsConfigError) as caught:
        JobsConfig.from_env({variable: text})

    assert caught.value.code == "config.unparsable_variable"
    assert caught.value.field == variable
    assert str(caught.value) == f"config.unparsable_variable: {variable} must be an integer"


def test_an_unparsable_switch_is_an_error_that_names_the_variable():
    with pytest.raises(JobsConfigError) as caught:
        JobsConfig.from_env({"JOBS_WAKEUPS": "yes"})

    assert caught.value.code == "config.unparsable_variable"
    assert caught.value.field == "JOBS_WAKEUPS"


@pytest.mark.parametrize("text", ["x" * 201, "a\0b", "\udcff"])
def test_an_unusable_worker_id_in_the_environment_names_the_variable(text):
    with pytest.raises(JobsConfigError) as caught:
        JobsConfig.from_env({"JOBS_WORKER_ID": text})

    assert caught.value.code == "config.invalid_value"
    assert caught.value.field == "JOBS_WORKER_ID"


WORKER = [
    ("worker_id", "", "config.empty_worker_id"),
    ("worker_id", " \t\u3000", "config.empty_worker_id"),
    ("worker_id", "x" * 201, "config.invalid_value"),
    ("worker_id", "a\0", "config.invalid_value"),
    ("worker_id", None, "config.invalid_value"),
    ("poll_interval_ms", 0, "config.zero_poll_interval"),
    ("poll_interval_ms", -1, "config.zero_poll_interval"),
    ("poll_interval_ms", 2**31, "config.invalid_value"),
    ("poll_interval_ms", 0.5, "config.invalid_value"),
    ("lease_ttl_seconds", 0, "config.invalid_lease_ttl_seconds"),
    ("max_global_concurrency", 0, "config.invalid_max_global_concurrency"),
    ("max_global_concurrency", True, "config.invalid_value"),
    ("handler_grace_seconds", -1, "config.invalid_handler_grace_seconds"),
    ("max_stuck_handlers", -1, "config.invalid_max_stuck_handlers"),
    ("wakeups", 1, "config.invalid_value"),
    ("direct_database_url", " ", "config.invalid_value"),
    ("direct_database_url", 5, "config.invalid_value"),
]
SHARED = [
    ("claim_batch_size", 0, "config.invalid_claim_batch_size"),
    ("claim_batch_size", 1_001, "config.invalid_claim_batch_size"),
    ("claim_batch_size", "5", "config.invalid_value"),
]
REAPER = [
    ("reaper_interval_seconds", 0, "config.zero_reaper_interval"),
    ("reaper_retry_delay_ms", 0, "config.invalid_reaper_retry_delay_ms"),
]
SCHEDULER = [("schedule_poll_interval_seconds", 0, "config.zero_schedule_poll_interval")]

VALIDATIONS = {
    "validate_worker": [*WORKER, *SHARED],
    "validate_reaper": [*REAPER, *SHARED],
    "validate_scheduler": [*SCHEDULER, *SHARED],
    "validate": [*WORKER, *SHARED, *REAPER, *SCHEDULER],
}


@pytest.mark.parametrize(
    ("method", "field", "value", "code"),
    [(method, *case) for method, cases in VALIDATIONS.items() for case in cases],
)
def test_a_value_that_cannot_be_used_is_refused(method, field, value, code):
    config = replace(JobsConfig(), **{field: value})

    with pytest.raises(JobsConfigError) as caught:
        getattr(config, method)()

    assert caught.value.code == code
    assert caught.value.field == field
    assert caught.value.category is ErrorCategory.VALIDATION
    assert isinstance(caught.value, ValidationError)


@pytest.mark.parametrize(
    ("method", "foreign"),
    [
        ("validate_worker", [*REAPER, *SCHEDULER]),
        ("validate_reaper", [*WORKER, *SCHEDULER]),
        ("validate_scheduler", [*WORKER, *REAPER]),
    ],
)
def test_a_loop_refuses_only_what_it_uses(method, foreign):
    for field, value, _ in foreign:
        getattr(replace(JobsConfig(), **{field: value}), method)()


def test_the_smallest_direct_values_are_accepted():
    JobsConfig(
        "w",
        poll_interval_ms=1,
        claim_batch_size=1,
        lease_ttl_seconds=1,
        max_global_concurrency=1,
        reaper_interval_seconds=1,
        schedule_poll_interval_seconds=1,
        reaper_retry_delay_ms=1,
        handler_grace_seconds=0,
        max_stuck_handlers=0,
    ).validate()


def test_an_instance_appends_eight_digits_of_its_own():
    config = JobsConfig("blue")

    first, second = instance_worker_id(config), instance_worker_id(config)

    assert re.fullmatch(r"blue:[0-9a-f]{8}", first)
    assert first != second


def test_an_instance_of_a_long_worker_id_keeps_the_limit():
    assert re.fullmatch(r"x{191}:[0-9a-f]{8}", instance_worker_id(JobsConfig("x" * 200)))


def test_a_password_is_not_shown():
    config = JobsConfig(direct_database_url="postgresql://u:secret@direct/app")

    assert "secret" not in repr(config)
