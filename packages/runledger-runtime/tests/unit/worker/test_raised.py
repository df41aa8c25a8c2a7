from __future__ import annotations

from runledger_core import JobFailure
from runledger_runtime.worker._raised import comes_of, failure_of, gravity_of, leaves_of


def test_leaves_of_groups_in_groups_are_found_and_anything_else_is_its_own():
    first, second, third = ValueError("1"), LookupError("2"), KeyError("3")
    group = ExceptionGroup("outer", [first, ExceptionGroup("inner", [second, third])])

    assert leaves_of(group) == [first, second, third]
    assert leaves_of(first) == [first]


def test_group_that_holds_itself_ends():
    class Endless(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> tuple[Exception, ...]:  # type: ignore[override]  # the fault
            return (self, self)

    endless = Endless("endless", [ValueError("x")])

    assert leaves_of(endless) == [endless]


def test_of_a_huge_group_no_more_than_ten_thousand_are_looked_at():
    one = ValueError("x")
    group = ExceptionGroup("huge", [ExceptionGroup("big", [one] * 9_000)] * 2)

    assert len(leaves_of(group)) < 10_000


def test_panics_go_first_then_what_is_final_then_what_the_handler_chose():
    again, gone = JobFailure.retryable("a.later", "later"), JobFailure.terminal("a.gone", "gone")
    plain, panic = ValueError("x"), MemoryError("m")

    assert sorted([plain, again, gone, panic], key=gravity_of) == [panic, gone, again, plain]


def test_failure_is_copied_and_anything_else_named():
    raised = JobFailure.terminal("a.gone", "gone")

    assert failure_of(raised) == raised
    assert failure_of(raised) is not raised
    assert failure_of(KeyError("x")) == JobFailure.retryable(
        "job.handler_exception", "KeyError: 'x'"
    )


def raised_from(cause: BaseException | None, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_exception_comes_of_what_led_to_it_over_several_others():
    cancelled = TimeoutError("cancelled")
    error = raised_from(raised_from(cancelled, LookupError("inner")), ValueError("outer"))

    assert comes_of(error, (TimeoutError,))
    assert comes_of(cancelled, (TimeoutError,))
    assert not comes_of(error, (KeyError,))


def test_failure_or_panic_comes_of_nothing_wherever_it_stands():
    cancelled = TimeoutError("cancelled")

    for own in (JobFailure.terminal("a.gone", "gone"), MemoryError("m"), SystemExit(1)):
        assert not comes_of(raised_from(cancelled, own), (TimeoutError,))
        assert not comes_of(raised_from(own, ValueError("x")), (TimeoutError,))


def test_what_led_to_itself_or_has_no_end_is_looked_at_for_a_while():
    class EndlessError(ValueError):
        @property
        def __context__(self) -> BaseException:  # type: ignore[override]  # the fault
            return EndlessError()

    first, second = ValueError("1"), ValueError("2")
    raised_from(raised_from(second, first), second)

    assert not comes_of(first, (TimeoutError,))
    assert not comes_of(EndlessError(), (TimeoutError,))


def test_exception_whose_attributes_raise_comes_of_nothing():
    class OpaqueError(ValueError):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]  # the fault
            raise LookupError

    assert not comes_of(OpaqueError(), (TimeoutError,))
