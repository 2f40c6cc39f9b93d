"""B-tree, bitmap and label list indices: pylance queries ours, and we read those of pylance."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

from lance_core.index.bitmap import BITMAP
from lance_core.index.btree import BTREE
from lance_core.index.index_type import Certainty, IndexType
from lance_core.index.label_list import LABEL_LIST
from tests.interop.segment_exchange import check_their_segment, commit_our_segment, query_by_pylance
from tests.interop.test_zone_indices import FRAGMENT, ROWS, TYPES, create_table, delete_some_rows, leave_unchanged
from tests.pairwise import pairwise

NULL_CONDITIONS = ("v IS NULL",)
UNSUPPORTED_BY_OUR_READER = ("v IS NOT NULL",)
INDEX_TYPES: dict[str, tuple[IndexType, dict[str, Any]]] = {"BTREE": (BTREE, {"zone_size": 64}), "BITMAP": (BITMAP, {})}
LISTS = pa.array(
    [[None, ["a"], [], ["b", "a"], [None], ["c", None], ["a", "a"], ["é"]][n % 8] for n in range(ROWS)],
    pa.list_(pa.string()),
)
LIST_CONDITIONS = (
    "array_has(v, 'a')",
    "array_contains(v, 'é')",
    "array_has_any(v, ['b', 'c'])",
    "array_has_all(v, ['a', 'b'])",
    "array_has(v, 'absent')",
)


@pytest.mark.parametrize(("name", "type_name", "stable"), pairwise(list(TYPES), list(INDEX_TYPES), (False, True)))
def test_either_library_uses_indices_of_the_other(name: str, type_name: str, stable: bool, tmp_path: Path) -> None:
    values, conditions = TYPES[name]
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    create_table(ours, values, stable=stable, change=delete_some_rows)
    index_type, options = INDEX_TYPES[type_name]
    commit_our_segment(ours, "v", index_type, **options)
    for condition in (*conditions, *NULL_CONDITIONS, *UNSUPPORTED_BY_OUR_READER):
        result = query_by_pylance(ours, condition)
        assert result.used_index is not (type_name == "BITMAP" and "LIKE" in condition), condition
        assert result.rows == result.expected, condition

    create_table(theirs, values, stable=stable, change=delete_some_rows)
    lance.dataset(theirs).create_scalar_index("v", IndexConfig(type_name, {}))
    certainty = check_their_segment(theirs, "v", [*conditions, *NULL_CONDITIONS])
    assert None not in certainty.values()
    assert Certainty.AT_MOST not in certainty.values() or name in ("double", "float")
    lance.dataset(theirs).delete("id % 5 = 2")
    check_their_segment(theirs, "v", [*conditions, *NULL_CONDITIONS])


@pytest.mark.parametrize(
    ("arrow", "change", "stable"),
    pairwise((pa.list_(pa.string()), pa.large_list(pa.string())), (leave_unchanged, delete_some_rows), (False, True)),
)
def test_either_library_uses_label_lists_of_the_other(
    arrow: pa.DataType, change: Callable[[lance.LanceDataset], None], stable: bool, tmp_path: Path
) -> None:
    values = LISTS.cast(arrow)
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    create_table(ours, values, stable=stable, change=change)
    commit_our_segment(ours, "v", LABEL_LIST)
    for condition in LIST_CONDITIONS:
        for queried in (condition, f"NOT {condition}"):
            result = query_by_pylance(ours, queried)
            assert result.used_index, queried
            assert result.rows == result.expected, queried

    create_table(theirs, values, stable=stable, change=change)
    lance.dataset(theirs).create_scalar_index("v", "LABEL_LIST")
    certainty = check_their_segment(theirs, "v", [*LIST_CONDITIONS, "v IS NULL", "array_has_any(v, ['b', NULL])"])
    assert set(certainty.values()) == {Certainty.EXACT}


@pytest.mark.parametrize("type_name", INDEX_TYPES)
def test_index_on_some_fragments(type_name: str, tmp_path: Path) -> None:
    uri = str(tmp_path)
    create_table(uri, pa.array([n % 50 for n in range(ROWS)]), stable=False, change=delete_some_rows)
    index_type, options = INDEX_TYPES[type_name]
    commit_our_segment(uri, "v", index_type, fragments=[1], **options)
    for condition in ("v = 7", "v < 3", "v != 4", "v IS NULL"):
        result = query_by_pylance(uri, condition)
        assert result.used_index
        assert result.rows == result.expected, condition


@pytest.mark.parametrize("type_name", INDEX_TYPES)
def test_empty_segments(type_name: str, tmp_path: Path) -> None:
    """pylance writes one if training is disabled, we write one if there are no rows."""
    uri = str(tmp_path)
    create_table(uri, pa.array(range(ROWS)), stable=False, change=leave_unchanged)
    lance.dataset(uri).create_scalar_index("v", IndexConfig(type_name, {}), train=False)
    assert check_their_segment(uri, "v", []) == {}
    commit_our_segment(uri, "v", INDEX_TYPES[type_name][0], fragments=[])
    result = query_by_pylance(uri, "v = 3")
    assert result.rows == result.expected == [3]


def test_we_read_page_sizes_of_pylance(tmp_path: Path) -> None:
    uri = str(tmp_path)
    create_table(uri, pa.array([n // 3 if n % 4 else None for n in range(ROWS)]), stable=False, change=delete_some_rows)
    lance.dataset(uri).create_scalar_index("v", "BTREE", zone_size=FRAGMENT // 8)
    check_their_segment(uri, "v", ["v = 33", "v < 10", "v >= 190", "v IS NULL", "v IN (1, 100, 199)"])
