from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import runledger_runtime
from runledger_runtime.safe_log import safe_logger

NAME = "runledger_runtime.test_safe_log"
# Commands are processes of their own, and end by what they cannot log.
ENGINE = [
    path
    for path in Path(runledger_runtime.__file__).parent.rglob("*.py")
    if path.name != "safe_log.py" and path.parent.name != "cli"
]


class FailingFilter(logging.Filter):
    """A filter of the host's that fails at every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError(record.name)


@pytest.fixture
def failing() -> Iterator[None]:
    logger, failing = logging.getLogger(NAME), FailingFilter()
    logger.addFilter(failing)
    yield
    logger.removeFilter(failing)


def test_record_has_its_caller_level_and_fields(caplog: pytest.LogCaptureFixture):
    logger = safe_logger(NAME)

    with caplog.at_level(logging.INFO, NAME):
        logger.debug("not wanted")
        logger.warning("of %s", "us", extra={"job_id": "1"})
        logger.log(logging.INFO, "of us")
        try:
            raise ValueError  # noqa: TRY301  # to have one
        except ValueError:
            logger.exception("of us")

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "ERROR"]
    name = "test_record_has_its_caller_level_and_fields"
    assert {record.funcName for record in caplog.records} == {name}
    assert {record.getMessage() for record in caplog.records} == {"of us"}
    assert vars(caplog.records[0])["job_id"] == "1"
    assert caplog.records[2].exc_info is not None


@pytest.mark.usefixtures("failing")
def test_filter_that_raises_ends_nothing():
    logger = safe_logger(NAME)

    logger.error("lost")
    logger.log(logging.ERROR, "lost")
    logger.critical("lost", exc_info=ValueError())

    with pytest.raises(LookupError):
        logging.getLogger(NAME).error("lost")


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.stem)
def test_engine_logs_by_safe_loggers_only(path: Path):
    assert re.search(r"getLogger|logging\.(debug|info|warn|error|exc)", path.read_text()) is None
