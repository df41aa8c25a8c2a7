"""What an executed plan read, sorted and touched, from its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Rows of a node are an average over its loops, before PostgreSQL 18 even a rounded one.
_REMOVED: Final = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
_SORTS: Final = frozenset({"Sort", "Incremental Sort"})


@dataclass(frozen=True, slots=True)
class Scan:
    """One node that reads a relation or an index.

    Attributes:
        rows: Rows, or for a Bitmap Index Scan entries, that it read, those it threw away included.
    """

    node_type: str
    relation: str | None
    index: str | None
    rows: float

    def __str__(self) -> str:
        return (
            f"{self.node_type} {self.index or ''} of {self.relation or 'an index'}: {self.rows:g}"
        )

    @property
    def is_of_index_only(self) -> bool:
        """A Bitmap Index Scan has no relation: its rows are read by the heap scan above it."""
        return self.relation is None


class Plan:
    """A plan as `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)` and auto_explain print it."""

    def __init__(self, printed: Mapping[str, Any]) -> None:
        self.query: str = printed.get("Query Text", "")
        self._root: Mapping[str, Any] = printed["Plan"]

    def nodes(self) -> Iterator[Mapping[str, Any]]:
        """Every node, CTEs and subplans included."""
        yield from _walk(self._root)

    def scans(self) -> list[Scan]:
        return [
            Scan(
                node["Node Type"],
                node.get("Relation Name"),
                node.get("Index Name"),
                (node["Actual Rows"] + sum(node.get(key, 0) for key in _REMOVED))
                * node["Actual Loops"],
            )
            for node in self.nodes()
            if node["Node Type"].endswith("Scan")
            and ("Relation Name" in node or "Index Name" in node)
        ]

    def sequential_scans(self, *, ignored: frozenset[str] = frozenset()) -> list[str]:
        """Relations that are read from end to end, run or not."""
        return [
            scan.relation
            for scan in self.scans()
            if scan.node_type == "Seq Scan" and scan.relation and scan.relation not in ignored
        ]

    def heap_rows(self, *, ignored: frozenset[str] = frozenset()) -> float:
        """Rows of tables that were looked at, whether they were wanted or not."""
        return sum(
            scan.rows
            for scan in self.scans()
            if not scan.is_of_index_only and scan.relation not in ignored
        )

    def sorted_rows(self) -> float:
        """The most rows that one sort was given."""
        return max(
            (
                below["Actual Rows"] * below["Actual Loops"]
                for node in self.nodes()
                if node["Node Type"] in _SORTS
                for below in node["Plans"][:1]
            ),
            default=0,
        )

    def buffers(self) -> int:
        """Pages that the statement asked for, each time it asked."""
        # A CTE's pages are its reader's too; one that writes and that nobody reads runs after the
        # root and is counted nowhere else.
        read = {node.get("CTE Name") for node in self.nodes()}
        unread = [
            node
            for node in self.nodes()
            if node["Node Type"] == "ModifyTable"
            and node.get("Subplan Name", "").startswith("CTE ")
            and node["Subplan Name"].removeprefix("CTE ") not in read
        ]
        return sum(map(_pages, [self._root, *unread]))


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _walk(below)


def _pages(node: Mapping[str, Any]) -> int:
    return node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
