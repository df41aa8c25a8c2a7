"""Enqueue of runs: whole graphs in one statement, idempotent by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from runledger_core import EnqueueDisposition, ErrorCategory, check_trace_context
from runledger_core.workflows import WorkflowRunEnqueue

from .._arguments import check_kind, check_kinds
from .._database import Database
from .._session import Bound, Transaction, run, transaction
from ..errors import QueryError, refusal
from ._enqueue_store import ENQUEUE_WORKFLOW_RUNS, EnqueuedRunRow, enqueue_parameters
from ._graph import undefined_step

# A raced key is found by the next look; more rounds only if its winner was deleted meanwhile.
_KEYED_ROUNDS: Final = 4
# PostgreSQL ends the connection at a message or a value of 1 GiB. A character may take four bytes,
# a small number more as jsonb, and a keyed request goes out twice, once in its snapshot.
_MOST_CHARACTERS: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class EnqueuedWorkflowRun:
    """A run's id, and whether this enqueue made it."""

    id: UUID
    disposition: EnqueueDisposition


def enqueue_workflow_run(
    db: Database, request: WorkflowRunEnqueue, *, trace_context: str | None = None
) -> EnqueuedWorkflowRun:
    """Enqueue a run of a workflow: run, steps, edges, and the jobs of steps that wait for none.

    Args:
        trace_context: Where a trace goes on in the handlers of all steps, such as a W3C
            `traceparent`: printable ASCII, at most 1,024 characters.

    Returns:
        The run's id; EXISTING if its idempotency key was enqueued before with an equal request.

    Raises:
        ValidationError: `workflow.definition_not_found_or_disabled` for a step whose job type is
            unknown or disabled, with the step's place as `entry_index`; nothing is stored.
            `workflow.enqueue_idempotency_unsupported_isolation` for a key outside READ COMMITTED;
            `workflow.enqueue_too_large` for payloads too large for one statement; an `input.*` code
            for a trace context that cannot be one.
        ConflictError: `workflow.enqueue_conflicting_retry` if the key belongs to another request;
            `workflow.legacy_idempotency_snapshot_missing` if that run predates snapshots.
        InternalError: `db.rows_kept_back` if a trigger of the host keeps rows back; nothing
            is stored.
        UnavailableError: `db.outcome_unknown` if the connection died while committing. An unkeyed
            enqueue must not be repeated blindly then; a keyed one may be. `db.lock_timeout` if the
            wait for a key took too long, `workflow.already_enqueued` if its run could not be seen
            after several looks.

    Transaction: joins the caller's, or opens one on a pool and on an idle autocommit connection. A
        keyed enqueue waits for another transaction that has inserted the same key, as long as the
        `lock_timeout` in force allows.
    """
    check_kind(request, WorkflowRunEnqueue, field="request")
    return _enqueue(db, [request], trace_context, is_batch=False)[0]


def enqueue_workflow_runs(
    db: Database, requests: Sequence[WorkflowRunEnqueue], *, trace_context: str | None = None
) -> list[EnqueuedWorkflowRun]:
    """Enqueue many runs, all or none, in one statement.

    Keys that others insert at the same time are looked at again.

    Args:
        requests: Any number, up to 60 million characters of JSON together; types and keys may
            repeat.
        trace_context: As for `enqueue_workflow_run`, for all of them.

    Returns:
        One result per request, in input order; empty for no requests, without SQL.

    Raises:
        ValidationError: As `enqueue_workflow_run`, but `entry_index` tells which request was
            refused, and `field` which of its steps.
        ConflictError: As `enqueue_workflow_run`, also between two requests of the same call.
        InternalError: As `enqueue_workflow_run`.
        UnavailableError: As `enqueue_workflow_run`.

    Transaction: as `enqueue_workflow_run`; inside a savepoint if a request has a key.
    """
    requests = check_kinds(requests, WorkflowRunEnqueue, field="requests")
    if not requests:
        return []
    return _enqueue(db, requests, trace_context, is_batch=True)


def _enqueue(
    db: Database,
    requests: Sequence[WorkflowRunEnqueue],
    trace_context: str | None,
    *,
    is_batch: bool,
) -> list[EnqueuedWorkflowRun]:
    if trace_context is not None:
        trace_context = check_trace_context(trace_context)
    _require_sendable(requests, field="requests" if is_batch else "request")
    if all(request.idempotency_key is None for request in requests):
        rows = run(db, Bound(ENQUEUE_WORKFLOW_RUNS, enqueue_parameters(requests, trace_context)))
        _raise_refusal(rows, requests, range(len(requests)), is_batch=is_batch)
        return [_enqueued(row) for row in rows]
    # What the first look inserted must go if a later one finds a conflict.
    with transaction(db, savepoint=is_batch) as work:
        return _enqueue_in_rounds(work, requests, trace_context, is_batch=is_batch)


def _enqueue_in_rounds(
    work: Transaction,
    requests: Sequence[WorkflowRunEnqueue],
    trace_context: str | None,
    *,
    is_batch: bool,
) -> list[EnqueuedWorkflowRun]:
    results: dict[int, EnqueuedWorkflowRun] = {}
    places = list(range(len(requests)))
    for _ in range(_KEYED_ROUNDS):
        sent = [requests[place] for place in places]
        bound = Bound(ENQUEUE_WORKFLOW_RUNS, enqueue_parameters(sent, trace_context))
        rows = dict(zip(places, work.fetch(bound), strict=True))
        _raise_refusal(list(rows.values()), sent, places, is_batch=is_batch)
        results |= {place: _enqueued(row) for place, row in rows.items() if not _is_raced(row)}
        places = [place for place, row in rows.items() if _is_raced(row)]
        if not places:
            return [results[place] for place in range(len(requests))]
    raise refusal(
        ErrorCategory.UNAVAILABLE,
        "workflow.already_enqueued",
        "another transaction keeps changing the run of this key; retry",
        field="idempotency_key",
        entry_index=places[0] if is_batch else None,
    )


def _is_raced(row: EnqueuedRunRow) -> bool:
    return row.verdict == "RACED"


def _enqueued(row: EnqueuedRunRow) -> EnqueuedWorkflowRun:
    return EnqueuedWorkflowRun(row.id, EnqueueDisposition(row.verdict))


def _raise_refusal(
    rows: Sequence[EnqueuedRunRow],
    requests: Sequence[WorkflowRunEnqueue],
    places: Sequence[int],
    *,
    is_batch: bool,
) -> None:
    """Raise for the first request that is refused; then nothing was inserted."""
    undefined = rows[0].undefined_entry
    # Entries of the steps count on from request to request.
    last_entry = 0
    for row, request, place in zip(rows, requests, places, strict=True):
        first_entry, last_entry = last_entry + 1, last_entry + len(request.steps)
        if (refused := _refusal(row.verdict, entry_index=place if is_batch else None)) is not None:
            raise refused
        if undefined is not None and first_entry <= undefined <= last_entry:
            step = undefined - first_entry
            raise undefined_step(step, request_index=place if is_batch else None)


def _refusal(verdict: str, *, entry_index: int | None) -> QueryError | None:
    match verdict:
        case "UNSUPPORTED_ISOLATION":
            return refusal(
                ErrorCategory.VALIDATION,
                "workflow.enqueue_idempotency_unsupported_isolation",
                "an enqueue with a key needs a READ COMMITTED transaction",
                field="db",
                entry_index=entry_index,
            )
        case "LEGACY":
            return refusal(
                ErrorCategory.CONFLICT,
                "workflow.legacy_idempotency_snapshot_missing",
                "the key's run was stored without its request, so it cannot be compared",
                field="idempotency_key",
                entry_index=entry_index,
            )
        case "CONFLICT":
            return refusal(
                ErrorCategory.CONFLICT,
                "workflow.enqueue_conflicting_retry",
                "the key belongs to a run with another request",
                field="idempotency_key",
                entry_index=entry_index,
            )
        case _:
            return None


def _require_sendable(requests: Sequence[WorkflowRunEnqueue], *, field: str) -> None:
    characters = sum(
        len(request.metadata_json) + sum(len(step.payload_json) for step in request.steps)
        for request in requests
    )
    if characters > _MOST_CHARACTERS:
        raise refusal(
            ErrorCategory.VALIDATION,
            "workflow.enqueue_too_large",
            f"the payloads of one call have more than {_MOST_CHARACTERS} characters together",
            field=field,
        )
