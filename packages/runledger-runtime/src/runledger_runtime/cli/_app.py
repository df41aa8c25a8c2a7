"""Finding the handlers that `--app module:name` names."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Final

import runledger_core
import runledger_postgres
from runledger_core import NotFoundError, ValidationError

from ..catalog import JobCatalog
from ._errors import CommandFailure

_DEFAULT_NAME: Final = "catalog"
_OURS: Final = tuple(
    str(Path(file).parent)
    for file in (Path(__file__).parent, runledger_core.__file__, runledger_postgres.__file__)
)


def load_catalog(app: str) -> JobCatalog:
    """Import a module and return its catalog.

    The current directory is searched first, as `python -m` does.

    Args:
        app: `module:name`; the name is `catalog` if left out, and may be dotted. A function
            without parameters is called and must return the catalog.
    """
    module_name, _, name = app.partition(":")
    name = name or _DEFAULT_NAME
    here = _current_directory()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            message = f"the module {module_name} has no {name}"
            raise CommandFailure(NotFoundError("cli.app_not_found", message)) from None
        except Exception as error:
            # A module or an object may make what it is asked for, with imports of its own.
            raise _import_failure(f"looking up {module_name}:{name}", error) from error
    if not isinstance(found, JobCatalog) and callable(found):
        found = _call(app, found)
    if isinstance(found, JobCatalog):
        return found
    message = f"{app} is a {type(found).__name__}, not a JobCatalog"
    raise CommandFailure(ValidationError("cli.app_not_a_catalog", message))


def _current_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        message = "the current directory does not exist, or cannot be read"
        raise CommandFailure(
            NotFoundError("cli.app_not_found", message),
            next_step="run this where the module's folder is",
        ) from None


def _call(app: str, function: Callable[..., object]) -> object:
    if _needs_arguments(function):
        message = f"{app} needs arguments; a function for --app is called without any"
        raise CommandFailure(
            ValidationError("cli.app_not_a_catalog", message),
            next_step="name a JobCatalog, or a function without parameters that returns one",
        )
    try:
        return function()
    except Exception as error:
        message = f"calling {app} failed: {type(error).__name__}: {error}"
        raise CommandFailure(
            ValidationError("cli.app_not_a_catalog", message), next_step=_place(error)
        ) from error


def _needs_arguments(function: Callable[..., object]) -> bool:
    try:
        parameters = signature(function)
    except ValueError:  # some of C have none
        return False
    try:
        parameters.bind()
    except TypeError:
        return True
    return False


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
        raise _import_failure(f"importing {module_name}", error) from error
    except Exception as error:
        raise _import_failure(f"importing {module_name}", error) from error


def _import_failure(what: str, error: Exception) -> CommandFailure:
    return CommandFailure(
        ValidationError(
            "cli.app_import_failed",
            f"{what} failed: {type(error).__name__}: {error}",
        ),
        next_step=_place(error),
    )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # A refusal of ours is raised here, but the mistake is where the application called us.
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    where = (theirs or frames)[-1]
    return f"look at {where.filename}, line {where.lineno}"
