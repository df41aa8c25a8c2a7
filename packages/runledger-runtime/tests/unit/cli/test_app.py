import sys

import pytest

from runledger_runtime.cli._app import load_catalog
from runledger_runtime.cli._errors import CommandFailure

SHOP = """
from runledger_runtime.catalog import JobCatalog

catalog = JobCatalog()
number = 7

def make():
    return catalog

def configured(url):
    return catalog

def broken():
    raise KeyError("SHOP_URL")

class Settings:
    jobs = catalog

    @property
    def late(self):
        raise ImportError("no such late package")

settings = Settings()

def __getattr__(name):
    if name == "lazy":
        raise RuntimeError("not now")
    raise AttributeError(name)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    (tmp_path / "shop_for_tests.py").write_text(SHOP)
    (tmp_path / "broken_for_tests.py").write_text("import shop_for_tests\n1 / 0\n")
    (tmp_path / "lacking_for_tests.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "shop_for_tests"
    for name in ("shop", "broken", "lacking"):
        sys.modules.pop(f"{name}_for_tests", None)


@pytest.mark.parametrize("name", [":catalog", "", ":make", ":Settings.jobs"])
def test_catalog_is_found_in_the_current_directory(shop, name):
    found = load_catalog(shop + name)

    assert found is sys.modules[shop].catalog


@pytest.mark.parametrize(
    ("app", "code"),
    [
        ("no_such_module:catalog", "cli.app_not_found"),
        ("shop_for_tests.inner:catalog", "cli.app_not_found"),
        ("shop_for_tests:missing", "cli.app_not_found"),
        (":catalog", "cli.app_not_found"),
        ("..shop:catalog", "cli.app_not_found"),
        ("shop_for_tests:number", "cli.app_not_a_catalog"),
        ("shop_for_tests:configured", "cli.app_not_a_catalog"),
        ("shop_for_tests:broken", "cli.app_not_a_catalog"),
        ("broken_for_tests:catalog", "cli.app_import_failed"),
        ("lacking_for_tests:catalog", "cli.app_import_failed"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_code(shop, app, code):
    with pytest.raises(CommandFailure) as caught:
        load_catalog(app)

    assert caught.value.error.code == code


def test_failing_import_names_error_file_and_line(shop, tmp_path):
    with pytest.raises(CommandFailure) as caught:
        load_catalog("broken_for_tests")

    assert "ZeroDivisionError: division by zero" in str(caught.value.error)
    assert caught.value.next_step == f"look at {tmp_path / 'broken_for_tests.py'}, line 2"


def test_function_that_needs_arguments_is_refused_in_words(shop):
    with pytest.raises(CommandFailure) as caught:
        load_catalog(f"{shop}:configured")

    assert "shop_for_tests:configured needs arguments" in str(caught.value.error)
    assert "without parameters" in str(caught.value.next_step)


def test_function_that_raises_is_told_with_its_error_and_line(shop, tmp_path):
    with pytest.raises(CommandFailure) as caught:
        load_catalog(f"{shop}:broken")

    assert "calling shop_for_tests:broken failed: KeyError: 'SHOP_URL'" in str(caught.value.error)
    line = SHOP[: SHOP.index("raise KeyError")].count("\n") + 1
    assert caught.value.next_step == f"look at {tmp_path / 'shop_for_tests.py'}, line {line}"


@pytest.mark.parametrize(
    ("name", "problem", "place"),
    [
        ("lazy", "RuntimeError: not now", "raise RuntimeError"),
        ("settings.late", "ImportError: no such late package", "raise ImportError"),
    ],
)
def test_name_that_raises_when_it_is_looked_up_is_told_with_its_error_and_line(
    shop, tmp_path, name, problem, place
):
    with pytest.raises(CommandFailure) as caught:
        load_catalog(f"{shop}:{name}")

    assert caught.value.error.code == "cli.app_import_failed"
    assert f"looking up shop_for_tests:{name} failed: {problem}" in str(caught.value.error)
    line = SHOP[: SHOP.index(place)].count("\n") + 1
    assert caught.value.next_step == f"look at {tmp_path / 'shop_for_tests.py'}, line {line}"


def test_current_directory_that_was_deleted_is_told_in_words(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(CommandFailure) as caught:
        load_catalog("shop_for_tests")

    assert caught.value.error.code == "cli.app_not_found"
    assert "the current directory does not exist" in str(caught.value.error)


def test_mistake_in_a_call_of_ours_is_told_where_the_module_makes_it(tmp_path, monkeypatch):
    module = tmp_path / "narrow.py"
    module.write_text(
        "from runledger_runtime import JobCatalog\n"
        "catalog = JobCatalog()\n"
        "catalog.job('jobs.one', lambda context: None)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(CommandFailure) as caught:
        load_catalog("narrow")

    assert caught.value.next_step == f"look at {module}, line 3"
