"""What the demo does and when: enqueues, a repeated one, a schedule, a workflow, two cancels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from psycopg_pool import ConnectionPool

from runledger_core import (
    EnqueueDisposition,
    JobEnqueue,
    JobScheduleUpsert,
    JobStatus,
    JsonInput,
    Scope,
)
from runledger_postgres import (
    JobFilter,
    JobSummary,
    cancel_job,
    cancel_jobs,
    enqueue_jobs,
    list_jobs,
)
from runledger_postgres.schedules import set_job_schedule_active, upsert_job_schedule

from ..cron import next_fire_after
from ._demo_catalog import MAIL, PAYMENT, PHOTO, REPORT, STOCK, WEBHOOK, Witness
from ._demo_workflow import Campaign

EXPECTED_DEAD_LETTERS: Final = 2
EXPECTED_CANCELED: Final = 2
LEAST_FIRES: Final = 2

_NAMES: Final = (
    "billing", "claims", "design", "events", "grants", "hosting", "imports", "jobs", "kitchen",
    "legal", "media", "news", "orders", "press", "quality", "returns", "sales", "travel",
)  # fmt: skip
_BUSY_NAMES: Final = frozenset({"claims", "legal", "orders"})
_FIRST_MAILS: Final = 9
_ORDERS: Final = range(1001, 1009)
_PHOTOS: Final = ("beach", "castle", "dunes", "forest", "harbour", "island")
_MOST_JOBS: Final = 100
_EVERY_TWO_SECONDS: Final = "*/2 * * * * ?"


@dataclass(slots=True)
class _Scene:
    at_seconds: float
    play: Callable[[], bool]
    """Returns False to be called again later."""


class Script:
    """Plays the scenes when their time has come, and remembers what was enqueued.

    All jobs belong to one organization of this run, so that a directory may be used again.
    """

    def __init__(
        self, pool: ConnectionPool[Any], witness: Witness, tell: Callable[[str], None]
    ) -> None:
        """Prepare the scenes; what happens is told in sentences."""
        self.organization_id = uuid4()
        self.scope = Scope.organization(self.organization_id)
        self.schedule_name = f"demo-stock-{self.organization_id}"
        self.labels: dict[UUID, str] = {}
        self.repeated_enqueue_agrees = False
        self.fires = 0
        self.campaign = Campaign(pool, self.scope, tell)
        self._pool = pool
        self._witness = witness
        self._tell = tell
        self._payments: list[UUID] = []
        self._long_report: UUID | None = None
        self._newsletter: UUID | None = None
        self._started_at = time.monotonic()
        self._scenes = [
            _Scene(0.0, self._enqueue_orders),
            _Scene(1.0, lambda: self.campaign.enqueue(self.organization_id)),
            _Scene(2.0, self._enqueue_photos),
            _Scene(3.0, self._start_schedule),
            _Scene(3.5, self._pause_schedule),
            _Scene(4.0, self._repeat_orders),
            _Scene(5.5, self._enqueue_more_mails),
            _Scene(6.0, self.campaign.approve),
            _Scene(6.5, self._cancel_newsletter),
            _Scene(8.0, self._cancel_report),
        ]

    @property
    def elapsed_seconds(self) -> float:
        """Time since the show began."""
        return time.monotonic() - self._started_at

    @property
    def is_over(self) -> bool:
        """Whether every scene was played."""
        return not self._scenes

    def play(self) -> None:
        """Play the scenes that are due."""
        now = self.elapsed_seconds
        self._scenes = [
            scene for scene in self._scenes if scene.at_seconds > now or not scene.play()
        ]

    def jobs(self) -> list[JobSummary]:
        """Return the jobs of this run as they are now, oldest first."""
        jobs = list_jobs(self._pool, JobFilter(self.scope), limit=_MOST_JOBS)[::-1]
        for job in jobs:
            # All others got their label when they were enqueued.
            if job.id in self.labels:
                continue
            if job.job_type == STOCK:
                self.fires += 1
                self.labels[job.id] = f"stock count {self.fires}"
            elif (label := self.campaign.label(job.id)) is not None:
                self.labels[job.id] = label
        return jobs

    def cancel_all(self) -> None:
        """Cancel whatever has not ended: the show was broken off."""
        set_job_schedule_active(self._pool, self.schedule_name, is_active=False)
        self.campaign.cancel()
        open_jobs = [job.id for job in self.jobs() if not job.status.is_terminal]
        cancel_jobs(self._pool, open_jobs, scope=self.scope, reason="demo broken off")

    def _enqueue_orders(self) -> bool:
        self._payments = self._enqueue(self._order_requests(), [f"order {n}" for n in _ORDERS])
        self._enqueue_mails(_NAMES[:_FIRST_MAILS])
        reports = self._enqueue(
            [
                self._request(REPORT, {"title": "sales of the year", "pages": 60}),
                self._request(REPORT, {"title": "sales of the day", "pages": 12}),
            ],
            ["report of the year", "report of the day"],
        )
        self._long_report = reports[0]
        self._tell(f"enqueued {len(self.labels)} jobs: payments, mails, reports")
        return True

    def _enqueue_photos(self) -> bool:
        requests = [
            self._request(PHOTO, {"photo": name, "disk_full": int(name == "castle")})
            for name in _PHOTOS
        ]
        self._enqueue(requests, [f"photo {name}" for name in _PHOTOS])
        webhook = self._request(WEBHOOK, {"url": "https://gone.example.com/hook"})
        self._enqueue([webhook], ["webhook"])
        later = datetime.now(UTC) + timedelta(hours=1)
        payload: JsonInput = {"to": "everybody@example.com", "busy": 0}
        newsletter = JobEnqueue(
            MAIL, payload, organization_id=self.organization_id, next_run_at=later
        )
        self._newsletter = self._enqueue([newsletter], ["newsletter"])[0]
        self._tell(f"enqueued {len(requests)} photos, a webhook, and a newsletter for in an hour")
        return True

    def _start_schedule(self) -> bool:
        request = JobScheduleUpsert(
            self.schedule_name,
            STOCK,
            cron_expr=_EVERY_TWO_SECONDS,
            organization_id=self.organization_id,
            next_fire_at=next_fire_after(_EVERY_TWO_SECONDS, datetime.now(UTC)),
        )
        upsert_job_schedule(self._pool, request)
        self._tell(f"stored a schedule, {_EVERY_TWO_SECONDS}: count the stock every two seconds")
        return True

    def _pause_schedule(self) -> bool:
        if self.fires < LEAST_FIRES:
            return False
        set_job_schedule_active(self._pool, self.schedule_name, is_active=False)
        self._tell(f"paused the schedule; it has fired {self.fires} times")
        return True

    def _repeat_orders(self) -> bool:
        again = enqueue_jobs(self._pool, self._order_requests())
        self.repeated_enqueue_agrees = [job.id for job in again] == self._payments and all(
            job.disposition is EnqueueDisposition.EXISTING for job in again
        )
        answer = "the same ids came back" if self.repeated_enqueue_agrees else "OTHER ids came back"
        self._tell(f"enqueued the {len(again)} payments once more, by their keys: {answer}")
        return True

    def _enqueue_more_mails(self) -> bool:
        self._enqueue_mails(_NAMES[_FIRST_MAILS:])
        self._tell(f"enqueued {len(_NAMES) - _FIRST_MAILS} more mails")
        return True

    def _cancel_newsletter(self) -> bool:
        if self._newsletter is not None:
            cancel_job(self._pool, self._newsletter, scope=self.scope, reason="typo in the title")
            self._tell("canceled the newsletter before it was due")
        return True

    def _cancel_report(self) -> bool:
        job = next((job for job in self.jobs() if job.id == self._long_report), None)
        if job is None or job.status is not JobStatus.LEASED or not job.progress_done:
            return False
        canceled_at = time.monotonic()
        cancel_job(self._pool, job.id, scope=self.scope, reason="nobody reads it")
        if self._witness.told_to_stop.wait(5.0):
            took = (time.monotonic() - canceled_at) * 1000
            self._tell(f"canceled the report of the year; its handler was told after {took:.0f} ms")
        else:
            self._tell("canceled the report of the year, but its handler was NOT told")
        return True

    def _order_requests(self) -> list[JobEnqueue]:
        return [
            self._request(
                PAYMENT,
                {
                    "order": order,
                    "timeouts": 2 if order in {1003, 1006} else 0,
                    "is_declined": order == 1005,  # noqa: PLR2004  # one of them has bad luck
                },
                key=f"{self.organization_id}:order:{order}",
            )
            for order in _ORDERS
        ]

    def _enqueue_mails(self, names: Sequence[str]) -> None:
        requests = [
            self._request(MAIL, {"to": f"{name}@example.com", "busy": int(name in _BUSY_NAMES)})
            for name in names
        ]
        self._enqueue(requests, [f"mail to {name}" for name in names])

    def _request(self, job_type: str, payload: JsonInput, key: str | None = None) -> JobEnqueue:
        return JobEnqueue(
            job_type, payload, organization_id=self.organization_id, idempotency_key=key
        )

    def _enqueue(self, requests: Sequence[JobEnqueue], labels: Sequence[str]) -> list[UUID]:
        ids = [job.id for job in enqueue_jobs(self._pool, requests)]
        self.labels.update(zip(ids, labels, strict=True))
        return ids
