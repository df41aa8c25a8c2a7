from datetime import UTC, datetime, timedelta

import pytest

from runledger_runtime.cli._output import print_table, show_distance, show_instant


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5.5, "5s ago"), (90.5, "in 1m"), (-7_300, "2h ago"), (400_000, "in 4d")],
)
def test_distance_is_one_number_and_unit(seconds, text):
    assert show_distance(datetime.now(UTC) + timedelta(seconds=seconds)) == text


def test_absent_instants_are_dashes():
    assert (show_distance(None), show_instant(None)) == ("-", "-")


def test_instant_is_utc_with_milliseconds():
    assert show_instant(datetime(2030, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)) == (
        "2030-01-02 03:04:05.678Z"
    )


def test_table_for_programs_is_aligned_whole_and_plain(capsys):
    print_table(("ID", "TYPE"), [("1", "a\x1b[2J"), ("22", "b" * 300)], flexible=("TYPE",))

    assert capsys.readouterr().out == f"ID  TYPE\n1   a␛[2J\n22  {'b' * 300}\n"


@pytest.mark.parametrize("wraps", [False, True])
def test_table_of_a_terminal_fits_and_never_cuts_the_id(capsys, monkeypatch, wraps):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")

    print_table(
        ("ID", "ERROR"), [("i" * 36, "[red]" + "e" * 300)], flexible=("ERROR",), wraps=wraps
    )

    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].startswith("i" * 36 + "  [red]ee")
    assert len(lines) > 2 if wraps else lines[1].rstrip().endswith("…")
