from __future__ import annotations

from runledger_core import JobFailure
from runledger_runtime.worker._raised import failure_of, gravity_of, leaves_of


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
