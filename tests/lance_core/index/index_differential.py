"""Differential test of indices: both libraries find the rows of a scan, whatever happened to an index before."""

from collections.abc import Iterable

import lance
import pyarrow as pa

from lance_core import Table


def rows(first: int, count: int, *, group: int = 7) -> pa.Table:
    numbers = list(range(first, first + count))
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": pa.array([None if n % 11 == 0 else f"w{n % group}" for n in numbers], pa.string()),
            "tags": pa.array(
                [None if n % 9 == 0 else [] if n % 9 == 1 else [f"t{n % 5}", None] for n in numbers],
                pa.list_(pa.string()),
            ),
            "at": pa.array([{"x": n % 13, "y": n} for n in numbers]),
        }
    )


FILTER_BY_COLUMN = {"id": "id = 37", "word": "word = 'w3'", "tags": "array_has(tags, 't2')", "at.x": "at.x = 5"}
FILTERS = [
    *FILTER_BY_COLUMN.values(),
    "id > 40 and id <= 90",
    "id in (0, 5, 99, 100, 131)",
    "word is null",
    "word != 'w3'",
    "at.x < 3 or id = 17",
    "not array_has_any(tags, ['t1', 't3'])",
]


def check_answers(table: Table, filters: Iterable[str] = FILTERS) -> None:
    dataset = lance.dataset(table.uri)
    for filter in filters:
        expected = sorted_ids(dataset.to_table(filter=filter, columns=["id"], use_scalar_index=False))
        assert sorted_ids(dataset.to_table(filter=filter, columns=["id"])) == expected, f"pylance by index: {filter}"
        assert sorted_ids(table.to_table(filter=filter, columns=["id"])) == expected, f"ours: {filter}"


def is_used(table: Table, filter: str) -> bool:
    """Return whether pylance plans an index lookup for the filter."""
    return "ScalarIndexQuery" in lance.dataset(table.uri).scanner(filter=filter).explain_plan()


def covered_fragments(table: Table, name: str) -> list[list[int]]:
    return [sorted(index.covers or ()) for index in table.indices if index.name == name]


def sorted_ids(result: pa.Table) -> list[int]:
    numbers: list[int] = sorted(result["id"].to_pylist())
    return numbers
