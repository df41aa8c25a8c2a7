"""The reader of plans, on plans that servers printed (shortened to what is read)."""

from __future__ import annotations

from typing import Any, Final

from .plan_reader import Plan


def node(kind: str, rows: float, *below: dict[str, Any], loops: int = 1, **keys: Any):
    return {
        "Node Type": kind,
        "Actual Rows": rows,
        "Actual Loops": loops,
        "Plans": list(below),
        **{key.replace("_", " "): value for key, value in keys.items()},
    }


# A heartbeat: a look-up per entry, an update, and a CTE that nobody reads at the end.
LOOKED_UP: Final = node(
    "Index Scan", 1, loops=32, Relation_Name="job_queue", Index_Name="job_queue_pkey",
    Rows_Removed_by_Filter=2,
)  # fmt: skip
ATTEMPTS: Final = node(
    "ModifyTable", 0, Subplan_Name="CTE attempts", Relation_Name="job_attempts",
    Shared_Hit_Blocks=100, Shared_Read_Blocks=1,
)  # fmt: skip
READ_CTE: Final = node(
    "ModifyTable", 32, Subplan_Name="CTE succeeded", Relation_Name="job_queue",
    Shared_Hit_Blocks=64,
)  # fmt: skip
NESTED: Final = Plan({
    "Query Text": "WITH ..",
    "Plan": node(
        "Sort", 32,
        node("Nested Loop", 40, node("Function Scan", 32), LOOKED_UP),
        READ_CTE, ATTEMPTS, node("CTE Scan", 32, CTE_Name="succeeded"),
        Shared_Hit_Blocks=500, Shared_Read_Blocks=7,
    ),
})  # fmt: skip
BITMAP: Final = Plan({
    "Plan": node(
        "Bitmap Heap Scan", 10, node("Bitmap Index Scan", 90, Index_Name="idx_job_queue_leased"),
        Relation_Name="job_queue", Rows_Removed_by_Index_Recheck=80,
    )
})  # fmt: skip
SEQUENTIAL: Final = Plan({
    "Plan": node(
        "Hash Join", 1,
        node("Seq Scan", 0, loops=0, Relation_Name="job_queue"),
        node("Seq Scan", 5, Relation_Name="job_definitions"),
    )
})  # fmt: skip


def test_rows_that_a_filter_removed_were_read_in_every_loop():
    assert NESTED.heap_rows() == 32 * 3


def test_rows_that_a_recheck_removed_were_read():
    assert BITMAP.heap_rows() == 90


def test_entries_of_a_bitmap_index_scan_are_no_rows():
    assert [(scan.relation, scan.index) for scan in BITMAP.scans()] == [
        ("job_queue", None),
        (None, "idx_job_queue_leased"),
    ]


def test_sequential_scan_counts_even_if_it_did_not_run():
    assert SEQUENTIAL.sequential_scans() == ["job_queue", "job_definitions"]


def test_small_tables_may_be_ignored():
    ignored = frozenset({"job_definitions"})

    assert SEQUENTIAL.sequential_scans(ignored=ignored) == ["job_queue"]
    assert SEQUENTIAL.heap_rows(ignored=ignored) == 0


def test_sort_is_judged_by_what_it_was_given():
    assert NESTED.sorted_rows() == 40
    assert BITMAP.sorted_rows() == 0


def test_pages_of_a_write_that_nobody_reads_are_added_to_the_root():
    assert NESTED.buffers() == 500 + 7 + 100 + 1


def test_functions_and_ctes_are_no_scans_of_a_table():
    assert [scan.relation for scan in NESTED.scans()] == ["job_queue"]
