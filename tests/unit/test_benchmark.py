"""The benchmark's arithmetic, its report, and that every figure can be run."""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"

# The programs in this folder import each other as programs do: from where they are.
sys.path.insert(0, str(SCRIPTS))
try:
    samples = import_module("benchmarks.samples")
    model = import_module("benchmarks.model")
    report = import_module("benchmarks.report")
    runner = import_module("benchmarks.runner")
    client = import_module("benchmarks.client")
    catalogue = import_module("benchmarks.catalogue")
    costs = import_module("benchmarks.costs")
    contenders = import_module("benchmarks.contenders")
    benchmark = import_module("benchmark")
finally:
    sys.path.remove(str(SCRIPTS))

ABOUT = {
    "server_version": "18.6",
    "python": "3.12.1",
    "psycopg": "3.3.0",
    "cores": 2,
    "measured_on": "2026-01-02",
    "repeats": 5,
    "seconds": 2.5,
}
ALL_FIGURES = [*catalogue.FIGURES, *costs.COSTS]


def sample(jobs=1_000, seconds=2.0, **others):
    measured = {
        "client_cpu_seconds": 0.05,
        "server_cpu_seconds": 0.1,
        "wal_bytes": 1_500_000,
        "commits_per_job": 0.02,
    }
    return samples.Sample(jobs=jobs, seconds=seconds, **(measured | others))


def runs_of(contender, *rates, counted=None):
    timed = [sample(jobs=rate, seconds=1.0) for rate in rates]
    return runner.Runs(contender, timed, counted)


@pytest.fixture
def figure():
    hand = model.Contender(name="by hand", clients=())
    ours = model.Contender(name="ours", clients=())
    return model.Figure(
        name="x",
        group="x",
        title="drain",
        ours=ours,
        baseline=hand,
        target=model.at_least_times(0.5),
    )


def test_spread_is_the_median_and_the_ends():
    assert samples.spread_of([5.0, 1.0, 3.0]) == samples.Spread(3.0, 1.0, 5.0)


def test_no_measures_have_no_spread():
    assert samples.spread_of([]) is None


def test_ratios_compare_turn_by_turn():
    assert samples.ratios([10.0, 30.0], [20.0, 30.0]) == [0.5, 1.0]


def test_ratio_to_nothing_is_left_out():
    assert samples.ratios([10.0], [0.0]) == []


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentile_is_one_of_the_measures(share, expected):
    assert samples.percentile(range(1, 101), share) == expected


def test_rate_and_shares_of_a_job():
    measured = sample()

    assert measured.rate == 500
    assert report.CLIENT_CPU.read(measured) == pytest.approx(50)
    assert report.WAL.read(measured) == 1_500


def test_run_without_a_job_divides_by_nothing():
    idle = sample(jobs=0, seconds=0.0)

    assert idle.rate == 0
    assert report.WAL.read(idle) == 1_500_000


def test_median_of_the_ratios_meets_the_target(figure):
    runs = {
        "by hand": runs_of(figure.baseline, 100, 200, 100),
        "ours": runs_of(figure.ours, 40, 120, 50),
    }

    (line,) = report.lines_of([figure], runs)

    assert line.ratio == samples.Spread(0.5, 0.4, 0.6)
    assert line.is_met is True
    assert line.cells() == (
        "drain",
        "50.0 (40.0 - 120) jobs/s",
        "100 (100 - 200) jobs/s",
        "0.500 (0.400 - 0.600) x",
        ">= 0.5 x",
        "yes",
    )


def test_counted_reading_is_of_the_counting_run(figure):
    counting = model.Figure(
        name="wal",
        group="x",
        title="WAL",
        ours=figure.ours,
        reading=model.WAL,
        target=model.at_most(1_400),
    )
    runs = {"ours": runs_of(figure.ours, 40, counted=sample(jobs=1_000))}

    (line,) = report.lines_of([counting], runs)

    assert line.cells() == ("WAL", "1,500 B/job", "", "", "<= 1,400 B/job", "no")


def test_figure_without_a_target_is_not_judged(figure):
    runs = {"ours": runs_of(figure.ours, 40)}
    lone = model.Figure(name="x", group="x", title="drain", ours=figure.ours)

    (line,) = report.lines_of([lone], runs)

    assert line.is_met is None
    assert line.cells()[4:] == ("", "")


def test_page_has_both_tables(figure):
    runs = {"by hand": runs_of(figure.baseline, 100), "ours": runs_of(figure.ours, 40)}

    page = report.markdown(report.lines_of([figure], runs), runs, ABOUT)

    assert page.splitlines()[0] == "| figure | ours | compared with | ratio | target | met |"
    assert "| drain | 40.0 jobs/s | 100 jobs/s | 0.400 x | >= 0.5 x | no |" in page
    assert "| ours | 40.0 | 0.0200 |  |  | 1,250 | 2,500 |" in page
    assert page.endswith(
        "PostgreSQL 18.6, Python 3.12.1, psycopg 3.3.0, 2 cores for both, 2026-01-02;"
        " 5 runs of 2.5 s or more.\n"
    )


def test_section_of_a_page_is_replaced():
    page = "a\n<!-- costs: begin -->\nold\n<!-- costs: end -->\nb\n"

    assert report.put_into(page, "costs", "new\n") == page.replace("old", "new")


def test_page_without_the_section_is_refused():
    with pytest.raises(ValueError, match="the page has no section costs"):
        report.put_into("<!-- figures: begin -->\n<!-- figures: end -->\n", "costs", "new\n")


@pytest.mark.parametrize("section", ["figures", "costs"])
def test_page_of_the_documentation_has_both_sections(section):
    page = (SCRIPTS.parent / "docs/performance.md").read_text("utf-8")

    assert "new text" in report.put_into(page, section, "new text\n")


def test_work_of_helpers_is_not_told_as_a_contenders():
    helped = model.Contender(name="ours", clients=(), helpers=(model.Client("worker"),))

    assert report.contender_cells(runs_of(helped, 40)) == ("ours", "40.0", "", "", "", "1,250", "")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (0.02, "0.0200"), (0.123, "0.123"), (1.5, "1.50"), (45.67, "45.7"), (9876, "9,876")],
)
def test_numbers_are_shown_with_three_digits(number, shown):
    assert report.show(number) == shown


def test_names_of_figures_are_unique():
    names = [figure.name for figure in ALL_FIGURES]

    assert len(set(names)) == len(names)


def test_contenders_are_told_apart_by_name():
    by_name = {}
    for figure in ALL_FIGURES:
        for contender in figure.contenders:
            assert by_name.setdefault((figure.group, contender.name), contender) == contender


def test_templates_are_told_apart_by_name():
    by_name = {}
    for figure in ALL_FIGURES:
        for contender in figure.contenders:
            fill = contender.fill
            assert by_name.setdefault(fill.name, fill) == fill
            # PostgreSQL would cut a longer name of a database.
            assert len(f"benchmark_{fill.name}") < 64


@pytest.mark.parametrize("figure", ALL_FIGURES, ids=lambda figure: figure.name)
def test_clients_of_a_figure_can_be_started(figure):
    for contender in figure.contenders:
        for one in (*contender.clients, *contender.helpers):
            inspect.signature(client.WORKLOADS[one.workload]).bind("dsn", **one.arguments)


def test_figure_that_is_read_of_counts_is_counted():
    for figure in ALL_FIGURES:
        if figure.reading.is_counted:
            assert all(contender.is_counted for contender in figure.contenders)


def test_pick_up_is_measured_from_commit_to_start():
    told = contenders.PICK_UP.values(
        [{"a": 1.002, "b": 2.010}], [{"a": 1.0, "b": 2.0, "unfinished": 3.0}]
    )

    assert told == {"p50_ms": pytest.approx(2), "p99_ms": pytest.approx(10)}


def test_last_tenth_is_compared_with_the_first():
    told = contenders.OLD_SNAPSHOT.values(
        [{"first": 1.0, "tenth 1": 2.0, "tenth 9": 20.0, "tenth 10": 24.0}], [{}]
    )

    assert told == {"last_to_first": 0.25}


def test_figures_are_chosen_by_name_and_group():
    names = [figure.name for figure in benchmark.chosen(catalogue.FIGURES, ["enqueue", "memory"])]

    assert names == ["enqueue-one", "enqueue-many", "memory"]


def test_unknown_figure_is_refused():
    with pytest.raises(SystemExit, match="no figure or group is called nothing"):
        benchmark.chosen(catalogue.FIGURES, ["enqueue", "nothing"])
