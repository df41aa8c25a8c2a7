from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from runledger_core import JobScheduleUpsert, ValidationError
from runledger_runtime.catalog import (
    CatalogJobScheduleSpec,
    JobCatalog,
    JobCatalogDefaults,
    JobCatalogDefinitionOverrides,
    JobCatalogScheduleSyncScope,
)
from runledger_runtime.errors import CatalogError

HOURLY = "0 0 * * * *"
EVERY_FIELD = {
    "cron_expr": HOURLY,
    "payload_template": {"full": [True]},
    "is_active": False,
    "organization_id": UUID(int=1),
    "max_jitter_seconds": 86_400,
    "next_fire_at": datetime(2030, 1, 1, tzinfo=UTC),
}


def handle(context, payload):
    return None


def spec(name="hourly", job_type="jobs.one", **fields):
    return CatalogJobScheduleSpec(name, job_type, **{"cron_expr": HOURLY, **fields})


@pytest.fixture
def catalog():
    return JobCatalog().job("jobs.one", handle).job("jobs.off", handle, enabled=False)


def refused(call, *arguments, **keywords):
    with pytest.raises(CatalogError) as caught:
        call(*arguments, **keywords)
    assert isinstance(caught.value, ValidationError)
    return caught.value


def refusal(call, *arguments, **keywords):
    error = refused(call, *arguments, **keywords)
    return error.code, error.field


def names(catalog):
    return catalog.schedule_sync_scope().names


def test_a_spec_asks_for_an_active_schedule_with_an_empty_payload_and_no_jitter():
    assert spec().upsert == JobScheduleUpsert(
        "hourly",
        "jobs.one",
        cron_expr=HOURLY,
        payload_template={},
        is_active=True,
        organization_id=None,
        max_jitter_seconds=0,
        next_fire_at=None,
    )


def test_a_spec_forwards_every_field():
    made = spec(**EVERY_FIELD).upsert

    assert made == JobScheduleUpsert("hourly", "jobs.one", **EVERY_FIELD)
    assert {name: getattr(made, name) for name in EVERY_FIELD} == EVERY_FIELD


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": " "}, "name"),
        ({"name": " hourly"}, "name"),
        ({"name": "hourly\n"}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": None}, "name"),
        ({"job_type": " "}, "job_type"),
        ({"cron_expr": ""}, "cron_expr"),
        ({"cron_expr": f" {HOURLY}"}, "cron_expr"),
        ({"cron_expr": f"{HOURLY} "}, "cron_expr"),
        ({"cron_expr": "0 0 * * * 2"}, "cron_expr"),
        ({"cron_expr": "every hour"}, "cron_expr"),
        ({"cron_expr": "0 0 0 31 2 *"}, "cron_expr"),
        ({"max_jitter_seconds": -1}, "max_jitter_seconds"),
        ({"max_jitter_seconds": 86_401}, "max_jitter_seconds"),
        ({"max_jitter_seconds": 1.5}, "max_jitter_seconds"),
        ({"is_active": 1}, "is_active"),
        ({"organization_id": "00000000-0000-0000-0000-000000000001"}, "organization_id"),
        ({"next_fire_at": datetime(2030, 1, 1)}, "next_fire_at"),  # noqa: DTZ001  # the mistake
        ({"payload_template": {"at": {1}}}, "payload_template.at"),
    ],
)
def test_a_shape_that_no_schedule_can_have_is_refused_with_its_field(fields, field):
    assert refusal(spec, **fields) == ("catalog.invalid_schedule_spec", field)


def test_a_refused_spec_names_its_schedule_but_no_name_that_cannot_be():
    assert refused(spec, "nightly", max_jitter_seconds=-1).client_message.startswith(
        "schedule nightly: "
    )
    assert "\x1b" not in str(refused(spec, "\x1b[2J "))


def test_the_next_fire_is_kept_in_utc():
    berlin = timezone(timedelta(hours=1))

    made = spec(next_fire_at=datetime(2030, 1, 1, 1, tzinfo=berlin)).upsert

    assert made.next_fire_at == datetime(2030, 1, 1, tzinfo=UTC)


def test_schedule_returns_the_catalog(catalog):
    assert catalog.schedule(spec()) is catalog
    assert names(catalog) == {"hourly"}


def test_a_schedule_needs_a_job_that_was_added_before():
    catalog = JobCatalog()

    assert refusal(catalog.schedule, spec()) == ("catalog.unknown_job_type", "job_type")
    assert names(catalog.job("jobs.one", handle).schedule(spec())) == {"hourly"}


@pytest.mark.parametrize("is_active", [True, False])
def test_a_schedule_needs_a_job_that_the_catalog_enables(catalog, is_active):
    error = refused(catalog.schedule, spec("nightly", "jobs.off", is_active=is_active))

    assert (error.code, error.field) == ("catalog.disabled_job_type", "job_type")
    assert error.client_message == "schedule nightly: the catalog disables jobs.off"


def test_a_second_schedule_of_a_name_is_refused(catalog):
    catalog.schedule(spec()).job("jobs.two", handle)

    assert refusal(catalog.schedule, spec("hourly", "jobs.two")) == (
        "catalog.duplicate_schedule_name",
        "name",
    )


def test_what_is_no_spec_is_refused(catalog):
    upsert = spec().upsert

    assert refusal(catalog.schedule, upsert) == ("catalog.invalid_schedule_spec", "spec")
    assert refusal(catalog.schedule, None) == ("catalog.invalid_schedule_spec", "spec")
    error = refused(catalog.sync_schedules_with, None, [spec("nightly"), upsert])
    assert (error.code, error.entry_index) == ("catalog.invalid_schedule_spec", 1)


@pytest.mark.parametrize("specs", [None, 5])
def test_a_sync_refuses_what_is_no_list_of_specs_before_sql(catalog, specs):
    expected = ("catalog.invalid_schedule_spec", "specs")
    scope = JobCatalogScheduleSyncScope(["hourly"])

    assert refusal(catalog.sync_schedules_with, None, specs) == expected
    assert refusal(catalog.sync_schedules_exact_with, None, scope, specs) == expected


@pytest.mark.parametrize("scope", [None, ["hourly"], "hourly"])
def test_an_exact_sync_refuses_what_is_no_scope_before_sql(catalog, scope):
    expected = ("catalog.invalid_exact_schedule_sync_scope", "scope")

    assert refusal(catalog.sync_schedules_exact, None, scope) == expected
    assert refusal(catalog.sync_schedules_exact_with, None, scope, [spec()]) == expected


def test_a_frozen_catalog_takes_no_schedule(catalog):
    catalog.schedule(spec())

    catalog.freeze()

    assert refusal(catalog.schedule, spec("nightly"))[0] == "catalog.frozen"
    assert names(catalog) == {"hourly"}
    assert catalog.job_schedule("other", "jobs.one", cron_expr=HOURLY).name == "other"


def test_schedules_reach_no_registry(catalog):
    catalog.schedule(spec())

    assert catalog.to_registry().registered_types() == ["jobs.off", "jobs.one"]


def test_the_scope_of_a_catalog_is_the_names_of_its_schedules(catalog):
    catalog.schedule(spec("b")).schedule(spec("a", is_active=False))

    assert names(catalog) == {"a", "b"}


def test_a_catalog_without_schedules_has_no_scope(catalog):
    assert refusal(catalog.schedule_sync_scope)[0] == "catalog.invalid_exact_schedule_sync_scope"


@pytest.mark.parametrize("given", [[], (), "hourly", None, 5])
def test_a_schedule_scope_needs_names(given):
    assert refusal(JobCatalogScheduleSyncScope, given) == (
        "catalog.invalid_exact_schedule_sync_scope",
        "names",
    )


@pytest.mark.parametrize("name", ["", " ", " hourly", "hourly\t", "x" * 201, "\0", None])
def test_a_schedule_scope_of_names_that_cannot_be_is_refused(name):
    assert refusal(JobCatalogScheduleSyncScope, ["nightly", name]) == (
        "catalog.invalid_exact_schedule_sync_scope_name",
        "names",
    )


def test_a_schedule_scope_refuses_a_name_given_twice():
    assert refusal(JobCatalogScheduleSyncScope, ["a", "b", "a"]) == (
        "catalog.duplicate_exact_schedule_sync_scope_name",
        "names",
    )


def test_a_schedule_scope_shows_its_names_sorted():
    scope = JobCatalogScheduleSyncScope(iter(["b", "a"]))

    assert scope.names == {"a", "b"}
    assert repr(scope) == "JobCatalogScheduleSyncScope(['a', 'b'])"


def test_a_sync_of_no_schedule_needs_no_database(catalog):
    assert catalog.sync_schedules(None).synced == ()
    assert catalog.sync_schedules_with(None, []).synced == ()
    # Those of the catalog are not meant.
    assert catalog.schedule(spec()).sync_schedules_with(None, iter([])).synced == ()


def test_a_sync_refuses_specs_of_jobs_it_cannot_have_without_a_database(catalog):
    scope = JobCatalogScheduleSyncScope(["hourly", "nightly"])

    for job_type, code in (
        ("jobs.two", "catalog.unknown_job_type"),
        ("jobs.off", "catalog.disabled_job_type"),
    ):
        specs = [spec(), spec("nightly", job_type)]
        for error in (
            refused(catalog.sync_schedules_with, None, specs),
            refused(catalog.sync_schedules_exact_with, None, scope, specs),
        ):
            assert (error.code, error.field, error.entry_index) == (code, "job_type", 1)
            assert error.client_message.startswith("schedule nightly: ")


def test_a_sync_refuses_a_name_given_twice_without_a_database(catalog):
    specs = [spec(), spec("nightly"), spec(max_jitter_seconds=1)]
    scope = JobCatalogScheduleSyncScope(["hourly", "nightly"])

    for error in (
        refused(catalog.sync_schedules_with, None, specs),
        refused(catalog.sync_schedules_exact_with, None, scope, specs),
    ):
        assert error.code == "catalog.duplicate_schedule_name_in_sync_batch"
        assert (error.field, error.entry_index) == ("name", 2)


def test_a_job_disabled_after_its_schedule_was_added_is_found_by_the_sync(catalog):
    catalog.schedule(spec())
    scope = catalog.schedule_sync_scope()

    catalog.definition_overrides("jobs.one", JobCatalogDefinitionOverrides(enabled=False))

    assert refusal(catalog.sync_schedules, None)[0] == "catalog.disabled_job_type"
    assert refusal(catalog.sync_schedules_exact, None, scope)[0] == "catalog.disabled_job_type"
    catalog.definition_overrides("jobs.one", JobCatalogDefinitionOverrides())
    catalog.defaults(JobCatalogDefaults(enabled=False))
    assert refusal(catalog.sync_schedules_exact, None, scope)[0] == ("catalog.disabled_job_type")


def test_an_exact_sync_of_schedules_outside_the_scope_is_refused_without_a_database(catalog):
    catalog.schedule(spec()).schedule(spec("nightly")).schedule(spec("daily"))
    scope = JobCatalogScheduleSyncScope(["hourly"])

    error = refused(catalog.sync_schedules_exact, None, scope)

    assert error.code == "catalog.schedule_name_outside_exact_sync_scope"
    assert (error.field, error.client_message) == (
        "scope",
        "the scope does not name daily, nightly",
    )
    assert refusal(catalog.sync_schedules_exact_with, None, scope, [spec("daily")])[0] == (
        "catalog.schedule_name_outside_exact_sync_scope"
    )


def test_job_schedule_forwards_every_field(catalog):
    assert catalog.job_schedule("hourly", "jobs.one", **EVERY_FIELD) == JobScheduleUpsert(
        "hourly", "jobs.one", **EVERY_FIELD
    )


def test_job_schedule_has_the_defaults_of_an_upsert(catalog):
    assert catalog.job_schedule("hourly", "jobs.one", cron_expr=HOURLY) == JobScheduleUpsert(
        "hourly", "jobs.one", cron_expr=HOURLY
    )


def test_job_schedule_needs_a_job_that_the_catalog_enables(catalog):
    def code(job_type):
        return refusal(catalog.job_schedule, "hourly", job_type, cron_expr=HOURLY)[0]

    assert code("jobs.two") == "catalog.unknown_job_type"
    assert code("jobs.off") == "catalog.disabled_job_type"


def test_job_schedule_adds_nothing_to_the_catalog(catalog):
    catalog.job_schedule("hourly", "jobs.one", cron_expr=HOURLY)

    assert refusal(catalog.schedule_sync_scope)[0] == "catalog.invalid_exact_schedule_sync_scope"


def test_job_schedule_of_a_shape_that_cannot_be_is_refused_as_by_the_storage(catalog):
    with pytest.raises(ValidationError) as caught:
        catalog.job_schedule("hourly", "jobs.one", cron_expr="never")

    assert caught.value.code == "job_schedule.invalid_cron"
