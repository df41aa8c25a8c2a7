import copy
import pickle

import pytest

from runledger_core import (
    ConflictError,
    ErrorCategory,
    ForbiddenError,
    InternalError,
    NotFoundError,
    RunledgerError,
    UnavailableError,
    ValidationError,
    codes,
)

SUBCLASSES = {
    ConflictError: "CONFLICT",
    ValidationError: "VALIDATION",
    NotFoundError: "NOT_FOUND",
    ForbiddenError: "FORBIDDEN",
    InternalError: "INTERNAL",
    UnavailableError: "UNAVAILABLE",
}


class DriverError(ConflictError):
    """Takes other arguments than its base and carries more."""

    def __init__(self, sqlstate: str, *, internal_message: str) -> None:
        super().__init__("db.unique_violation", "the row exists", field="key", entry_index=3)
        self.sqlstate = sqlstate
        self.internal_message = internal_message


def pickled(error, protocol=None):
    return pickle.loads(pickle.dumps(error, protocol))  # our own bytes


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_each_category_has_its_own_class(kind):
    error = kind("job.x", "text")

    assert error.category == SUBCLASSES[kind]
    assert isinstance(error, RunledgerError)


def test_every_category_has_a_class():
    assert set(SUBCLASSES.values()) == set(ErrorCategory)


def test_printed_forms_hold_the_client_safe_parts():
    error = ValidationError("input.blank", "key must not be blank", field="key", entry_index=0)

    assert str(error) == "input.blank: key must not be blank"
    assert repr(error) == (
        "ValidationError(code='input.blank', client_message='key must not be blank', "
        "field='key', entry_index=0)"
    )


def test_repr_leaves_out_what_is_not_set():
    error = ConflictError("job.x", "text")

    assert repr(error) == "ConflictError(code='job.x', client_message='text')"


def test_printed_forms_of_subclasses_never_show_their_internal_message():
    error = DriverError("23505", internal_message="Key (email)=(a@example.com) exists")

    assert "a@example.com" not in str(error) + repr(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_every_part(protocol):
    error = ValidationError("input.blank", "text", field="key", entry_index=7)
    error.add_note("seen while enqueueing")

    loaded = pickled(error, protocol)

    assert type(loaded) is ValidationError
    assert loaded.__dict__ == error.__dict__
    assert loaded.args == ("input.blank", "text")


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickled])
def test_subclasses_with_other_arguments_are_cloned(clone):
    error = DriverError("23505", internal_message="detail")

    cloned = clone(error)

    assert type(cloned) is DriverError
    assert (cloned.code, cloned.field, cloned.entry_index) == ("db.unique_violation", "key", 3)
    assert (cloned.sqlstate, cloned.internal_message) == ("23505", "detail")
    assert str(cloned) == "db.unique_violation: the row exists"


def test_every_code_has_a_meaning():
    prefixes = ("INPUT_", "JOB_", "WORKFLOW_")
    constants = {value for name, value in vars(codes).items() if name.startswith(prefixes)}

    assert constants == set(codes.MEANINGS)
