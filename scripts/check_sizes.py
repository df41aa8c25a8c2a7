"""Keep files and functions small: a reader should hold one in the head.

Source files warn from 300 lines and fail above 400, test files fail above 600, scripts above 150,
functions anywhere above 60. Lines are counted as they stand, blank ones and comments included.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_WARNING = 300
FUNCTION_LIMIT = 60
LIMITS = {
    "packages/*/src/**/*.py": 400,
    "packages/*/tests/**/*.py": 600,
    "packages/*/examples/**/*.py": 200,
    "tests/**/*.py": 600,
    "smoke/**/*.py": 200,
    "scripts/*.py": 150,
    "scripts/benchmarks/*.py": 250,
    "noxfile.py": 240,
}


def long_functions(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield line, name and length of each function over the limit."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LIMIT:
                yield node.lineno, node.name, length


def main() -> int:
    """Print each offence and return the exit status."""
    parser = argparse.ArgumentParser(description="check the sizes of files and functions")
    parser.add_argument("--check", action="store_true", help="the default; there is no --fix")
    parser.parse_args()
    errors = 0
    for pattern, limit in LIMITS.items():
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            lines = len(path.read_text("utf-8").splitlines())
            if lines > limit:
                errors += 1
                print(f"{name}: {lines} lines, at most {limit}")
            elif "/src/" in name and lines >= SOURCE_WARNING:
                print(f"{name}: {lines} lines; split it before {limit} (a warning)")
            for line, function, length in long_functions(path):
                errors += 1
                print(f"{name}:{line}: {function} has {length} lines, at most {FUNCTION_LIMIT}")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
