import logging
from types import SimpleNamespace
from typing import Any

from runledger_runtime.cli._log import LineFormatter, log_to_stderr


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


def test_line_of_a_handler_has_the_fields_of_its_job(capsys, monkeypatch):
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    context: Any = SimpleNamespace(
        job_id=7, job_type="a.b", run_number=1, attempt=2, organization_id=None, worker_id="w"
    )
    fields = log_to_stderr("info")

    fields.execute(context, {}, lambda *_: root.info("inside"))
    root.info("outside")

    inside, outside = capsys.readouterr().err.splitlines()
    assert inside.endswith(
        "inside job_id=7 job_type=a.b run_number=1 attempt=2 organization_id=None worker_id=w"
    )
    assert outside.endswith("root: outside")
