"""`runledger jobs cancel` and `requeue`: some jobs by id, or all that a filter chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Protocol
from uuid import UUID

import click
import psycopg

from runledger_core import ConflictError, JobStatus, Scope
from runledger_postgres import OperatorVerdict, cancel_jobs, requeue_jobs

from ._confirm import confirm_option, require_confirmation
from ._database import Target, database_options
from ._errors import CommandFailure
from ._job_list import filter_options, make_filter
from ._listing import MOST_ROWS
from ._options import all_of, json_option
from ._output import print_json
from ._scope import scope_options

_SENTENCES: Final = {
    OperatorVerdict.NOT_FOUND: "no such job in this scope",
    OperatorVerdict.INVALID_STATE: "its status does not allow this",
    OperatorVerdict.WORKFLOW_MANAGED: "it belongs to a workflow run",
}
_NONE_FOUND: Final = "runledger jobs list; with --org or --global only jobs in there are seen"


class _Change(Protocol):
    def __call__(
        self,
        db: psycopg.Connection,
        job_ids: Sequence[UUID],
        /,
        *,
        scope: Scope,
        reason: str | None,
    ) -> list[OperatorVerdict]: ...


@dataclass(frozen=True, slots=True)
class _Verb:
    """What differs between the verbs."""

    change: _Change
    done: str
    _: KW_ONLY
    allowed: Sequence[JobStatus]
    default: Sequence[JobStatus]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which jobs, and how to tell."""

    job_ids: Sequence[UUID]
    statuses: Sequence[str]
    _: KW_ONLY
    job_type: str | None
    type_contains: str | None
    scope: Scope
    reason: str | None
    is_confirmed: bool
    as_json: bool


_CANCEL: Final = _Verb(
    cancel_jobs,
    "canceled",
    allowed=(JobStatus.PENDING, JobStatus.LEASED),
    default=(JobStatus.PENDING, JobStatus.LEASED),
)
_REQUEUE: Final = _Verb(
    requeue_jobs,
    "requeued",
    allowed=(JobStatus.DEAD_LETTERED, JobStatus.CANCELED, JobStatus.SUCCEEDED),
    # What succeeded or was canceled is not meant to run again unless that is said.
    default=(JobStatus.DEAD_LETTERED,),
)

_change_options: Final = all_of(
    click.argument("job_ids", nargs=-1, type=click.UUID, metavar="[ID]..."),
    filter_options,
    scope_options,
    click.option("--reason", metavar="TEXT", help="Kept on the jobs and in their timelines."),
    confirm_option,
    json_option,
    database_options,
)


# Any: the options of both verbs, as click passes them.
@click.command("cancel")
@_change_options
def cancel(target: Target, **options: Any) -> None:
    """Cancel jobs that have not ended: those of the ids, or all that a filter chooses.

    A running handler is told to stop, and nothing it reports afterwards counts. With a filter the
    count is printed first, and nothing is done without --yes.
    """
    _run(_CANCEL, target, _Choice(**options))


@click.command("requeue")
@_change_options
def requeue(target: Target, **options: Any) -> None:
    """Run ended jobs once more: those of the ids, or all that a filter chooses.

    A filter without --status chooses dead letters. The count is printed first, and nothing is done
    without --yes.
    """
    _run(_REQUEUE, target, _Choice(**options))


def _run(verb: _Verb, target: Target, choice: _Choice) -> None:
    has_filter = bool(choice.statuses or choice.job_type or choice.type_contains)
    if has_filter == bool(choice.job_ids):
        message = "give either ids or a filter: --status, --type, --type-contains"
        raise click.UsageError(message)
    with target.connect() as connection:
        if choice.job_ids:
            _change_named(verb, connection, choice)
        else:
            _change_chosen(verb, connection, choice)


def _change_named(verb: _Verb, connection: psycopg.Connection, choice: _Choice) -> None:
    job_ids = list(dict.fromkeys(choice.job_ids))
    verdicts = verb.change(connection, job_ids, scope=choice.scope, reason=choice.reason)
    if choice.as_json:
        names = map(str, job_ids)
        print_json({"jobs": dict(zip(names, verdicts, strict=True))})
    else:
        for job_id, verdict in zip(job_ids, verdicts, strict=True):
            click.echo(f"{job_id} {_SENTENCES.get(verdict, verb.done)}")
    refused = len(verdicts) - verdicts.count(OperatorVerdict.DONE)
    if refused:
        error = ConflictError(
            "cli.some_jobs_refused", f"{refused} of {len(verdicts)} jobs were not {verb.done}"
        )
        # Jobs that were not found have no status to look at.
        none_found = verdicts.count(OperatorVerdict.NOT_FOUND) == len(verdicts)
        raise CommandFailure(error, next_step=_NONE_FOUND if none_found else None)


def _change_chosen(verb: _Verb, connection: psycopg.Connection, choice: _Choice) -> None:
    from runledger_postgres import count_jobs, list_jobs  # noqa: PLC0415  # brings SQLAlchemy

    statuses = choice.statuses or [status.value for status in verb.default]
    wrong = [status for status in statuses if status not in verb.allowed]
    if wrong:
        message = f"jobs that are {', '.join(wrong)} cannot be {verb.done}"
        raise click.UsageError(message)
    chosen = make_filter(
        choice.scope, statuses, job_type=choice.job_type, type_contains=choice.type_contains
    )
    matched = count_jobs(connection, chosen)
    require_confirmation(matched, "jobs", done=verb.done, is_confirmed=choice.is_confirmed)
    verdicts: Counter[OperatorVerdict] = Counter()
    after: UUID | None = None
    try:
        # By cursor: a job that a worker ends again meanwhile is behind it and not taken twice.
        while page := list_jobs(connection, chosen, limit=MOST_ROWS, after=after):
            after = page[-1].id
            verdicts.update(
                verb.change(
                    connection, [job.id for job in page], scope=choice.scope, reason=choice.reason
                )
            )
    except BaseException:
        # Each page is changed on its own, and stays so.
        if verdicts:
            _tell(verb, matched, verdicts, as_json=choice.as_json)
        raise
    _tell(verb, matched, verdicts, as_json=choice.as_json)


def _tell(verb: _Verb, matched: int, verdicts: Counter[OperatorVerdict], *, as_json: bool) -> None:
    done = verdicts.pop(OperatorVerdict.DONE, 0)
    if as_json:
        print_json(
            {
                "matched": matched,
                verb.done: done,
                "refused": {verdict.value: count for verdict, count in verdicts.items()},
            }
        )
        return
    click.echo(f"{done} jobs {verb.done}")
    for verdict, count in verdicts.items():
        click.echo(f"{count} left alone: {_SENTENCES[verdict]}")
