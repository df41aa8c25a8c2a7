from __future__ import annotations

import threading

import pytest

from runledger_core import UnavailableError
from runledger_test_support.signals import ObservedEvent, ObservedKind, WaitableObserver


def test_event_of_the_past_is_found() -> None:
    observer = WaitableObserver()
    observer.on_job_succeeded("done")

    found = observer.wait_for_kind(ObservedKind.JOB_SUCCEEDED, timeout_seconds=0)

    assert found == ObservedEvent(ObservedKind.JOB_SUCCEEDED, "done")


def test_wait_ends_with_the_event() -> None:
    observer = WaitableObserver()
    observer.on_job_running("first")
    thread = threading.Thread(target=observer.on_job_failed, args=("second",))
    thread.start()

    found = observer.wait_for(lambda one: one.event == "second")
    thread.join()

    assert found.kind is ObservedKind.JOB_FAILED


def test_oldest_fitting_event_is_returned() -> None:
    observer = WaitableObserver()
    for number in (1, 2, 3):
        observer.on_job_running(number)

    found = observer.wait_for(lambda one: isinstance(one.event, int) and one.event > 1)

    assert found.event == 2


def test_predicate_sees_each_event_once() -> None:
    observer = WaitableObserver()
    observer.on_job_running("one")
    seen: list[object] = []

    def is_second(one: ObservedEvent) -> bool:
        seen.append(one.event)
        if one.event == "one":
            observer.on_job_running("two")
        return one.event == "two"

    observer.wait_for(is_second)

    assert seen == ["one", "two"]


def test_missing_event_ends_the_wait_and_tells_what_was_seen() -> None:
    observer = WaitableObserver()
    observer.on_job_running("one")
    observer.on_job_running("two")

    with pytest.raises(UnavailableError) as refused:
        observer.wait_for_kind(ObservedKind.JOB_SUCCEEDED, timeout_seconds=0)

    assert refused.value.code == "test_support.wait_timeout"
    assert "JOB_RUNNING 2" in refused.value.client_message


def test_every_method_has_its_kind() -> None:
    observer = WaitableObserver()

    for kind in ObservedKind:
        getattr(observer, f"on_{kind.lower()}")(kind)

    assert [one.kind for one in observer.events] == list(ObservedKind)
    observer.clear()
    assert observer.events == []
