"""Tasks of the workspace; `nox --list` shows them.

Gates and tests run in one shared environment, `.venv`, which `scripts/dev` makes and keeps up to
date; only other Pythons, the lowest versions and the wheels get environments of their own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PACKAGES = [path.parent.name for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]
PYTHONS = ["3.11", "3.12", "3.13"]
SERVERS = ["18", "15"]
# Every Python and every server, and the oldest Python on both: what depends on both is little.
COMBINATIONS = [("3.11", "18"), ("3.11", "15"), ("3.12", "18"), ("3.13", "15")]
GATES = ["format", "lint", "imports", "types", "repo", "docs"]
CI = [*GATES, "pins", "smoke", *(f"core({version})" for version in PYTHONS[1:]), "lowest", "pooler"]
FULL = [
    *(*GATES, "unit", "smoke", "lowest", "pooler", "mutants"),
    *(f"db({version}-pg{server})" for version, server in COMBINATIONS),
    *(f"plans(pg{server})" for server in SERVERS),
    *(f"faults(pg{server})" for server in SERVERS),
]

# The one switch of size: how long soaks run, how large tables get. `full` is for the night.
os.environ.setdefault("RUNLEDGER_TEST_SIZE", "ci")

nox.needs_version = ">=2026.10"
nox.options.sessions = [*GATES, "unit", "db(3.11-pg18)", "smoke"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True


def require_python(session: nox.Session, command: str) -> None:
    """Skip the session if an interpreter is missing; on CI that is an error."""
    if shutil.which(command) and subprocess.run([command, "-c", ""], check=False).returncode == 0:
        return
    if os.environ.get("CI"):
        session.error(f"{command} is missing")
    session.skip(f"{command} is not installed here")


def environment(session: nox.Session, python: str | None = None) -> str:
    """Return the interpreter of an up-to-date environment: `.venv`, or one of another Python."""
    folder, group, variables = ROOT / ".venv", "dev", dict[str, str]()
    if python and not (folder / f"bin/python{python}").exists():
        require_python(session, f"python{python}")
        folder, group = ROOT / f".nox/python-{python}", "test"
        variables = {"ENVIRONMENT": str(folder), "PYTHON": f"python{python}"}
    session.run_always("sh", "scripts/dev", group, env=variables, external=True, silent=True)
    return str(folder / "bin/python")


def run_module(session: nox.Session, module: str, *arguments: str) -> None:
    """Run a tool of the shared environment; pyright looks for that by the PATH."""
    python = environment(session)
    variables = {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
    session.run(python, "-m", module, *arguments, env=variables, external=True)


def run_script(session: nox.Session, name: str, *arguments: str) -> None:
    """Run a program of scripts/ in the shared environment."""
    session.run(environment(session), f"scripts/{name}", *arguments, external=True)


def run_tests(session: nox.Session, python: str, server: str, *arguments: str) -> None:
    """Run tests on a Python and a server; 18 is the embedded one."""
    variables = dict[str, str]()
    if server != "18":
        variables["RUNLEDGER_TEST_PG_BIN"] = f"/usr/lib/postgresql/{server}/bin"
    interpreter = environment(session, python)
    session.run(interpreter, "-m", "pytest", *arguments, env=variables, external=True)


def folders(kind: str) -> list[str]:
    """Return the test folders of a kind: unit, db, plans, faults or typing."""
    found = [*ROOT.glob(f"packages/*/tests/{kind}"), *ROOT.glob(f"tests/{kind}")]
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


def marked(*marks: str) -> list[str]:
    """Return arguments for the tests of any of the marks; the other files are not even imported."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted([*ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("tests/**/*.py")])
        if any(f"mark.{mark}" in path.read_text("utf-8") for mark in marks)
    ]
    return ["-m", " or ".join(marks), *found]


@nox.session(name="format", venv_backend="none")
def check_format(session: nox.Session) -> None:
    """Check the formatting; `nox -s format -- --fix` rewrites."""
    arguments = [] if "--fix" in session.posargs else ["--check"]
    run_module(session, "ruff", "format", *arguments, ".")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Run every rule of ruff but those ignored with a reason."""
    run_module(session, "ruff", "check", *session.posargs, ".")


@nox.session(venv_backend="none")
def imports(session: nox.Session) -> None:
    """Check the direction of imports between and inside the wheels."""
    command = Path(environment(session)).with_name("lint-imports")
    session.run(str(command), "--no-cache", "--no-logo", external=True)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types strictly, the public face for completeness, and what users' mypy sees."""
    run_module(session, "pyright")
    for package in PACKAGES:
        module = package.replace("-", "_")
        run_module(session, "pyright", "--verifytypes", module, "--ignoreexternal")
    run_module(session, "mypy", *folders("typing"))


@nox.session(venv_backend="none")
def repo(session: nox.Session) -> None:
    """Check sizes, versions and migrations."""
    for script in ("check_sizes.py", "check_versions.py", "check_migrations.py"):
        run_script(session, script, "--check")


@nox.session(venv_backend="none")
def pins(session: nox.Session) -> None:
    """Check that constraints.txt pins every package that an installation takes (asks the index)."""
    run_script(session, "lock.py", "--check")


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation without warnings and run its examples."""
    for builder in ("html", "doctest"):
        target = f"docs/_build/{builder}"
        run_module(session, "sphinx", "-W", "-n", "-q", "-b", builder, "docs", target)


@nox.session(venv_backend="none")
def unit(session: nox.Session) -> None:
    """Run the tests that need no server."""
    run_module(session, "pytest", *folders("unit"), *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize(("version", "server"), COMBINATIONS, ids=[f"{v}-pg{s}" for v, s in COMBINATIONS])
def db(session: nox.Session, version: str, server: str) -> None:
    """Run the tests that need a server."""
    run_tests(session, version, server, *folders("db"), *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("server", SERVERS, ids=[f"pg{server}" for server in SERVERS])
def plans(session: nox.Session, server: str) -> None:
    """Check the plans of the statements on large tables."""
    run_tests(session, PYTHONS[0], server, *folders("plans"), *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("server", SERVERS, ids=[f"pg{server}" for server in SERVERS])
def faults(session: nox.Session, server: str) -> None:
    """Run the soaks: workers and servers that are killed, frozen or cut off."""
    run_tests(session, PYTHONS[0], server, *folders("faults"), *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("version", PYTHONS[1:], ids=PYTHONS[1:])
def core(session: nox.Session, version: str) -> None:
    """Run the tests marked core on another Python."""
    run_tests(session, version, "18", *marked("core"), *session.posargs)


@nox.session(venv_backend="none")
def pooler(session: nox.Session) -> None:
    """Run the tests marked core behind PgBouncer in transaction mode."""
    session.run(
        environment(session),
        *("-m", "pytest", *marked("core", "pgbouncer"), *session.posargs),
        env={"RUNLEDGER_TEST_POOLER": "pgbouncer"},
        external=True,
    )


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests marked core with the lowest versions that the distributions declare."""
    constraints = f"{session.create_tmp()}/lowest.txt"
    run_script(session, "lock.py", "--lowest", constraints)
    session.install("-c", "constraints.txt", "hatchling")
    groups = nox.project.dependency_groups(PYPROJECT, "test")
    session.install("-c", constraints, "--no-build-isolation", *groups, "-r", "workspace.txt")
    session.run("python", "-m", "pytest", *marked("core"), *session.posargs)


@nox.session(venv_backend="none")
def smoke(session: nox.Session) -> None:
    """Build the wheels and use them as a stranger would."""
    run_script(session, "smoke.py", *session.posargs)


@nox.session(venv_backend="none")
def mutants(session: nox.Session) -> None:
    """Break each guard in a copy and see its tests fail; takes names of some."""
    run_script(session, "mutants.py", *session.posargs)


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Measure which lines the tests of one Python and server reach."""
    for arguments in (["run", "-m", "pytest", *session.posargs], ["combine"], ["report"]):
        run_module(session, "coverage", *arguments)


@nox.session(venv_backend="none", requires=CI)
def ci(session: nox.Session) -> None:
    """Run what .ci/run runs after ./scripts/test; `--allow-parallel --parallel 2` halves it."""
    session.log("all sessions passed: %s", ", ".join(CI))


@nox.session(venv_backend="none")
def full(session: nox.Session) -> None:
    """Run the gates and all tests at full size: an hour or more on two cores."""
    command = ["-m", "nox", "--allow-parallel", "--parallel", "2", "--session", *FULL]
    session.run(sys.executable, *command, env={"RUNLEDGER_TEST_SIZE": "full"}, external=True)
