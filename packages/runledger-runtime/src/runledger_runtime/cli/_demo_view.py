"""How the demo is shown: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runledger_core import JobStatus, visible_text
from runledger_postgres import JobSummary

from ._output import STATUS_STYLES

_SHOWN_EVENTS: Final = 8
_SHOWN_RUNNING: Final = 6
_BAR_WIDTH: Final = 20
_PLAIN_EVERY_SECONDS: Final = 2.0
_WORDS: Final = {
    JobStatus.PENDING: "waiting",
    JobStatus.LEASED: "running",
    JobStatus.SUCCEEDED: "succeeded",
    JobStatus.DEAD_LETTERED: "dead-lettered",
    JobStatus.CANCELED: "canceled",
}
# The first word that is in a sentence counts.
_EVENT_STYLES: Final = {
    "enqueued": "bold",
    "canceled": "magenta",
    "dead letter": "red",
    "failed": "yellow",
}


class View(Protocol):
    """What the show is drawn on."""

    def tell(self, sentence: str, *, at_seconds: float) -> None:
        """Show something that happened."""
        ...

    def draw(self, jobs: Sequence[JobSummary], *, at_seconds: float) -> None:
        """Show how the jobs are now."""
        ...


@contextmanager
def open_view(console: Console, labels: Mapping[UUID, str]) -> Generator[View]:
    """Return the view that fits the console."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield _PlainView(console)
        return
    view = _LiveView(labels)
    with Live(view, console=console, auto_refresh=False, redirect_stderr=False) as live:
        view.live = live
        yield view


class Changes:
    """Turns two looks at the jobs into sentences about what happened between them."""

    def __init__(self, labels: Mapping[UUID, str]) -> None:
        """Start without a look."""
        self._labels = labels
        self._before: dict[UUID, JobSummary] = {}

    def since_last(self, jobs: Sequence[JobSummary]) -> list[str]:
        """Return what is worth telling, in the order of the jobs."""
        sentences = [
            f"{self._labels.get(job.id, job.job_type)}: {sentence}"
            for job in jobs
            if (sentence := self._sentence(self._before.get(job.id), job)) is not None
        ]
        self._before = {job.id: job for job in jobs}
        return sentences

    def _sentence(self, before: JobSummary | None, job: JobSummary) -> str | None:
        if before is not None and (before.status, before.attempt) == (job.status, job.attempt):
            return None
        match job.status:
            case JobStatus.PENDING if job.attempt:
                return f"attempt {job.attempt} failed with {job.last_error_code}, tried again soon"
            case JobStatus.SUCCEEDED if job.attempt > 1:
                return f"succeeded at attempt {job.attempt}"
            case JobStatus.SUCCEEDED:
                return "succeeded"
            case JobStatus.DEAD_LETTERED:
                return f"dead letter after attempt {job.attempt}: {job.last_error_code}"
            case JobStatus.CANCELED:
                return "canceled"
            case _:
                return None


class _PlainView:
    """Lines for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counted_at = 0.0

    def tell(self, sentence: str, *, at_seconds: float) -> None:
        self._print(sentence, at_seconds)

    def draw(self, jobs: Sequence[JobSummary], *, at_seconds: float) -> None:
        if at_seconds - self._counted_at >= _PLAIN_EVERY_SECONDS:
            self._counted_at = at_seconds
            counts = Counter(job.status for job in jobs)
            self._print(
                ", ".join(f"{counts[status]} {word}" for status, word in _WORDS.items()),
                at_seconds,
            )

    def _print(self, sentence: str, at_seconds: float) -> None:
        self._console.print(f"[{at_seconds:5.1f} s] {visible_text(sentence)}", soft_wrap=True)


class _LiveView:
    """One picture, drawn again and again."""

    def __init__(self, labels: Mapping[UUID, str]) -> None:
        self.live: Live | None = None
        self._labels = labels
        self._events: deque[Text] = deque(maxlen=_SHOWN_EVENTS)
        self._jobs: Sequence[JobSummary] = ()
        self._at_seconds = 0.0

    def tell(self, sentence: str, *, at_seconds: float) -> None:
        style = next((style for word, style in _EVENT_STYLES.items() if word in sentence), "")
        line = Text().append(f"{at_seconds:5.1f} s  ", style="dim")
        self._events.append(line.append(visible_text(sentence), style=style))

    def draw(self, jobs: Sequence[JobSummary], *, at_seconds: float) -> None:
        self._jobs, self._at_seconds = jobs, at_seconds
        if self.live is not None:
            self.live.refresh()

    def __rich__(self) -> RenderableType:
        return Group(
            self._counts(), Text(), self._types(), Text(), self._running(), Text(), self._news()
        )

    def _counts(self) -> RenderableType:
        counts = Counter(job.status for job in self._jobs)
        line = Text(f"{self._at_seconds:5.1f} s")
        for status, word in _WORDS.items():
            line.append("   ").append(f"{counts[status]} {word}", style=STATUS_STYLES[status])
        return line

    def _types(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("TYPE", no_wrap=True, min_width=16)
        for word in _WORDS.values():
            table.add_column(word.upper(), justify="right", no_wrap=True)
        counts = Counter((job.job_type, job.status) for job in self._jobs)
        for job_type in sorted({job.job_type for job in self._jobs}):
            cells = (
                Text(str(counts[job_type, status] or "·"), style=STATUS_STYLES[status])
                for status in _WORDS
            )
            table.add_row(Text(visible_text(job_type)), *cells)
        return table

    def _running(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=22)
        table.add_column(no_wrap=True, min_width=12)
        table.add_column(no_wrap=True, min_width=_BAR_WIDTH)
        running = [job for job in self._jobs if job.status is JobStatus.LEASED][:_SHOWN_RUNNING]
        for job in running:
            bar: RenderableType = Text()
            if job.progress_total:
                bar = ProgressBar(
                    total=job.progress_total, completed=job.progress_done or 0, width=_BAR_WIDTH
                )
            label = self._labels.get(job.id, job.job_type)
            table.add_row(Text(label, style="cyan"), Text(f"attempt {job.attempt}"), bar)
        # The same height always, or the picture would jump.
        for _ in range(_SHOWN_RUNNING - len(running)):
            table.add_row(Text(" "), Text(), Text())
        return table

    def _news(self) -> RenderableType:
        padding = [Text(" ")] * (_SHOWN_EVENTS - len(self._events))
        return Group(*self._events, *padding)
