"""The jobs of the demo: believable work, with the trouble that real work has.

What happens to a job follows from its payload and its attempt, so that every run of the demo tells
the same story.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from runledger_core import CancelReason, JobCompletion, JobContext, JobFailure, RunledgerError

from ..catalog import JobCatalog

MAIL: Final = "email.send"
PHOTO: Final = "image.thumbnail"
PAYMENT: Final = "payment.capture"
WEBHOOK: Final = "webhook.deliver"
REPORT: Final = "report.build"
STOCK: Final = "stock.count"
PLAN: Final = "campaign.plan"
RENDER: Final = "campaign.render"
PUBLISH: Final = "campaign.publish"

SIZES: Final = (64, 128, 256, 512, 1024)

_MAIL_SECONDS: Final = 0.9
_SIZE_SECONDS: Final = 0.45
_PAYMENT_SECONDS: Final = 0.8
_PAGE_SECONDS: Final = 0.3
_TELL_SECONDS: Final = 5.0
_COUNT_SECONDS: Final = 0.6
_STEP_SECONDS: Final = 0.7
_VARIANTS: Final = 4


@dataclass(slots=True)
class Witness:
    """What a handler saw that no row can prove."""

    told_to_stop: threading.Event = field(default_factory=threading.Event)
    reason: CancelReason | None = None


# Not a class: the demo runs without the extra that decodes payloads.
Payload: TypeAlias = dict[str, Any]


def make_demo_catalog(witness: Witness) -> JobCatalog:
    """Return the catalog of the demo; the witness learns of a cancelled report."""

    def sleep(context: JobContext, seconds: float) -> None:
        """Sleep, but no longer than until the handler should stop."""
        if context.wait(seconds):
            witness.reason = context.cancel_reason
            witness.told_to_stop.set()
            context.raise_if_cancelled()

    def build_report(context: JobContext, payload: Payload) -> JobCompletion | None:
        pages = payload["pages"]
        for page in range(1, pages + 1):
            sleep(context, _PAGE_SECONDS)
            try:
                context.progress(page, pages, checkpoint={"page": page})
            except RunledgerError:
                # Canceled a moment ago: the write is refused before the handler is told.
                sleep(context, _TELL_SECONDS)
                raise
        return JobCompletion.with_output({"title": payload["title"], "pages": pages})

    return (
        JobCatalog()
        .job(MAIL, send_mail, max_attempts=5, timeout_seconds=20)
        .job(PHOTO, make_thumbnails, max_attempts=3, timeout_seconds=20)
        .job(PAYMENT, capture_payment, max_attempts=5, timeout_seconds=20, priority=5)
        .job(WEBHOOK, deliver_webhook, max_attempts=3, timeout_seconds=20)
        .job(REPORT, build_report, max_attempts=2, timeout_seconds=60, priority=10)
        .job(STOCK, count_stock, max_attempts=3, timeout_seconds=20)
        .job(PLAN, plan_campaign, max_attempts=3, timeout_seconds=20, priority=7)
        .job(RENDER, render_campaign, max_attempts=3, timeout_seconds=20, priority=7)
        .job(PUBLISH, publish_campaign, max_attempts=3, timeout_seconds=20, priority=7)
        # The usual delays, 10 s and more, would make a long show.
        .retry_delay_override(MAIL, "email.server_busy", 800)
        .retry_delay_override(PHOTO, "job.handler_exception", 1_200)
        .retry_delay_override(PAYMENT, "payment.gateway_timeout", 1_000)
        .retry_delay_override(WEBHOOK, "webhook.unreachable", 900)
        .retry_delay_override(RENDER, "campaign.fonts_missing", 700)
    )


def send_mail(context: JobContext, payload: Payload) -> None:
    """Pretend to send a mail; a busy server is worth another attempt."""
    context.wait(_MAIL_SECONDS)
    if context.attempt <= payload["busy"]:
        raise JobFailure.retryable("email.server_busy", "421 too many connections, try later")
    context.log("INFO", "mail sent", to=payload["to"])


def make_thumbnails(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to scale a photo, size by size; an unexpected exception is tried again."""
    names: list[str] = []
    for done, size in enumerate(SIZES, start=1):
        context.wait(_SIZE_SECONDS)
        if context.attempt <= payload["disk_full"]:
            raise OSError(28, "No space left on device")
        names.append(f"{payload['photo']}-{size}.webp")
        context.progress(done, len(SIZES))
    return JobCompletion.with_output({"files": names})


def capture_payment(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to capture a payment; a declined card is final, a slow gateway is not."""
    context.wait(_PAYMENT_SECONDS)
    if payload["is_declined"]:
        raise JobFailure.terminal("payment.card_declined", "the bank declined the card")
    if context.attempt <= payload["timeouts"]:
        raise JobFailure.retryable("payment.gateway_timeout", "no answer from the gateway")
    return JobCompletion.with_output({"order": payload["order"], "state": "captured"})


def deliver_webhook(context: JobContext, payload: Payload) -> None:
    """Pretend to call a service that is gone; all attempts fail."""
    context.wait(_PAYMENT_SECONDS)
    raise JobFailure.retryable("webhook.unreachable", f"no route to {payload['url']}")


def count_stock(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to count the stock; the schedule tells for which of its fires."""
    context.wait(_COUNT_SECONDS)
    return JobCompletion.with_output({"as_of": payload["_schedule"]["scheduled_for"]})


def plan_campaign(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to plan; what it gives is there for the steps behind it."""
    context.wait(_STEP_SECONDS)
    return JobCompletion.with_output(dict.fromkeys(payload["regions"], _VARIANTS))


def render_campaign(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to render what the plan says for one region."""
    context.wait(_STEP_SECONDS)
    if context.attempt <= payload["fonts_missing"]:
        raise JobFailure.retryable("campaign.fonts_missing", "the fonts are on their way")
    plan: Any = context.prerequisite_outputs["plan"]
    return JobCompletion.with_output({"variants": plan[payload["region"]]})


def publish_campaign(context: JobContext, payload: Payload) -> JobCompletion:
    """Pretend to publish all renderings; the gate tells who approved."""
    del payload
    context.wait(_STEP_SECONDS)
    given: dict[str, Any] = dict(context.prerequisite_outputs)
    approval = given.pop("approval")
    variants = sum(rendering["variants"] for rendering in given.values())
    return JobCompletion.with_output({"approved_by": approval["by"], "variants": variants})
