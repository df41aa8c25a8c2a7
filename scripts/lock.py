"""Regenerate constraints.txt, or write the constraints of the lowest declared versions.

`python scripts/lock.py --fix` asks pip's resolver for the newest versions that fit everything
(all dependency groups, all distributions, all extras) and rewrites constraints.txt.
`--check` resolves under the present file and fails if a needed package has no line in it.
`--lowest FILE` writes constraints.txt with every declared version at its lower bound to FILE.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
# Those whose version follows exactly from another's.
FOLLOWERS = {
    "opentelemetry-api": ("opentelemetry-sdk", "opentelemetry-semantic-conventions"),
    "pydantic": ("pydantic-core",),
}
HEADER = """\
# Third-party versions of every environment of this repository: clones test the same code.
# Written by `python scripts/lock.py --fix`; resolved on the oldest supported Python.
"""


def resolve(*, constrained: bool) -> dict[str, str]:
    """Return name and version of all third-party packages, as pip would install them."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--quiet", "--report", "-", "--group", "dev", "--requirement", "workspace.txt"]
    if constrained:
        command += ["--constraint", "constraints.txt"]
    report = json.loads(
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    )
    found = (item for item in report["install"] if "dir_info" not in item["download_info"])
    return {
        canonicalize_name(item["metadata"]["name"]): item["metadata"]["version"] for item in found
    }


def pinned() -> dict[str, str]:
    """Return name and version of each line of constraints.txt."""
    lines = CONSTRAINTS.read_text("utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines if line and not line.startswith("#"))


def declared() -> Iterator[Requirement]:
    """Yield each third-party requirement and extra that a distribution declares."""
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
        for requirement in (Requirement(text) for group in groups for text in group):
            if not requirement.name.startswith("runledger-"):
                yield requirement


def lowest() -> dict[str, str]:
    """Return the pins with each declared requirement at its lower bound.

    A requirement such as `psycopg[binary]` also moves `psycopg-binary`, which follows it exactly,
    and so do those of FOLLOWERS.
    """
    pins = pinned()
    for requirement in declared():
        bounds = [spec.version for spec in requirement.specifier if spec.operator == ">="]
        if len(bounds) != 1:
            message = f"{requirement} needs exactly one lower bound"
            raise SystemExit(message)
        pins[canonicalize_name(requirement.name)] = bounds[0]
        for follower in FOLLOWERS.get(requirement.name, ()):
            pins.pop(follower, None)
        for extra in requirement.extras:
            pins.pop(canonicalize_name(f"{requirement.name}-{extra}"), None)
    return pins


def render(pins: dict[str, str]) -> str:
    """Return the pins as the text of a constraints file."""
    return HEADER + "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def check() -> int:
    """Say which packages constraints.txt does not pin."""
    pins = pinned()
    missing = sorted(set(resolve(constrained=True)) - set(pins))
    undeclared = sorted({canonicalize_name(item.name) for item in declared()} - set(pins))
    for name in sorted({*missing, *undeclared}):
        print(f"constraints.txt: no line for {name}; run scripts/lock.py --fix")
    return 1 if missing or undeclared else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__ or "")[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail if a package is not pinned")
    mode.add_argument("--fix", action="store_true", help="rewrite constraints.txt")
    mode.add_argument("--lowest", type=Path, metavar="FILE", help="write the lowest versions")
    arguments = parser.parse_args()
    if arguments.fix:
        CONSTRAINTS.write_text(render(resolve(constrained=False)), "utf-8")
        return 0
    if arguments.lowest:
        arguments.lowest.write_text(render(lowest()), "utf-8")
        return 0
    return check()


if __name__ == "__main__":
    raise SystemExit(main())
