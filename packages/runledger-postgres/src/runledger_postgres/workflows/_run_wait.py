"""One thread's wait for one run, and what a look tells it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final
from uuid import UUID

from runledger_core.workflows import WorkflowRunStatus

from .._rows import Statement, column

if TYPE_CHECKING:
    from ._waiting import RunWatch

# Until then a wait does without a listener, which most results do not need.
_FIRST_LOOK_SECONDS: Final = 1.0
_LAST_LOOK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class RunEndRow:
    """What those who wait for a run want to know of it; the result is JSON text."""

    id: UUID
    workflow_type: str
    organization_id: UUID | None
    result_step_key: str | None
    result: str | None
    finished_at: datetime | None
    status: WorkflowRunStatus = column(WorkflowRunStatus)


LOOK_AT_RUNS: Final = Statement(
    """
    SELECT
        q.id, q.workflow_type, q.organization_id, q.status, q.result_step_key, q.result,
        q.finished_at
    FROM runledger.workflow_runs AS q
    WHERE q.id = ANY (%(run_ids)s::uuid[])
    """,
    RunEndRow,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a look found: a run, none, or that no look will find anything."""

    row: RunEndRow | None
    error: Exception | None = None
    question: int = 0
    """The last question that had been asked when the look began."""


class RunWait:
    """One thread's wait for one run."""

    def __init__(self, watch: RunWatch, run_id: UUID, poll_interval: float) -> None:
        """Wait for nothing yet."""
        self._watch = watch
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self.run_id = run_id
        self.poll_interval = poll_interval
        self.asked = 0
        self.answered = 0

    @property
    def trouble(self) -> Exception | None:
        """Why the database could not be asked for the run's end; None if it only goes on.

        That the pool was busy is no trouble.
        """
        return None if self.answered == self.asked else self._watch.trouble

    def leave(self) -> None:
        """Wait no longer."""
        self._watch.remove(self)

    def tell(self, answer: Answer) -> None:
        """Hand over what a look has found."""
        self.answered = answer.question
        self._answers.put(answer)

    def answers(self, timeout: float | None) -> Iterator[Answer]:
        """Yield what looks find: at once, when the run ends, and last behind the deadline.

        The last look is over a quarter of a second after it, answered or not.
        """
        ends_at = math.inf if timeout is None else time.monotonic() + timeout
        if ends_at > time.monotonic():
            question = self._watch.ask(self)
            soon = time.monotonic() + _FIRST_LOOK_SECONDS
            yield from self._answers_until(min(ends_at, soon), question)
            self._watch.listen()
            yield from self._answers_until(ends_at)
        question = self._watch.ask(self)
        yield from self._answers_until(time.monotonic() + _LAST_LOOK_SECONDS, question)

    def _answers_until(self, ends_at: float, question: float = math.inf) -> Iterator[Answer]:
        while True:
            left = None if ends_at == math.inf else max(ends_at - time.monotonic(), 0)
            try:
                answer = self._answers.get(timeout=left)
            except Empty:
                return
            yield answer
            if answer.question >= question:
                return
