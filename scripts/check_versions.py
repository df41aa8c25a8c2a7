"""Check that the distributions agree with each other, with the changelog and with their imports.

Versions are static in each pyproject.toml. The range of a sibling must admit the sibling of this
tree and end before its next breaking version; the Python floor is one; CHANGELOG.md has a heading
for each version; what a distribution requires, its own source imports, and the other way round.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
# Two imports that come with a declared one: the pool's driver is part of the storage interface.
CARRIED = {"psycopg", "psycopg-pool"}


@dataclass(frozen=True)
class Distribution:
    """What one pyproject.toml says."""

    name: str
    version: Version
    floor: str
    required: list[Requirement]
    optional: list[Requirement]


def read_distributions() -> dict[str, Distribution]:
    """Return each distribution of the tree by its name."""
    found: dict[str, Distribution] = {}
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).values()
        found[project["name"]] = Distribution(
            project["name"],
            Version(project["version"]),
            project["requires-python"],
            [Requirement(text) for text in project["dependencies"]],
            [Requirement(text) for extra in extras for text in extra],
        )
    return found


def check_ranges(found: dict[str, Distribution]) -> Iterator[str]:
    """Yield each sibling range that refuses this tree or admits a breaking version."""
    for name, distribution in found.items():
        for requirement in (*distribution.required, *distribution.optional):
            sibling = found.get(requirement.name)
            if sibling is None or (requirement.extras and not requirement.specifier):
                continue
            version = sibling.version
            # Before 1.0 the minor number is the breaking one.
            breaking = f"0.{version.minor + 1}" if version.major == 0 else f"{version.major + 1}.0"
            if not requirement.specifier.contains(version, prereleases=True):
                yield f"{name}: {requirement} refuses the {version} of this tree"
            elif requirement.specifier.contains(breaking):
                yield f"{name}: {requirement} admits the breaking {breaking}"


def check_floors(found: dict[str, Distribution]) -> Iterator[str]:
    """Yield a line if the distributions ask for different Pythons."""
    floors = {distribution.floor for distribution in found.values()}
    if len(floors) > 1:
        yield f"requires-python differs: {', '.join(sorted(floors))}"


def check_changelog(found: dict[str, Distribution]) -> Iterator[str]:
    """Yield each version without a heading such as `### runledger-core 0.4.0`."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for name, distribution in found.items():
        heading = rf"^##+ {re.escape(name)} {re.escape(str(distribution.version))}(\s|$)"
        if not re.search(heading, text, re.MULTILINE):
            yield f"CHANGELOG.md: no heading for {name} {distribution.version}"


def imported_by(name: str, known: set[str]) -> set[str]:
    """Return the distributions that the source of one distribution imports.

    Where several own a package together, those of `known` count, if there are any.
    """
    owners = packages_distributions()
    modules: set[str] = set()
    for path in ROOT.glob(f"packages/{name}/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    imported: set[str] = set()
    for top in tops:
        candidates = {str(canonicalize_name(owner)) for owner in owners.get(top, [top])}
        imported |= candidates & known or candidates
    return imported


def check_imports(found: dict[str, Distribution]) -> Iterator[str]:
    """Yield each requirement that no import needs and each import that nothing requires."""
    for name, distribution in found.items():
        required = {requirement.name for requirement in distribution.required}
        optional = {requirement.name for requirement in distribution.optional}
        imported = imported_by(name, required | optional | CARRIED) - {name}
        for unused in sorted(required - imported):
            yield f"{name}: requires {unused} but does not import it"
        for undeclared in sorted(imported - required - optional - CARRIED):
            yield f"{name}: imports {undeclared} but does not require it"


def main() -> int:
    """Print each disagreement and return the exit status."""
    parser = argparse.ArgumentParser(description="check versions, ranges and requirements")
    parser.add_argument("--check", action="store_true", help="the default; there is no --fix")
    parser.parse_args()
    found = read_distributions()
    checks = (check_ranges, check_floors, check_changelog, check_imports)
    problems = [line for check in checks for line in check(found)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
