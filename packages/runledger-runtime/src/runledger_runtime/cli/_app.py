"""Finding the handlers that `--app module:name` names."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Final

from runledger_core import NotFoundError, ValidationError

from ..catalog import JobCatalog
from ._errors import CommandFailure

_DEFAULT_NAME: Final = "catalog"


def load_catalog(app: str) -> JobCatalog:
    """Import a module and return its catalog.

    The current directory is searched first, as `python -m` does.

    Args:
        app: `module:name`; the name is `catalog` if left out, and may be dotted. A function
            without parameters is called and must return the catalog.
    """
    module_name, _, name = app.partition(":")
    name = name or _DEFAULT_NAME
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            message = f"the module {module_name} has no {name}"
            raise CommandFailure(NotFoundError("cli.app_not_found", message)) from None
    if not isinstance(found, JobCatalog) and callable(found):
        found = found()
    if isinstance(found, JobCatalog):
        return found
    message = f"{app} is a {type(found).__name__}, not a JobCatalog"
    raise CommandFailure(ValidationError("cli.app_not_a_catalog", message))


def _import(module_name: str) -> object:
    if not all(part.isidentifier() for part in module_name.split(".")):
        message = f"{module_name!r} is no module name"
        raise CommandFailure(NotFoundError("cli.app_not_found", message))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself or a package around it; anything else is an import inside of it.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            message = f"there is no module {module_name} here or in this Python"
            raise CommandFailure(
                NotFoundError("cli.app_not_found", message),
                next_step="run this where the module's folder is, or install it",
            ) from None
        raise _import_failure(module_name, error) from error
    except Exception as error:
        raise _import_failure(module_name, error) from error


def _import_failure(module_name: str, error: Exception) -> CommandFailure:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return CommandFailure(
        ValidationError(
            "cli.app_import_failed",
            f"importing {module_name} failed: {type(error).__name__}: {error}",
        ),
        next_step=f"look at {where.filename}, line {where.lineno}",
    )
