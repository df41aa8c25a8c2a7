"""Each check of the repository notices a planted offence."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def migrations(tmp_path, monkeypatch):
    module = load("check_migrations")
    frozen = tmp_path / "frozen.sha256"
    frozen.write_text("# none\n")
    monkeypatch.setattr(module, "FROZEN", frozen)
    return module


def write(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text("SELECT 1;\n")
    return [folder / name for name in names]


def test_changed_release_is_noticed(migrations, tmp_path):
    files = write(tmp_path, "202601010001_first.sql")
    migrations.freeze(files)
    assert list(migrations.check_frozen(files)) == []

    files[0].write_text("SELECT 2;\n")

    assert list(migrations.check_frozen(files)) == [
        "202601010001_first.sql: released, but its text changed; write a new migration instead"
    ]


def test_new_migration_before_a_released_one_is_noticed(migrations, tmp_path):
    files = write(tmp_path, "202601010001_first.sql", "202601020001_second.sql")
    migrations.freeze(files[1:])

    assert list(migrations.check_frozen(files)) == [
        "202601010001_first.sql: new, but sorts before the released 202601020001_second.sql"
    ]


def test_version_used_twice_is_noticed(migrations, tmp_path):
    files = write(tmp_path, "202601010001_first.sql", "202601010001_other.sql", "Third.sql")

    assert list(migrations.check_names(files)) == [
        "202601010001_other.sql: the version 202601010001 is used twice",
        "Third.sql: the name must be <12 digits>_<lower_case_words>.sql",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("core>=0.4,<0.5", None),
        ("core>=0.5,<0.6", "user: core<0.6,>=0.5 refuses the 0.4.2 of this tree"),
        ("core>=0.4", "user: core>=0.4 admits the breaking 0.5"),
        ("core[extra]", None),
    ],
)
def test_sibling_range_must_fit_the_tree(text, problem):
    versions = load("check_versions")
    core = versions.Distribution("core", Version("0.4.2"), ">=3.11", [], [])
    user = versions.Distribution("user", Version("1.0"), ">=3.11", [Requirement(text)], [])

    problems = list(versions.check_ranges({"core": core, "user": user}))

    assert problems == ([] if problem is None else [problem])


def test_long_function_is_noticed(tmp_path):
    sizes = load("check_sizes")
    path = tmp_path / "long.py"
    path.write_text("def long():\n" + "    x = 1\n" * 60)

    assert list(sizes.long_functions(path)) == [(1, "long", 61)]


def test_lowest_pins_take_the_lower_bounds(tmp_path, monkeypatch):
    lock = load("lock")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# pins\nother==9\npsycopg==9\npsycopg-binary==9\n")
    monkeypatch.setattr(lock, "CONSTRAINTS", constraints)
    monkeypatch.setattr(lock, "declared", lambda: iter([Requirement("psycopg[binary]>=3.2.10")]))

    assert lock.lowest() == {"other": "9", "psycopg": "3.2.10"}
