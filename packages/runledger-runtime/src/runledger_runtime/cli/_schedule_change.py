"""`runledger schedules pause` and `resume`: some by name, or all that a filter chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import click
import psycopg

from runledger_core import (
    ConflictError,
    ScheduleName,
    ValidationError,
    check_text,
    visible_text,
)
from runledger_postgres.schedules import (
    get_job_schedule_by_name,
    list_job_schedules,
    set_job_schedule_active,
)

from ._confirm import confirm_option, require_confirmation
from ._database import Target, database_options
from ._errors import CommandFailure
from ._listing import MOST_ROWS
from ._options import all_of, json_option
from ._output import print_json


class _Verdict(StrEnum):
    """What became of one schedule."""

    DONE = "DONE"
    UNCHANGED = "UNCHANGED"
    NOT_FOUND = "NOT_FOUND"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class _Verb:
    """What differs between the verbs."""

    is_active: bool
    done: str

    def sentence(self, verdict: _Verdict) -> str:
        match verdict:
            case _Verdict.DONE:
                return self.done
            case _Verdict.UNCHANGED:
                return f"{'active' if self.is_active else 'paused'} already"
            case _Verdict.NOT_FOUND:
                return "no such schedule"
            case _Verdict.REFUSED:
                return "its job type has no definition, or a disabled one"


_PAUSE: Final = _Verb(is_active=False, done="paused")
_RESUME: Final = _Verb(is_active=True, done="resumed")

_change_options: Final = all_of(
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    click.option(
        "--name-contains", metavar="TEXT", help="All schedules with this text in their name."
    ),
    confirm_option,
    json_option,
    database_options,
)


# Any: the options of both verbs, as click passes them.
@click.command("pause")
@_change_options
def pause(target: Target, **options: Any) -> None:
    """Stop schedules from firing: those of the names, or all that a filter chooses.

    Jobs that were made stay. It lasts until `schedules resume`, or until a program syncs its
    catalog's schedules: the catalog says what is active. With a filter the count is printed first,
    and nothing is done without --yes.
    """
    _run(_PAUSE, target, **options)


@click.command("resume")
@_change_options
def resume(target: Target, **options: Any) -> None:
    """Let schedules fire again: those of the names, or all that a filter chooses.

    One whose fire passed meanwhile makes one late job. With a filter the count is printed first,
    and nothing is done without --yes.
    """
    _run(_RESUME, target, **options)


def _run(
    verb: _Verb,
    target: Target,
    *,
    names: Sequence[str],
    name_contains: str | None,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    if bool(names) == (name_contains is not None):
        message = "give either names or --name-contains"
        raise click.UsageError(message)
    names = [ScheduleName(name) for name in names]
    if name_contains is not None:
        # An unset variable of a script would choose every schedule.
        check_text(name_contains, field="name_contains")
    with target.connect() as connection:
        if name_contains is not None:
            names = _chosen(verb, connection, name_contains)
            require_confirmation(len(names), "schedules", done=verb.done, is_confirmed=is_confirmed)
        verdicts = _change_all(verb, connection, names, as_json=as_json)
    _refuse(verb, list(verdicts.values()))


def _chosen(verb: _Verb, connection: psycopg.Connection, name_contains: str) -> list[str]:
    """Return the names of those that the verb would change."""
    names: list[str] = []
    after: str | None = None
    while page := list_job_schedules(
        connection,
        name_contains=name_contains,
        is_active=not verb.is_active,
        limit=MOST_ROWS,
        after=after,
    ):
        after = page[-1].name
        names.extend(schedule.name for schedule in page)
    return names


def _change_all(
    verb: _Verb, connection: psycopg.Connection, names: Sequence[str], *, as_json: bool
) -> dict[str, _Verdict]:
    verdicts: dict[str, _Verdict] = {}
    try:
        for name in dict.fromkeys(names):
            verdicts[name] = _change(verb, connection, name)
    except BaseException:
        # Each is changed on its own, and stays so.
        if verdicts:
            _tell(verb, verdicts, as_json=as_json)
        raise
    _tell(verb, verdicts, as_json=as_json)
    return verdicts


def _tell(verb: _Verb, verdicts: Mapping[str, _Verdict], *, as_json: bool) -> None:
    if as_json:
        print_json({"schedules": dict(verdicts)})
        return
    for name, verdict in verdicts.items():
        click.echo(f"{visible_text(name)} {verb.sentence(verdict)}")


def _change(verb: _Verb, connection: psycopg.Connection, name: str) -> _Verdict:
    try:
        if set_job_schedule_active(connection, name, verb.is_active):
            return _Verdict.DONE
    except ValidationError as error:
        if error.code != "job_schedule.definition_not_found_or_disabled":
            raise
        return _Verdict.REFUSED
    is_there = get_job_schedule_by_name(connection, name) is not None
    return _Verdict.UNCHANGED if is_there else _Verdict.NOT_FOUND


def _refuse(verb: _Verb, verdicts: Sequence[_Verdict]) -> None:
    """End with an error if some are not as asked for."""
    refused = [each for each in verdicts if each in {_Verdict.NOT_FOUND, _Verdict.REFUSED}]
    if refused:
        raise CommandFailure(
            ConflictError(
                "cli.some_schedules_refused",
                f"{len(refused)} of {len(verdicts)} schedules were not {verb.done}",
            )
        )
