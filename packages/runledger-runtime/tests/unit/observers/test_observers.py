import pytest

from runledger_core import ValidationError
from runledger_runtime.observers import JobLifecycleObserver, JobLifecycleObservers


class Quiet(JobLifecycleObserver):
    pass


class AsyncMethod(JobLifecycleObserver):
    async def on_job_failed(self, event):  # pyright: ignore[reportIncompatibleMethodOverride]  # the point
        del event


class AsyncCallable:
    async def __call__(self, event):
        del event


def test_observers_are_collected_and_the_collection_never_changes():
    first, second = Quiet(), Quiet()
    empty = JobLifecycleObservers.empty()
    one = empty.with_observer(first)
    two = one.with_observer(second)

    assert (list(empty), list(one), list(two)) == ([], [first], [first, second])
    assert list(JobLifecycleObservers.from_observer(first)) == [first]
    assert [bool(each) for each in (empty, one)] == [False, True]


@pytest.mark.parametrize("observer", [None, Quiet, object(), lambda event: event])
def test_what_is_no_observer_is_refused(observer):
    with pytest.raises(ValidationError) as refused:
        JobLifecycleObservers([observer])

    assert refused.value.code == "observer.invalid_observer"


def test_method_that_cannot_be_called_is_refused():
    observer = Quiet()
    observer.on_job_failed = "no"  # pyright: ignore[reportAttributeAccessIssue]  # the point

    with pytest.raises(ValidationError) as refused:
        JobLifecycleObservers.from_observer(observer)

    assert (refused.value.code, refused.value.field) == (
        "observer.invalid_observer",
        "on_job_failed",
    )


@pytest.mark.parametrize("method", [None, AsyncCallable()])
def test_async_methods_are_refused(method):
    observer = AsyncMethod()
    if method is not None:
        observer = Quiet()
        observer.on_job_failed = method

    with pytest.raises(ValidationError) as refused:
        JobLifecycleObservers.from_observer(observer)

    assert (refused.value.code, refused.value.field) == (
        "observer.async_unsupported",
        "on_job_failed",
    )
