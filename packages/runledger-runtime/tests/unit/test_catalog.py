from datetime import UTC, datetime
from uuid import UUID

import pytest

from runledger_core import JobDefinitionSpec, JobEnqueue, JobStage, ValidationError
from runledger_runtime.backoff import DEFAULT_BACKOFF, FixedBackoff
from runledger_runtime.catalog import (
    JobCatalog,
    JobCatalogDefaults,
    JobCatalogDefinitionOverrides,
    JobCatalogSyncScope,
)
from runledger_runtime.errors import CatalogError


def handle(context, payload):
    return None


class Handler:
    def __init__(self, job_type="jobs.one"):
        self.job_type = job_type

    def execute(self, context, payload):
        return None

    def on_dead_letter(self, context, payload, info):
        return None


@pytest.fixture
def catalog():
    return JobCatalog().job("jobs.one", handle)


def refusal(call, *arguments, **keywords):
    with pytest.raises(CatalogError) as caught:
        call(*arguments, **keywords)
    assert isinstance(caught.value, ValidationError)
    return caught.value.code, caught.value.field


def executed(catalog):
    registered = catalog.to_registry().get("jobs.one")
    assert registered is not None
    return registered.execute


def test_job_with_a_handler_returns_the_catalog():
    catalog = JobCatalog()

    assert catalog.job("jobs.one", handle).job("jobs.two", Handler("jobs.two")) is catalog
    assert catalog.contains("jobs.one")
    assert catalog.contains("jobs.two")
    assert not catalog.contains("jobs.three")
    assert not catalog.contains([])  # pyright: ignore[reportArgumentType]  # the mistake


def test_job_without_a_handler_decorates_and_leaves_the_function_as_it_is():
    catalog = JobCatalog()

    @catalog.job("jobs.one", max_attempts=5)
    def double(context, payload):
        return payload * 2

    assert double(None, 4) == 8
    assert executed(catalog) is double
    assert catalog.definitions() == [JobDefinitionSpec("jobs.one", max_attempts=5)]


def test_one_function_can_run_two_types():
    catalog = JobCatalog()

    @catalog.job("jobs.one")
    @catalog.job("jobs.two")
    def run(context, payload):
        return None

    assert catalog.to_registry().registered_types() == ["jobs.one", "jobs.two"]


@pytest.mark.parametrize("job_type", ["", " ", "x" * 201, None, handle])
def test_a_type_that_cannot_be_stored_is_refused(job_type):
    expected = ("catalog.invalid_job_type", "job_type")

    assert refusal(JobCatalog().job, job_type, handle) == expected
    assert refusal(JobCatalog().job, job_type) == expected


def test_an_object_with_a_blank_type_is_refused():
    code, _ = refusal(JobCatalog().job, "jobs.one", Handler(" "))

    assert code == "catalog.invalid_handler_job_type"


def test_an_object_for_another_type_is_refused():
    code, _ = refusal(JobCatalog().job, "jobs.one", Handler("jobs.two"))

    assert code == "catalog.handler_job_type_mismatch"


def test_a_second_job_of_a_type_is_refused(catalog):
    code, _ = refusal(catalog.job, "jobs.one", Handler())

    assert code == "catalog.duplicate_job_type"
    assert executed(catalog) is handle


def test_an_async_handler_is_taken_and_stays_what_it_is():
    async def run(context, payload):
        return None

    catalog = JobCatalog()

    assert catalog.job("jobs.one")(run) is run
    handler = catalog.to_registry().get("jobs.one")
    assert handler is not None
    assert handler.is_async


@pytest.mark.parametrize("handler", [Handler, lambda: None, 5])
def test_what_cannot_run_a_job_is_refused(handler):
    assert refusal(JobCatalog().job, "jobs.one", handler)[0] == "catalog.invalid_handler"


def test_a_job_has_the_defaults(catalog):
    assert catalog.definitions() == [
        JobDefinitionSpec(
            "jobs.one",
            version=1,
            max_attempts=3,
            default_timeout_seconds=300,
            default_priority=0,
            is_enabled=True,
        )
    ]


def test_later_defaults_apply_to_earlier_jobs(catalog):
    defaults = JobCatalogDefaults(
        max_attempts=7, timeout_seconds=8, priority=-9, version=2, enabled=False
    )

    assert catalog.defaults(defaults) is catalog

    assert catalog.definitions() == [
        JobDefinitionSpec(
            "jobs.one",
            version=2,
            max_attempts=7,
            default_timeout_seconds=8,
            default_priority=-9,
            is_enabled=False,
        )
    ]


def test_overrides_win_over_the_defaults_for_what_they_set():
    catalog = JobCatalog().defaults(JobCatalogDefaults(timeout_seconds=8, enabled=False))

    catalog.job("jobs.one", handle, max_attempts=4, priority=0, version=3, enabled=True)
    catalog.job("jobs.two", handle, timeout_seconds=90)

    assert catalog.definitions() == [
        JobDefinitionSpec(
            "jobs.one", version=3, max_attempts=4, default_timeout_seconds=8, is_enabled=True
        ),
        JobDefinitionSpec("jobs.two", default_timeout_seconds=90, is_enabled=False),
    ]


def test_definition_overrides_replace_earlier_ones():
    catalog = JobCatalog().job("jobs.one", handle, max_attempts=9, priority=5)

    catalog.definition_overrides("jobs.one", JobCatalogDefinitionOverrides(priority=-5))

    assert catalog.definitions() == [JobDefinitionSpec("jobs.one", default_priority=-5)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 0),
        ("version", "1"),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", True),
        ("max_attempts", 2**31),
        ("timeout_seconds", 0),
        ("timeout_seconds", 1.5),
        ("priority", 2**31),
        ("priority", None),
        ("enabled", 1),
        ("enabled", None),
    ],
)
def test_a_value_that_no_definition_can_have_is_refused(catalog, name, value):
    assert refusal(JobCatalogDefaults, **{name: value}) == (
        "catalog.invalid_definition_value",
        name,
    )
    if value is not None:
        expected = ("catalog.invalid_job_definition_value", name)
        overrides = JobCatalogDefinitionOverrides(**{name: value})
        assert refusal(catalog.job, "jobs.two", handle, **{name: value}) == expected
        assert refusal(catalog.definition_overrides, "jobs.one", overrides) == expected
        assert not catalog.contains("jobs.two")


@pytest.mark.parametrize("given", [None, {"max_attempts": 2}, JobCatalogDefinitionOverrides()])
def test_what_are_no_defaults_is_refused_and_changes_nothing(catalog, given):
    expected = ("catalog.invalid_definition_value", "defaults")

    assert refusal(catalog.defaults, given) == expected
    assert catalog.definitions() == [JobDefinitionSpec("jobs.one")]


@pytest.mark.parametrize("given", [None, {"enabled": False}, JobCatalogDefaults()])
def test_what_are_no_overrides_is_refused_and_changes_nothing(catalog, given):
    expected = ("catalog.invalid_job_definition_value", "overrides")

    assert refusal(catalog.definition_overrides, "jobs.one", given) == expected
    assert catalog.definitions() == [JobDefinitionSpec("jobs.one")]


def test_priority_may_be_any_integer(catalog):
    catalog.job("jobs.low", handle, priority=-(2**31))
    catalog.job("jobs.high", handle, priority=2**31 - 1)

    assert [spec.default_priority for spec in catalog.definitions()] == [2**31 - 1, -(2**31), 0]


def test_overrides_of_an_unknown_job_are_refused_before_their_values(catalog):
    overrides = JobCatalogDefinitionOverrides(max_attempts=0)

    code, _ = refusal(catalog.definition_overrides, "jobs.two", overrides)

    assert code == "catalog.unknown_job_type"


def test_retry_delays_reach_the_registry(catalog):
    assert catalog.retry_delay_override("jobs.one", "rate_limited", 90_000) is catalog

    registry = catalog.to_registry()
    assert registry.retry_delay_override("jobs.one", "rate_limited") == 90_000
    assert registry.retry_delay_override("jobs.one", "other") is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("jobs.two", " ", 0), "catalog.unknown_job_type"),
        (("jobs.one", " ", 0), "catalog.invalid_failure_code"),
        (("jobs.one", "code", 0), "catalog.invalid_retry_delay"),
    ],
)
def test_a_retry_delay_that_cannot_be_is_refused(catalog, arguments, code):
    assert refusal(catalog.retry_delay_override, *arguments)[0] == code


def test_backoff_policies_reach_the_registry(catalog):
    first, second = FixedBackoff(5_000), FixedBackoff(7_000)
    catalog.job("jobs.two", handle, backoff=first)

    @catalog.job("jobs.three", backoff=second)
    def run(context, payload):
        return None

    registry = catalog.to_registry()
    assert registry.backoff("jobs.one") is DEFAULT_BACKOFF
    assert registry.backoff("jobs.two") is first
    assert registry.backoff("jobs.three") is second


@pytest.mark.parametrize("backoff", [5_000, FixedBackoff, lambda attempt: 5_000])
def test_what_is_no_backoff_policy_is_refused(backoff):
    catalog = JobCatalog()

    expected = ("catalog.invalid_backoff", "backoff")
    assert refusal(catalog.job, "jobs.one", handle, backoff=backoff) == expected
    assert refusal(catalog.job("jobs.one", backoff=backoff), handle) == expected
    assert not catalog.contains("jobs.one")


def test_the_registry_has_disabled_jobs_too():
    catalog = JobCatalog().job("jobs.one", Handler(), enabled=False)

    registered = catalog.to_registry().get("jobs.one")

    assert registered is not None
    assert registered.on_dead_letter is not None


def test_each_registry_is_another(catalog):
    first = catalog.to_registry()
    catalog.job("jobs.two", handle)

    assert first.registered_types() == ["jobs.one"]
    assert catalog.to_registry().registered_types() == ["jobs.one", "jobs.two"]


def test_required_types_are_returned(catalog):
    assert catalog.require_job_type("jobs.one") == "jobs.one"
    assert catalog.require_catalog_enabled_job_type("jobs.one") == "jobs.one"


def test_unknown_and_disabled_types_are_told_apart(catalog):
    catalog.job("jobs.off", handle, enabled=False)

    for require in (catalog.require_job_type, catalog.require_catalog_enabled_job_type):
        for job_type in ("jobs.two", None, [], {}):
            assert refusal(require, job_type) == ("catalog.unknown_job_type", "job_type")
    assert catalog.require_job_type("jobs.off") == "jobs.off"
    assert refusal(catalog.require_catalog_enabled_job_type, "jobs.off") == (
        "catalog.disabled_job_type",
        "job_type",
    )


def test_disabled_defaults_disable_jobs_without_an_override(catalog):
    catalog.job("jobs.on", handle, enabled=True).defaults(JobCatalogDefaults(enabled=False))

    assert refusal(catalog.require_catalog_enabled_job_type, "jobs.one")[0] == (
        "catalog.disabled_job_type"
    )
    assert catalog.require_catalog_enabled_job_type("jobs.on") == "jobs.on"


def test_job_enqueue_forwards_every_field(catalog):
    fields = {
        "organization_id": UUID(int=1),
        "priority": 5,
        "max_attempts": 6,
        "timeout_seconds": 7,
        "next_run_at": datetime(2030, 1, 1, tzinfo=UTC),
        "idempotency_key": "order:17",
        "stage": JobStage.SCHEDULED,
    }

    request = catalog.job_enqueue("jobs.one", {"to": "a"}, **fields)

    assert request == JobEnqueue("jobs.one", {"to": "a"}, **fields)


def test_job_enqueue_needs_a_job_that_the_catalog_enables(catalog):
    catalog.job("jobs.off", handle, enabled=False)

    assert refusal(catalog.job_enqueue, "jobs.two", {})[0] == "catalog.unknown_job_type"
    assert refusal(catalog.job_enqueue, "jobs.off", {})[0] == "catalog.disabled_job_type"


def test_a_frozen_catalog_refuses_changes(catalog):
    assert not catalog.frozen

    catalog.freeze()

    assert catalog.frozen
    changes = [
        (catalog.job, "jobs.two", handle),
        (catalog.job("jobs.two"), handle),
        (catalog.defaults, JobCatalogDefaults()),
        (catalog.definition_overrides, "jobs.one", JobCatalogDefinitionOverrides()),
        (catalog.retry_delay_override, "jobs.one", "code", 1),
    ]
    for call, *arguments in changes:
        assert refusal(call, *arguments)[0] == "catalog.frozen"
    assert catalog.to_registry().registered_types() == ["jobs.one"]
    assert catalog.job_enqueue("jobs.one", {}).job_type == "jobs.one"


@pytest.mark.parametrize("scope", [None, ["jobs.one"], "jobs.one"])
def test_an_exact_sync_refuses_what_is_no_scope_before_sql(catalog, scope):
    expected = ("catalog.invalid_exact_sync_scope", "scope")

    assert refusal(catalog.sync_definitions_exact, None, scope) == expected


@pytest.mark.parametrize("job_types", [[], (), "jobs.one", None, 5])
def test_a_scope_needs_types(job_types):
    assert refusal(JobCatalogSyncScope, job_types)[0] == "catalog.invalid_exact_sync_scope"


@pytest.mark.parametrize("job_type", ["", " ", None])
def test_a_scope_of_types_that_cannot_be_is_refused(job_type):
    code, _ = refusal(JobCatalogSyncScope, ["jobs.one", job_type])

    assert code == "catalog.invalid_exact_sync_scope_job_type"


def test_a_scope_keeps_each_type_once():
    scope = JobCatalogSyncScope(iter(["b", "a", "b"]))

    assert scope.job_types == {"a", "b"}
    assert repr(scope) == "JobCatalogSyncScope(['a', 'b'])"


def test_an_exact_sync_of_no_job_is_refused_without_a_database():
    code, _ = refusal(JobCatalog().sync_definitions_exact, None, JobCatalogSyncScope(["jobs.one"]))

    assert code == "catalog.empty_exact_sync_catalog"


def test_an_exact_sync_of_a_job_outside_the_scope_is_refused_without_a_database(catalog):
    code, _ = refusal(catalog.sync_definitions_exact, None, JobCatalogSyncScope(["jobs.two"]))

    assert code == "catalog.job_type_outside_exact_sync_scope"


def test_decorator_without_parentheses_is_refused_at_once():
    catalog = JobCatalog()

    with pytest.raises(CatalogError) as refused:
        catalog.job(handle)  # pyright: ignore[reportCallIssue, reportArgumentType]  # the mistake

    assert (refused.value.code, refused.value.field) == ("catalog.invalid_job_type", "job_type")
