import logging

from runledger_runtime.cli._log import LineFormatter


def make_record(message: str, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "runledger", "levelname": "INFO", "msg": message})
    record.created, record.msecs = 0.0, 7.0
    record.__dict__.update(extra)
    return record


def test_line_has_utc_time_level_logger_and_extras():
    line = LineFormatter().format(make_record("outcome refused", job_type="a.b", attempt=2))

    expected = "1970-01-01 00:00:00.007Z INFO    runledger: outcome refused"
    assert line == f"{expected} job_type=a.b attempt=2"


def test_control_characters_of_values_are_marks():
    line = LineFormatter().format(make_record("refused", job_type="\x1b[2J\n"))

    assert line.endswith("job_type=␛[2J␊")
