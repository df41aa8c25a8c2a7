"""The mutation check proves what it says: its patches fit, and only an assertion is red."""

import ast
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "scripts"

# Found before the installed package of that name, or not even the first mutant would be red.
MODULE = "runledger_core"
PATCH = """\
Breaks: the limit of a page
Red: packages/pages/tests/test_pages.py::test_limit
--- a/packages/pages/src/runledger_core/__init__.py
+++ b/packages/pages/src/runledger_core/__init__.py
@@ -1 +1 @@
-LIMIT = 1
+{line}
"""
TEST = """\
from runledger_core import LIMIT

def test_limit():
    assert LIMIT == 1
"""
NAMED = "tests/test_pages.py::test_limit"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location("mutants", SCRIPTS / "mutants.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


@pytest.fixture
def tree(mutants, tmp_path, monkeypatch) -> Path:
    """A tree with one module, one test and room for mutants."""
    source = tmp_path / "packages/pages/src" / MODULE
    tests = tmp_path / "packages/pages/tests"
    for folder in (source, tests, tmp_path / "tests/mutants"):
        folder.mkdir(parents=True)
    (source / "__init__.py").write_text("LIMIT = 1\n")
    (tests / "test_pages.py").write_text(TEST)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def verdict_of(mutants, tree: Path, line: str) -> str:
    path = tree / "tests/mutants/page-limit.patch"
    path.write_text(PATCH.format(line=line))
    return mutants.run_mutant(mutants.read_mutant(path))[0]


def test_each_patch_applies_and_names_tests_that_exist(mutants, tmp_path):
    found = mutants.read_mutants()
    functions: dict[str, set[str]] = {}
    for mutant in found:
        for name in {line[6:] for line in mutant.patch.splitlines() if line.startswith("--- a/")}:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        for test in mutant.red:
            file, _, function = test.partition("[")[0].partition("::")
            if file not in functions:
                nodes = ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
                functions[file] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
            assert function in functions[file], (mutant.name, test)

    problems = {mutant.name: mutants.apply_patch(mutant, tmp_path, "--check") for mutant in found}

    assert len(found) > 50
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_failing_assertion_is_red_and_the_tree_itself_is_not_touched(mutants, tree):
    assert verdict_of(mutants, tree, "LIMIT = 2") == ""
    assert (tree / "packages/pages/src" / MODULE / "__init__.py").read_text() == "LIMIT = 1\n"


def test_error_of_collection_is_not_red(mutants, tree):
    verdict = verdict_of(mutants, tree, "BOUND = 1")

    assert verdict == "collect failed, CollectError: packages/pages/tests/test_pages.py"


def test_patch_that_does_not_fit_is_told(mutants, tree):
    (tree / "packages/pages/src" / MODULE / "__init__.py").write_text("LIMIT = 10\n")

    assert verdict_of(mutants, tree, "LIMIT = 2") == "does not apply"


def test_code_from_elsewhere_is_no_proof(mutants, tree):
    test = tree / "packages/pages/tests/test_pages.py"
    test.write_text(f"import sys\nsys.path.insert(0, {str(tree / 'elsewhere')!r})\n{TEST}")
    (tree / "elsewhere" / MODULE).mkdir(parents=True)
    (tree / "elsewhere" / MODULE / "__init__.py").write_text("LIMIT = 2\n")

    assert verdict_of(mutants, tree, "LIMIT = 2").startswith("import failed, not of the copy: ")


@pytest.mark.parametrize(
    ("status", "when", "kind", "verdict"),
    [
        (1, "call", "AssertionError", ""),
        (1, "teardown", "AssertionError", ""),
        (1, "call", "Failed", ""),
        (1, "call", "OwnError", ""),
        (1, "call", "LookupError", f"no assertion, but LookupError: {NAMED}"),
        (1, "call", "Timeout", f"no assertion, but Timeout: {NAMED}"),
        (1, "setup", "AssertionError", f"setup failed, AssertionError: {NAMED}[1]"),
        (2, "collect", "SyntaxError", f"collect failed, SyntaxError: {NAMED}[1]"),
        (0, None, "", f"green: {NAMED}"),
        (4, None, "", "pytest ended with status 4"),
    ],
)
def test_only_an_assertion_or_a_named_error_is_red(mutants, status, when, kind, verdict):
    mutant = mutants.Mutant("page-limit", "", red=[NAMED], by=["OwnError"], patch="")
    records = [{"test": f"{NAMED}[1]", "when": when, "kinds": [kind, "Exception"]}] if when else []

    assert mutants.judge(mutant, status, records) == verdict


def test_each_named_test_must_be_red(mutants):
    mutant = mutants.Mutant("page-limit", "", red=[NAMED, "other"], by=[], patch="")
    records = [{"test": NAMED, "when": "call", "kinds": ["AssertionError"]}]

    assert mutants.judge(mutant, 1, records) == "green: other"


@pytest.mark.parametrize("head", ["", "Breaks: a\n", "Red: a\n", "Breaks: a\nRed: b\nGreen: c\n"])
def test_patch_that_does_not_say_what_it_breaks_is_refused(mutants, tmp_path, head):
    path = tmp_path / "some.patch"
    path.write_text(f"{head}--- a/x\n+++ b/x\n")

    with pytest.raises(SystemExit, match=r"some\.patch: the head is"):
        mutants.read_mutant(path)


def test_unknown_mutant_is_refused(mutants):
    with pytest.raises(SystemExit, match="no such mutant: nobody"):
        mutants.read_mutants(["nobody"])
