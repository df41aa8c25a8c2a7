from __future__ import annotations

import psycopg
from psycopg.errors import PipelineAborted

from runledger_postgres._database import first_error


def after(error: psycopg.Error, earlier: BaseException | None) -> psycopg.Error:
    error.__context__ = earlier
    return error


def test_error_before_the_skipped_statements_is_the_one_that_counts():
    first = psycopg.errors.DivisionByZero("first")

    skipped = after(PipelineAborted("second"), after(PipelineAborted("third"), first))

    assert first_error(skipped) is first


def test_error_that_skipped_nothing_stays():
    first = psycopg.errors.DivisionByZero("first")
    later = after(psycopg.errors.UniqueViolation("later"), first)

    assert first_error(later) is later


def test_skipped_statements_without_an_earlier_error_stay_what_they_are():
    skipped = after(PipelineAborted("aborted"), ZeroDivisionError())

    assert first_error(skipped) is skipped
