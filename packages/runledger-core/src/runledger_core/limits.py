"""Bounds of what is accepted, in one place, for the whole process."""

from dataclasses import KW_ONLY, asdict, dataclass
from threading import Lock
from typing import Final

from runledger_core.text import check_int

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Hold the largest sizes that are accepted.

    Attributes:
        payload_bytes: Job payload, as JSON in UTF-8.
        metadata_bytes: Workflow metadata, as JSON in UTF-8.
        checkpoint_bytes: Checkpoint of a job, as JSON in UTF-8.
        output_bytes: Output of a job, as JSON in UTF-8.
        log_payload_bytes: Fields of one job log line, as JSON in UTF-8.
        json_depth: Lists and objects within each other, the outermost counted.
        identifier_characters: Job type, workflow type, step key, schedule name, worker id.
        key_bytes: Idempotency or mutation key, in UTF-8.
        error_message_bytes: Stored error message or reason, in UTF-8; longer text is cut.
    """

    _: KW_ONLY
    payload_bytes: int = _MIB
    metadata_bytes: int = _MIB
    checkpoint_bytes: int = _MIB
    output_bytes: int = 256 * _KIB
    log_payload_bytes: int = 64 * _KIB
    json_depth: int = 200
    identifier_characters: int = 200
    key_bytes: int = 512
    error_message_bytes: int = 8 * _KIB


# Python's JSON decoder gives up at about 1,000 levels; an index row of PostgreSQL that holds an
# identifier of four-byte characters and a key ends at 2,704 bytes.
_CEILING: Final = Limits(
    payload_bytes=64 * _MIB,
    metadata_bytes=64 * _MIB,
    checkpoint_bytes=64 * _MIB,
    output_bytes=64 * _MIB,
    log_payload_bytes=64 * _MIB,
    json_depth=500,
    identifier_characters=300,
    key_bytes=1024,
    error_message_bytes=_MIB,
)

_lock = Lock()
_current = Limits()


def current_limits() -> Limits:
    """Return the limits in force in this process."""
    return _current


def raise_limits(**overrides: int) -> Limits:
    """Raise limits for the whole process and return those now in force.

    Call it once at start-up, with the same values in every process that shares a database: what
    one accepts, the others must be able to read.

    Args:
        **overrides: Fields of `Limits` with their new values. None may be lower than now, nor
            higher than storage takes: 64 MiB of JSON, 500 levels, 300 characters, keys of 1,024
            bytes, messages of 1 MiB.

    Raises:
        ValidationError: `input.wrong_type` or `input.out_of_range`; nothing is changed then.
    """
    global _current  # noqa: PLW0603  # one set of limits for the process is the point
    with _lock:
        lowest, highest = asdict(_current), asdict(_CEILING)
        for name, value in overrides.items():
            if name not in lowest:
                raise TypeError(f"there is no limit named {name!r}")
            check_int(value, field=name, minimum=lowest[name], maximum=highest[name])
        _current = Limits(**(lowest | overrides))
        return _current
