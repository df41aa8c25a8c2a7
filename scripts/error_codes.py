"""Write the tables of docs/reference/error-codes.md from the codes that the wheels own.

The class is read from the source: from the call that a code is an argument of, through constants
and helpers of the same module. Meaning and next step come from mappings.
"""

import argparse
import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/error-codes.md"
BEGIN = "<!-- Written by scripts/error_codes.py. -->\n"
END = "<!-- Written by hand from here on. -->\n"
OWNERS = {
    "runledger-core": ["runledger_core.codes"],
    "runledger-postgres": ["runledger_postgres.codes"],
    "runledger-runtime": ["runledger_runtime.codes", "runledger_runtime.cli._errors"],
    "runledger-tui": ["runledger_tui.codes"],
    "runledger-test-support": ["runledger_test_support.errors"],
}
SHORT = {f"_{name[0]}": name for name in ("CONFLICT", "VALIDATION", "FORBIDDEN", "INTERNAL")}
SHORT["_U"] = "UNAVAILABLE"
STEPS = {
    "ConflictError": "Read what is stored, then decide.",
    "NotFoundError": "Check the id and the scope.",
    "InternalError": "Look at the log.",
    "UnavailableError": "Try again, after a growing pause.",
    "ForbiddenError": "Ask for the right, or leave it.",
    "ValidationError": "Correct what was given.",
}
# For codes that are composed, chosen before the call, or never given to one.
AREAS = {"config": "JobsConfigError", "input": "ValidationError", "job": "stored"}
AREAS |= {"catalog": "CatalogError", "job_schedule": "stored", "registry": "RegistryError"}
AREAS |= {"workflow": "stored"}


def entries(wheel: str, mapping: str = "MEANINGS") -> dict[str, str]:
    """Return one of the mappings of a wheel, those of all its modules together."""
    found: dict[str, str] = {}
    for module in OWNERS[wheel]:
        found |= getattr(import_module(module), mapping, {})
    return found


class Finder(ast.NodeVisitor):
    """Collect the classes that the calls of one module give to strings."""

    def __init__(self, tree: ast.Module, constants: dict[str, str]) -> None:
        """Take the constants of the wheel by name."""
        self.constants, self.owner = constants, ""
        self.helpers: dict[str, str] = {}
        self.found: list[tuple[str, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
                self.helpers[node.name] = next(filter(None, map(self.class_of, calls)), "")
        self.visit(tree)

    def class_of(self, call: ast.Call) -> str:
        """Return the class of error that a call makes, or the kind of failure; else nothing."""
        text = ast.unparse(call.func)
        name = text.rpartition(".")[2]
        if name in {"refusal", "ConstraintSpec"}:
            names = [value for value in call.args if isinstance(value, ast.Name | ast.Attribute)]
            words = [ast.unparse(value).rpartition(".")[2] for value in names]
            category = next((SHORT.get(word, word) for word in words if word.isupper()), "")
            return "".join(word.title() for word in category.split("_")) + "Error"
        if text.startswith("JobFailure."):
            return f"stored: {name.upper()}"
        if text == "super().__init__":
            return self.owner
        return name if name.endswith("Error") else self.helpers.get(name, "")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Look inside; `super()` makes this class, and its constants are its codes."""
        self.owner, outer = node.name, self.owner
        values = [item.value for item in node.body if isinstance(item, ast.Assign | ast.AnnAssign)]
        self.found += [(text, node.name) for text in self.strings(values)]
        self.generic_visit(node)
        self.owner = outer

    def visit_Call(self, node: ast.Call) -> None:
        """Note the strings among the arguments of a call."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        self.found += [(text, self.class_of(node)) for text in self.strings(values)]
        self.generic_visit(node)

    def strings(self, values: list[ast.expr] | list[ast.expr | None]) -> Iterator[str]:
        """Yield what literals and names of constants stand for."""
        for value in values:
            if isinstance(value, ast.Constant):
                yield str(value.value)
            elif isinstance(value, ast.Name | ast.Attribute):
                yield self.constants.get(ast.unparse(value).rpartition(".")[2], "")


def classes(wheel: str) -> dict[str, set[str]]:
    """Return the classes that carry each code of a wheel."""
    paths = ROOT.glob(f"packages/{wheel}/src/**/*.py")
    trees = [ast.parse(path.read_text("utf-8")) for path in paths]
    found: dict[str, set[str]] = {code: set() for code in entries(wheel)}
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.AnnAssign)]
    values = [(node.target, getattr(node.value, "value", None)) for node in nodes]
    constants = {ast.unparse(name): str(value) for name, value in values if value in found}
    for code, name in (pair for tree in trees for pair in Finder(tree, constants).found):
        if name and code in found:
            found[code].add(name)
    return found


def table(wheel: str) -> str:
    """Return the table of one wheel."""
    carried = classes(wheel)
    steps = entries(wheel, "NEXT_STEPS") | entries(wheel, "_NEXT_STEPS")
    lines = [f"## {wheel}\n", "| code | class | meaning | what to do |", "|---|---|---|---|"]
    for code, meaning in sorted(entries(wheel).items()):
        names = sorted(carried[code]) or [AREAS[code.partition(".")[0]]]
        default = next((STEPS[name] for name in names if name in STEPS), STEPS["ValidationError"])
        shown = ", ".join(name if "stored" in name else f"`{name}`" for name in names)
        lines.append(f"| `{code}` | {shown} | {meaning} | {steps.get(code, default)} |")
    return "\n".join(lines) + "\n\n"


def written() -> str:
    """Return the page with its tables as they should be."""
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return head + BEGIN + "\n" + "".join(map(table, OWNERS)) + END + rest.partition(END)[2]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="the default")
    parser.add_argument("--fix", action="store_true", help="rewrite the tables")
    page = written()
    if parser.parse_args().fix:
        PAGE.write_text(page, "utf-8")
    elif PAGE.read_text("utf-8") != page:
        print(f"{PAGE.relative_to(ROOT)} is not up to date; run scripts/error_codes.py --fix")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
