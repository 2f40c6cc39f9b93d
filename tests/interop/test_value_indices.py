"""BTREE, BITMAP and LABEL_LIST: ours used by pylance, and those of pylance read by us."""

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
from tests.interop.segment_exchange import by_plan, check_theirs, commit_ours
from tests.interop.test_zone_indices import FRAGMENT, ROWS, TYPES, deleted, made, untouched

EVERYWHERE = ("v IS NULL",)
ONLY_PLANS = ("v IS NOT NULL",)
AS_THEY_SAY: dict[str, tuple[IndexType, dict[str, Any]]] = {"BTREE": (BTREE, {"zone_size": 64}), "BITMAP": (BITMAP, {})}
LISTS = pa.array(
    [[None, ["a"], [], ["b", "a"], [None], ["c", None], ["a", "a"], ["é"]][n % 8] for n in range(ROWS)],
    pa.list_(pa.string()),
)
OF_LISTS = (
    "array_has(v, 'a')",
    "array_contains(v, 'é')",
    "array_has_any(v, ['b', 'c'])",
    "array_has_all(v, ['a', 'b'])",
    "array_has(v, 'nobody')",
)


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("kind", AS_THEY_SAY)
@pytest.mark.parametrize("name", TYPES)
def test_either_library_uses_what_the_other_made(name: str, kind: str, stable: bool, tmp_path: Path) -> None:
    values, sqls = TYPES[name]
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    made(ours, values, stable=stable, change=deleted)
    of_ours, options = AS_THEY_SAY[kind]
    commit_ours(ours, "v", of_ours, **options)
    for sql in (*sqls, *EVERYWHERE, *ONLY_PLANS):
        answer = by_plan(ours, sql)
        assert answer.used is not (kind == "BITMAP" and "LIKE" in sql), sql
        assert answer.rows == answer.expected, sql

    made(theirs, values, stable=stable, change=deleted)
    lance.dataset(theirs).create_scalar_index("v", IndexConfig(kind, {}))
    said = check_theirs(theirs, "v", [*sqls, *EVERYWHERE])
    assert None not in said.values()
    assert Certainty.AT_MOST not in said.values() or name in ("double", "float")
    lance.dataset(theirs).delete("id % 5 = 2")
    check_theirs(theirs, "v", [*sqls, *EVERYWHERE])


@pytest.mark.parametrize("stable", [False, True], ids=["", "stable ids"])
@pytest.mark.parametrize("change", [untouched, deleted])
@pytest.mark.parametrize("values", [LISTS, LISTS.cast(pa.large_list(pa.string()))], ids=["list", "large_list"])
def test_either_library_uses_the_labels_of_the_other(
    values: pa.Array, change: Callable[[lance.LanceDataset], None], stable: bool, tmp_path: Path
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    made(ours, values, stable=stable, change=change)
    commit_ours(ours, "v", LABEL_LIST)
    for sql in OF_LISTS:
        for asked in (sql, f"NOT {sql}"):
            answer = by_plan(ours, asked)
            assert answer.used, asked
            assert answer.rows == answer.expected, asked

    made(theirs, values, stable=stable, change=change)
    lance.dataset(theirs).create_scalar_index("v", "LABEL_LIST")
    said = check_theirs(theirs, "v", [*OF_LISTS, "v IS NULL", "array_has_any(v, ['b', NULL])"])
    assert set(said.values()) == {Certainty.EXACT}


@pytest.mark.parametrize("kind", AS_THEY_SAY)
def test_part_of_a_table_has_an_index(kind: str, tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, pa.array([n % 50 for n in range(ROWS)]), stable=False, change=deleted)
    of_ours, options = AS_THEY_SAY[kind]
    commit_ours(uri, "v", of_ours, fragments=[1], **options)
    for sql in ("v = 7", "v < 3", "v != 4", "v IS NULL"):
        answer = by_plan(uri, sql)
        assert answer.used
        assert answer.rows == answer.expected, sql


@pytest.mark.parametrize("kind", AS_THEY_SAY)
def test_a_segment_of_nothing(kind: str, tmp_path: Path) -> None:
    """As pylance writes where it is told not to train, and as we write where there is no row."""
    uri = str(tmp_path)
    made(uri, pa.array(range(ROWS)), stable=False, change=untouched)
    lance.dataset(uri).create_scalar_index("v", IndexConfig(kind, {}), train=False)
    assert check_theirs(uri, "v", []) == {}
    commit_ours(uri, "v", AS_THEY_SAY[kind][0], fragments=[])
    answer = by_plan(uri, "v = 3")
    assert answer.rows == answer.expected == [3]


def test_page_sizes_of_pylance_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path)
    made(uri, pa.array([n // 3 if n % 4 else None for n in range(ROWS)]), stable=False, change=deleted)
    lance.dataset(uri).create_scalar_index("v", "BTREE", zone_size=FRAGMENT // 8)
    check_theirs(uri, "v", ["v = 33", "v < 10", "v >= 190", "v IS NULL", "v IN (1, 100, 199)"])
