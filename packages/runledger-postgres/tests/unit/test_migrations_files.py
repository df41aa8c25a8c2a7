from __future__ import annotations

import pickle

import pytest

from runledger_core import ErrorCategory
from runledger_postgres.errors import QueryError
from runledger_postgres.migrations import (
    LegacyIdempotencySnapshotsMissingError,
    SchemaCompatibilityError,
    migration_script,
)
from runledger_postgres.migrations import _files as files_module
from runledger_postgres.migrations._files import Migration, bundled_migrations
from runledger_postgres.migrations._history import (
    AppliedMigration,
    pending_migrations,
    require_supported_server,
)

FIRST = Migration(202601010001, "202601010001_first", sql=b"SELECT 1", sha256="aa")
SECOND = Migration(202601010002, "202601010002_second", sql=b"SELECT 2", sha256="bb")


class FakeFolder:
    def __init__(self, entries: dict[str, bytes] | None) -> None:
        self.entries = entries

    def joinpath(self, name: str) -> FakeFolder:
        return self

    def is_dir(self) -> bool:
        return self.entries is not None

    def iterdir(self) -> list[FakeFile]:
        return [FakeFile(name, text) for name, text in (self.entries or {}).items()]


class FakeFile:
    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        self.text = text

    def read_bytes(self) -> bytes:
        return self.text


def read_from(monkeypatch: pytest.MonkeyPatch, entries: dict[str, bytes] | None) -> None:
    monkeypatch.setattr(files_module, "files", lambda _package: FakeFolder(entries))


def test_files_come_in_the_order_of_their_versions():
    names = [migration.name for migration in bundled_migrations()]

    assert names[:2] == [
        "202603280001_runledger_baseline",
        "202604100001_runledger_migration_history",
    ]
    assert names == sorted(names)


def test_files_are_plain_ascii_so_that_no_client_encoding_changes_them():
    assert [m.name for m in bundled_migrations() if not m.sql.isascii()] == []


def test_line_endings_of_a_checkout_do_not_change_the_hash(monkeypatch: pytest.MonkeyPatch):
    hashes = set[str]()
    for text in (b"SELECT 1;\nSELECT 2;\n", b"SELECT 1;\r\nSELECT 2;\r\n"):
        read_from(monkeypatch, {"202601010001_first.sql": text})
        hashes |= {m.sha256 for m in bundled_migrations.__wrapped__()}

    assert hashes == {"82efb67f3010c6eb7ead02e4f6d9550633dbc1407f99aa487468e7b2567aebbc"}


def test_files_that_are_no_migrations_are_left_out(monkeypatch: pytest.MonkeyPatch):
    read_from(
        monkeypatch,
        {"README.md": b"", "frozen.sha256": b"", "1_x.sql": b"", "202601010001_a.sql": b"SELECT 1"},
    )

    found = bundled_migrations.__wrapped__()

    assert [migration.name for migration in found] == ["202601010001_a"]


@pytest.mark.parametrize("entries", [None, {}, {"README.md": b""}])
def test_installation_without_files_is_told(
    monkeypatch: pytest.MonkeyPatch, entries: dict[str, bytes] | None
):
    read_from(monkeypatch, entries)

    with pytest.raises(QueryError) as caught:
        bundled_migrations.__wrapped__()

    assert caught.value.code == "schema.migration_files_missing"
    assert caught.value.category is ErrorCategory.INTERNAL


@pytest.mark.parametrize("version", [90624, 140019, 149999])
def test_old_server_is_refused(version: int):
    with pytest.raises(SchemaCompatibilityError) as caught:
        require_supported_server(version)

    assert caught.value.code == "schema.server_too_old"
    assert "15 or newer" in str(caught.value)


@pytest.mark.parametrize("version", [150000, 150018, 180006])
def test_supported_server_passes(version: int):
    require_supported_server(version)


def test_everything_is_pending_on_an_empty_database():
    assert pending_migrations([FIRST, SECOND], None) == [FIRST, SECOND]


def test_only_what_lacks_is_pending():
    assert pending_migrations([FIRST, SECOND], [AppliedMigration(FIRST.version, "aa")]) == [SECOND]


def test_changed_text_is_told_before_unknown_versions():
    applied = [AppliedMigration(FIRST.version, "other"), AppliedMigration(209901010001, "zz")]

    with pytest.raises(SchemaCompatibilityError) as caught:
        pending_migrations([FIRST, SECOND], applied)

    assert caught.value.code == "schema.migration_checksum_mismatch"
    assert caught.value.versions == (202601010001,)
    assert "202601010001" in caught.value.client_message


def test_unknown_versions_are_told():
    applied = [
        AppliedMigration(FIRST.version, "aa"),
        AppliedMigration(SECOND.version, "bb"),
        AppliedMigration(209901010002, "y"),
        AppliedMigration(209901010001, "x"),
    ]

    with pytest.raises(SchemaCompatibilityError) as caught:
        pending_migrations([FIRST, SECOND], applied)

    assert caught.value.code == "schema.migration_unknown"
    assert caught.value.versions == (209901010001, 209901010002)


def test_legacy_error_pickles_with_its_counts():
    copy = pickle.loads(pickle.dumps(LegacyIdempotencySnapshotsMissingError(3, 2)))

    assert (copy.code, copy.job_count, copy.workflow_run_count) == (
        "schema.legacy_idempotency_snapshots_missing",
        3,
        2,
    )
    assert "runledger migrate" in str(copy)


def test_script_of_the_whole_schema_needs_no_database():
    script = migration_script()

    assert script.count("\nBEGIN ISOLATION LEVEL READ COMMITTED") == 2
    assert script.count("\nCOMMIT;\n") == 2
    assert "CREATE TABLE runledger.job_queue" in script
    assert "'202606030001_workflow_results'" in script
