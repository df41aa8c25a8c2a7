import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from runledger_core import ValidationError, cron
from runledger_core.cron import CronExpression

# A Friday.
START = "2026-02-27T10:15:30"

# What an expression names after START, or after the instant beside it; None where it ends.
GOLDEN = [
    # Five fields: minute first.
    ("* * * * *", ["2026-02-27T10:16:00", "2026-02-27T10:17:00"]),
    ("*/15 * * * *", ["2026-02-27T10:30:00", "2026-02-27T10:45:00"]),
    ("5/20 * * * *", ["2026-02-27T10:25:00", "2026-02-27T10:45:00", "2026-02-27T11:05:00"]),
    ("0 9-17/4 * * *", ["2026-02-27T13:00:00", "2026-02-27T17:00:00", "2026-02-28T09:00:00"]),
    ("15,45 0-3,22 * * *", ["2026-02-27T22:15:00", "2026-02-27T22:45:00", "2026-02-28T00:15:00"]),
    ("30 6 * * MON-FRI", ["2026-03-02T06:30:00", "2026-03-03T06:30:00"]),
    ("0 0 * * 0", ["2026-03-01T00:00:00", "2026-03-08T00:00:00"]),
    ("0 0 * * 7", ["2026-03-01T00:00:00", "2026-03-08T00:00:00"]),
    ("0 0 * * 5-7", ["2026-02-28T00:00:00", "2026-03-01T00:00:00", "2026-03-06T00:00:00"]),
    ("0 0 * * 1-5/2", ["2026-03-02T00:00:00", "2026-03-04T00:00:00", "2026-03-06T00:00:00"]),
    ("0 0 * * SUN-TUE", ["2026-03-01T00:00:00", "2026-03-02T00:00:00", "2026-03-03T00:00:00"]),
    ("0 0 13 * FRI", ["2026-03-06T00:00:00", "2026-03-13T00:00:00", "2026-03-20T00:00:00"]),
    ("0 0 1,15 * MON", ["2026-03-01T00:00:00", "2026-03-02T00:00:00", "2026-03-09T00:00:00"]),
    ("0 0 */10 * MON", ["2026-05-11T00:00:00", "2026-06-01T00:00:00", "2026-08-31T00:00:00"]),
    ("0 0 13 * */2", ["2026-06-13T00:00:00", "2026-08-13T00:00:00", "2026-09-13T00:00:00"]),
    ("0 0 29 2 *", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
    ("0 0 31 * *", ["2026-03-31T00:00:00", "2026-05-31T00:00:00", "2026-07-31T00:00:00"]),
    ("0 0 30 2,4 *", ["2026-04-30T00:00:00", "2027-04-30T00:00:00"]),
    ("0 0 31 4 MON", ["2026-04-06T00:00:00", "2026-04-13T00:00:00"]),
    ("0 0 1 */3 *", ["2026-04-01T00:00:00", "2026-07-01T00:00:00"]),
    ("0 12 1 JAN,jul *", ["2026-07-01T12:00:00", "2027-01-01T12:00:00"]),
    ("0 12 1 January-Mar/2 *", ["2026-03-01T12:00:00", "2027-01-01T12:00:00"]),
    ("0 0 * * tues,Thursday", ["2026-03-03T00:00:00", "2026-03-05T00:00:00"]),
    ("59 23 31 12 *", ["2026-12-31T23:59:00", "2027-12-31T23:59:00"]),
    ("0  0  *  *  *", ["2026-02-28T00:00:00", "2026-03-01T00:00:00"]),
    # Names.
    ("@yearly", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
    ("@annually", ["2027-01-01T00:00:00", "2028-01-01T00:00:00"]),
    ("@monthly", ["2026-03-01T00:00:00", "2026-04-01T00:00:00"]),
    ("@weekly", ["2026-03-01T00:00:00", "2026-03-08T00:00:00"]),
    ("@daily", ["2026-02-28T00:00:00", "2026-03-01T00:00:00"]),
    ("@midnight", ["2026-02-28T00:00:00", "2026-03-01T00:00:00"]),
    ("@hourly", ["2026-02-27T11:00:00", "2026-02-27T12:00:00"]),
    # Six fields: second first, and both days have to match.
    ("* * * * * *", ["2026-02-27T10:15:31", "2026-02-27T10:15:32"]),
    ("0 0 * * * *", ["2026-02-27T11:00:00", "2026-02-27T12:00:00"]),
    ("*/20 * * * * ?", ["2026-02-27T10:15:40", "2026-02-27T10:16:00", "2026-02-27T10:16:20"]),
    ("0 30 6 ? * MON-FRI", ["2026-03-02T06:30:00", "2026-03-03T06:30:00"]),
    ("0 0 0 13 * FRI", ["2026-03-13T00:00:00", "2026-11-13T00:00:00", "2027-08-13T00:00:00"]),
    ("0 0 0 ? * SUN-TUE", ["2026-03-01T00:00:00", "2026-03-02T00:00:00", "2026-03-03T00:00:00"]),
    ("30 15 10 27 2 ?", ["2027-02-27T10:15:30", "2028-02-27T10:15:30"]),
    ("0 0 0 29 2 MON", ["2044-02-29T00:00:00", "2072-02-29T00:00:00", "2112-02-29T00:00:00"]),
    # Seven fields: year last.
    ("0 0 0 ? * WED *", ["2026-03-04T00:00:00", "2026-03-11T00:00:00"]),
    ("0 0 12 ? * * 2027", ["2027-01-01T12:00:00", "2027-01-02T12:00:00"]),
    ("0 0 0 1 1 ? 2099", ["2099-01-01T00:00:00", None]),
    ("0 0 0 1 1 ? 2027/36", ["2027-01-01T00:00:00", "2063-01-01T00:00:00", "2099-01-01T00:00:00"]),
    (
        "0 0 12 1 JUN ? 2020-2026/2,2031",
        ["2026-06-01T12:00:00", "2031-06-01T12:00:00", None],
    ),
    ("59 59 23 31 12 ? 2026", ["2026-12-31T23:59:59", None]),
]

REFUSED = {
    # How many fields.
    "": "must not be blank",
    "   ": "must not be blank",
    "0": "must have 5 fields (minute first), 6 (second first) or 7 (second first, year last),",
    "0 0 * *": "not 4",
    "0 0 * * * ? 2026 1": "not 8",
    "0 0 * * * 0 0 * * *": "not 10",
    "@daily @hourly": "is none of the known names",
    # Characters.
    " 0 0 * * *": "must not begin or end with a blank",
    "0 0 * * * ": "must not begin or end with a blank",
    "0\t0 * * *": "printable ASCII characters only",
    "0 0 * * *\n": "printable ASCII characters only",
    "0 0 * * *\n0 1 * * *": "printable ASCII characters only",
    "\u0660 0 * * *": "printable ASCII characters only",
    "0\u00a00 * * *": "printable ASCII characters only",
    "0 0 * * MON\u2013FRI": "printable ASCII characters only",
    # Names of expressions.
    "@reboot": "write @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly",
    "@every 5m": "is none of the known names",
    "@DAILY": "is none of the known names",
    "@": "is none of the known names",
    # Numbers.
    "60 * * * *": "has '60' as its minute: numbers are 0 to 59",
    "-1 * * * *": "has '-1' as its minute, which is no number, range or step",
    "+1 * * * *": "has '+1' as its minute",
    "1.5 * * * *": "has '1.5' as its minute",
    "0 24 * * *": "has '24' as its hour: numbers are 0 to 23",
    "0 0 0 * *": "has '0' as its day of month: numbers are 1 to 31",
    "0 0 32 * *": "has '32' as its day of month",
    "0 0 * 0 *": "has '0' as its month: numbers are 1 to 12",
    "0 0 * 13 *": "has '13' as its month",
    "0 0 * * 8": "has '8' as its day of week: numbers are 0 to 7",
    "60 0 0 * * *": "has '60' as its second: numbers are 0 to 59",
    "0 0 0 1 1 ? 1969": "has '1969' as its year: numbers are 1970 to 2099",
    "0 0 0 1 1 ? 2100": "has '2100' as its year",
    # Lists, ranges and steps.
    "1,,2 * * * *": "has '' as its minute",
    ",1 * * * *": "has '' as its minute",
    "1, * * * *": "has '' as its minute",
    "50-10 * * * *": "has '50-10' as its minute: a range must not run backwards",
    "1- * * * *": "has '1-' as its minute, which is no number, range or step",
    "1-2-3 * * * *": "has '1-2-3' as its minute",
    "*-5 * * * *": "has '*-5' as its minute",
    "*/70 * * * *": "has '*/70' as its minute: the step must be 1 or more, and no longer",
    "*/60 * * * *": "the step must be 1 or more",
    "*/0 * * * *": "the step must be 1 or more",
    "10-20/11 * * * *": "the step must be 1 or more",
    "59/5 * * * *": "the step must be 1 or more",
    "*/ * * * *": "has '*/' as its minute",
    "/5 * * * *": "has '/5' as its minute",
    "*/5/5 * * * *": "has '*/5/5' as its minute",
    "*/*/5 * * * *": "has '*/*/5' as its minute",
    "** * * * *": "has '**' as its minute",
    "0 0 * * 7/2": "has '7/2' as its day of week: a step needs a range or *, such as MON-FRI/2",
    "0 0 * * MON/2": "a step needs a range or *, such as MON-FRI/2",
    "0 0 1 2/3 *": "has '2/3' as its month: a step needs a range or *, such as JAN-JUN/2",
    # Weekdays and months.
    "0 0 * * MOND": "has 'MOND' as its day of week, which is no number, name, range or step",
    "0 0 * * JAN": "has 'JAN' as its day of week",
    "0 0 1 MON *": "has 'MON' as its month",
    "MON 0 * * *": "has 'MON' as its minute",
    "0 0 * * FRI-MON": "has 'FRI-MON' as its day of week: a range must not run backwards",
    "0 0 * * SAT-SUN": "a range must not run backwards; write it as two",
    "0 0 * * MON-5": "a range is from number to number or from name to name",
    "0 0 1 NOV-FEB *": "a range must not run backwards",
    "0 0 0 ? * 1": "write names such as MON-FRI; numbers count from different days",
    "0 0 0 ? * 1-5": "has '1-5' as its day of week: where the second comes first, write names",
    "0 0 0 ? * 0 2026": "write names such as MON-FRI",
    "0 0 0 ? * MON-5": "a range is from number to number or from name to name",
    # Days left open.
    "? * * * *": "has ? as its minute",
    "0 0 ? * *": "has ? as its day of month: it may stand for a day only, and only where",
    "0 0 * * ?": "has ? as its day of week: it may stand for a day only, and only where",
    "? 0 0 * * *": "has ? as its second",
    "0 0 0 1 ? *": "has ? as its month",
    "0 0 0 ?/2 * *": "has '?/2' as its day of month",
    "0 0 0 1,? * *": "has '?' as its day of month",
    # What others have and this one has not.
    "0 0 L * *": "has 'L' as its day of month: L, W, #, H and R are not supported",
    "0 0 15W * *": "L, W, #, H and R are not supported",
    "0 0 LW * *": "L, W, #, H and R are not supported",
    "0 0 L-3 * *": "L, W, #, H and R are not supported",
    "0 0 0 ? * 7L": "L, W, #, H and R are not supported",
    "0 0 0 ? * FRIL": "L, W, #, H and R are not supported",
    "0 0 0 ? * 5#2": "L, W, #, H and R are not supported",
    "0 0 0 ? * FRI#2": "L, W, #, H and R are not supported",
    "H * * * *": "has 'H' as its minute: L, W, #, H and R are not supported",
    "H(0-30)/5 * * * *": "L, W, #, H and R are not supported",
    "R * * * *": "L, W, #, H and R are not supported",
    "0 0 last * *": "has 'last' as its day of month",
    # Days that never come.
    "0 0 0 30 2 *": "names only days that never come, such as 30 February",
    "0 0 30 2 *": "names only days that never come",
    "0 0 31 4 *": "names only days that never come",
    "0 0 31 2,4,6,9,11 *": "names only days that never come",
    "0 0 0 29 2 ? 2025-2027": "names only days that never come",
    "0 0 0 29 2 ? 2030/20": "names only days that never come",
    "0 0 0 29 2 MON 2028": "names only days that never come",
    "0 0 0 1 1 MON 2026": "names only days that never come",
    # Far too long; refused before they are read.
    "*" * 10_000: "is longer than 1,000 characters",
    f"{'1,' * 4_996}1 * * * *": "is longer than 1,000 characters",
    f"{'9' * 9_992} * * * *": "is longer than 1,000 characters",
    f"{' ' * 9_999}*": "is longer than 1,000 characters",
}


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression, count, start=START):
    found, instant = [], at(start)
    for _ in range(count):
        instant = expression.next_after(instant)
        found.append(None if instant is None else instant.isoformat().removesuffix("+00:00"))
        if instant is None:
            break
    return found


@pytest.mark.parametrize(("text", "expected"), GOLDEN, ids=[text for text, _ in GOLDEN])
def test_an_expression_names_these_instants(text, expected):
    assert fires(CronExpression(text), len(expected)) == expected


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=lambda text: text[:30])
def test_what_is_not_in_the_dialect_is_refused_with_a_sentence(text, message):
    with pytest.raises(ValidationError) as refused:
        CronExpression(text)

    assert refused.value.code == "job_schedule.invalid_cron"
    assert refused.value.field == "cron_expr"
    assert message in refused.value.client_message
    assert len(refused.value.client_message) < 250
    assert refused.value.client_message.isprintable()


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["* * * * *"]])
def test_other_types_are_refused(value):
    with pytest.raises(ValidationError) as refused:
        CronExpression(value)

    assert refused.value.code == "job_schedule.invalid_cron"


def test_an_expression_is_its_text():
    expression = CronExpression("*/5 * * * *")

    assert expression == "*/5 * * * *"
    assert hash(expression) == hash("*/5 * * * *")
    assert json.dumps(expression) == '"*/5 * * * *"'
    assert CronExpression(expression) is expression
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert type(pickle.loads(pickle.dumps(expression))) is CronExpression
    assert not hasattr(expression, "__dict__")


def test_the_longest_list_of_everything_is_read():
    listed = [",".join(map(str, numbers)) for numbers in (range(60), range(24), range(1, 32))]

    expression = CronExpression(f"{listed[0]} {listed[0]} {listed[1]} {listed[2]} * ?")

    assert fires(expression, 1) == ["2026-02-27T10:15:31"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2097-01-01", "2104-02-29T00:00:00"),
        ("2096-02-28T23:59:59.999999", "2096-02-29T00:00:00"),
        ("2096-02-29", "2104-02-29T00:00:00"),
        ("2000-01-01", "2000-02-29T00:00:00"),
    ],
)
def test_29_february_comes_in_leap_years_and_2100_is_none(start, expected):
    assert fires(CronExpression("0 0 29 2 *"), 1, start) == [expected]


def test_the_next_instant_is_strictly_after_in_whole_seconds():
    every_second = CronExpression("* * * * * *")
    instant = at("2026-02-27T10:15:30.999999")

    found = every_second.next_after(instant)

    assert found == at("2026-02-27T10:15:31")
    assert found is not None
    assert found.tzinfo is UTC
    assert every_second.next_after(found) == at("2026-02-27T10:15:32")


def test_any_offset_is_the_same_instant_and_a_naive_one_is_refused():
    daily = CronExpression("@daily")
    in_chile = at("2026-02-27T23:59:00").astimezone(timezone(timedelta(hours=-3)))

    assert daily.next_after(in_chile) == at("2026-02-28")
    with pytest.raises(ValidationError) as refused:
        daily.next_after(datetime(2026, 2, 27))  # noqa: DTZ001  # the mistake
    assert refused.value.code == "input.naive_timestamp"


def test_there_is_nothing_after_the_end_of_the_calendar():
    for text in ("* * * * *", "0 0 1 1 *", "0 0 29 2 *", "0 0 0 29 2 MON"):
        assert CronExpression(text).next_after(datetime.max.replace(tzinfo=UTC)) is None


def test_an_expression_whose_years_are_over_is_one_but_has_no_next_instant():
    assert CronExpression("0 0 0 1 1 ? 2020").next_after(at("2026-01-01")) is None


@pytest.mark.parametrize("text", ["* * * * * *", "*/5 * * * *", "0 0 0 1 1 ? 2026,2099"])
def test_what_was_missed_is_not_walked(text, monkeypatch):
    asked = []
    matches = cron._matches

    def counted(fields, day):
        asked.append(day)
        return matches(fields, day)

    monkeypatch.setattr(cron, "_matches", counted)

    CronExpression(text).next_after(at("2026-02-27T10:15:30"))

    assert len(asked) <= 4


@pytest.mark.parametrize("zone", ["America/Santiago", "Pacific/Apia", "Australia/Lord_Howe"])
def test_the_zone_of_the_process_changes_nothing(zone):
    program = (
        "import sys\n"
        "from datetime import datetime, UTC\n"
        "from runledger_core.cron import CronExpression\n"
        "for text in sys.stdin.read().splitlines():\n"
        f"    print(CronExpression(text).next_after(datetime.fromisoformat('{START}+00:00')))\n"
    )

    printed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TZ": zone},
        input="\n".join(text for text, _ in GOLDEN),
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert printed.splitlines() == [
        f"{expected[0]}+00:00".replace("T", " ") for _, expected in GOLDEN
    ]
