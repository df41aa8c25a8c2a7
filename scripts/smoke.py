"""Build the five wheels and use them as a stranger would.

Each distribution is built as an sdist and its wheel from that; the wheel's files are checked; all
are installed into a fresh environment together with smoke/consumer, third parties coming from the
index alone, at the versions of constraints.txt; then smoke/test_consumer.py runs there.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = [*sorted(ROOT.glob("packages/runledger-*")), ROOT / "smoke/consumer"]
EXTRAS = {"runledger_postgres": "[embedded]", "runledger_test_support": "[embedded]"}
TOOLS = ["pip", "pytest"]


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; its failure ends the program."""
    done = subprocess.run([*map(str, command)], cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def build(target: Path) -> list[Path]:
    """Build each project's sdist, and its wheel from the sdist; return the wheels."""
    for project in PROJECTS:
        print(f"==> building {project.name}", flush=True)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, project]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n")
            raise SystemExit(done.returncode)
    return sorted(target.glob("*.whl"))


def check_files(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with the files of one of our wheels."""
    module = wheel.name.partition("-")[0]
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    for name in contents:
        top, *rest = PurePosixPath(name).parts
        if top != module and not top.endswith(".dist-info"):
            yield f"{name} lies outside {module}"
        if {"tests", "examples"} & set(rest) or re.search(r"(^|/)(test_|conftest)", name):
            yield f"{name} is no business of users"
    if f"{module}/py.typed" not in contents:
        yield "py.typed is missing"
    licenses = [text for name, text in contents.items() if name.endswith("/licenses/LICENSE")]
    if licenses != [(ROOT / "LICENSE").read_bytes()]:
        yield "the license is not that of the repository"
    if module == "runledger_postgres":
        prefix = f"{module}/migrations/sql/"
        shipped = {name: text for name, text in contents.items() if name.startswith(prefix)}
        folder = {f"{prefix}{path.name}": path.read_bytes() for path in migrations()}
        for name in sorted(shipped.keys() ^ folder.keys()):
            yield f"{name} is in the {'wheel' if name in shipped else 'folder'} only"
        for name in sorted(shipped.keys() & folder.keys()):
            if shipped[name] != folder[name]:
                yield f"{name} differs from the folder's"


def migrations() -> list[Path]:
    """Return the migration files of the tree."""
    return sorted((ROOT / "migrations").glob("*.sql"))


def install(wheels: list[Path], target: Path) -> Path:
    """Install the wheels into a fresh environment and return its interpreter."""
    print("==> installing the wheels into a fresh environment", flush=True)
    venv.create(target, with_pip=True)
    python = target / "bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    requirements = [f"{wheel}{EXTRAS.get(wheel.name.partition('-')[0], '')}" for wheel in wheels]
    run(*pip, "install", "--constraint", "constraints.txt", *TOOLS, *requirements)
    run(*pip, "check")
    return python


def main() -> int:
    """Build, check, install, use."""
    parser = argparse.ArgumentParser(description="build the wheels and use them as a stranger")
    parser.add_argument("--check", action="store_true", help="only build and check the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runledger-smoke-") as folder:
        wheels = build(Path(folder) / "dist")
        ours = [wheel for wheel in wheels if wheel.name.startswith("runledger_")]
        problems = [f"{wheel.name}: {line}" for wheel in ours for line in check_files(wheel)]
        print("\n".join(problems), end="\n" if problems else "", flush=True)
        if problems or arguments.check:
            return 1 if problems else 0
        python = install(wheels, Path(folder) / "environment")
        # Away from the tree, and with none of its settings: nothing but the wheels can be found.
        settings = ["--config-file=/dev/null", f"--rootdir={folder}", "--import-mode=importlib"]
        settings += ["-p", "no:cacheprovider", "-W", "error"]
        run(python, "-m", "pytest", *settings, ROOT / "smoke/test_consumer.py", cwd=Path(folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
