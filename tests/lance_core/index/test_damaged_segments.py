"""Damaged segments: BTREE, BITMAP and LABEL_LIST files that are missing, truncated or contradictory.

A search raises a typed error or returns only rows that can exist; `examine` reports the damage that a search cannot
detect cheaply.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import Corrupt, LanceError, NotFound, StorageError
from lance_core.expressions.tree import Call, Comparison, In, IsNull, Op
from lance_core.format.row_sets import RowSet
from lance_core.index.bitmap import BITMAP
from lance_core.index.btree import BTREE
from lance_core.index.index_type import VALUE, IndexType, Leaf, MergeInput, Segment
from lance_core.index.label_list import LABEL_LIST
from lance_core.index.segment_files import NewSegment
from lance_core.versions.location import locate
from tests.lance_core.index.segment_search import ROWS_PER_FRAGMENT, IdentityRemap, row_batches, write_segment

COLUMN = pa.field(VALUE, pa.int64())
LISTS = pa.field(VALUE, pa.list_(pa.int64()))
ANY = (VALUE,)
DATA = pa.schema([pa.field("values", pa.int64()), pa.field("ids", pa.uint64())])
LOOKUP = pa.schema(
    [pa.field("min", pa.int64()), pa.field("max", pa.int64()), ("null_count", pa.uint32()), ("page_idx", pa.uint32())]
)
KEYS = pa.schema([pa.field("keys", pa.int64()), pa.field("bitmaps", pa.binary())])
Columns = Mapping[str, Sequence[object]]


def equal(value: int) -> Leaf:
    return Comparison(ANY, Op.EQ, pa.scalar(value))


def rewritten(
    segment: Segment, name: str, schema: pa.Schema, columns: Columns, notes: Mapping[str, str] | None = None
) -> Segment:
    """Replace one file of the segment by these columns."""
    files = segment.files
    assert hasattr(files, "location")
    new = NewSegment(files.location, segment.metadata.uuid)
    writer = new.create(name, schema)
    if any(columns.values()):
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    for key, text in (notes or {}).items():
        writer.add_metadata(key, text)
    writer.finish()
    return segment


def tree(values: Sequence[int | None] = (1, 2, 3, 4, 5)) -> Segment:
    return write_segment(None, BTREE, COLUMN, row_batches(pa.array(values, pa.int64())), options={"zone_size": 2})


def with_lookup(columns: Columns, notes: Mapping[str, str] | None = None, schema: pa.Schema = LOOKUP) -> Segment:
    return rewritten(tree(), "page_lookup.lance", schema, columns, {"batch_size": "2"} if notes is None else notes)


GOOD: Columns = {"min": [1, 3, 5], "max": [2, 4, 5], "null_count": [0, 0, 0], "page_idx": [0, 1, 2]}


def set_of(*rows: int) -> bytes:
    return RowSet.of(np.array(rows, np.uint64)).encode()


def sets(columns: Columns, schema: pa.Schema = KEYS, notes: Mapping[str, str] | None = None) -> Segment:
    segment = write_segment(None, BITMAP, COLUMN, row_batches(pa.array([1, 2])))
    return rewritten(segment, "bitmap_page_lookup.lance", schema, columns, notes)


BAD_TREES: Mapping[str, Callable[[], Segment]] = {
    "pages out of order": lambda: with_lookup({**GOOD, "min": [3, 1, 5]}),
    "ends out of order": lambda: with_lookup({**GOOD, "max": [4, 2, 5]}),
    "pages numbered otherwise": lambda: with_lookup({**GOOD, "page_idx": [0, 2, 1]}),
    "too few pages": lambda: with_lookup({key: column[:2] for key, column in GOOD.items()}),
    "other sizes of pages": lambda: with_lookup(GOOD, {}),
    "no size of pages": lambda: with_lookup(GOOD, {"batch_size": "many"}),
    "pages of zero rows": lambda: with_lookup(GOOD, {"batch_size": "0"}),
    "a page that ends nowhere": lambda: with_lookup({**GOOD, "max": [2, None, 5]}),
    "NULL between values": lambda: with_lookup({**GOOD, "null_count": [0, 2, 0]}),
    "another type": lambda: with_lookup(
        {**GOOD, "min": ["a", "b", "c"], "max": ["b", "c", "d"]},
        schema=LOOKUP.set(0, pa.field("min", pa.string())).set(1, pa.field("max", pa.string())),
    ),
    "other columns": lambda: with_lookup({"pages": [1]}, schema=pa.schema([("pages", pa.int64())])),
    "rows of another type": lambda: rewritten(
        tree(), "page_data.lance", pa.schema([("values", pa.int64()), ("ids", pa.int64())]), {"values": [1], "ids": [1]}
    ),
    "values without order": lambda: rewritten(
        tree(),
        "page_data.lance",
        pa.schema([("values", pa.list_(pa.int64())), ("ids", pa.uint64())]),
        {"values": [[1]], "ids": [1]},
    ),
    "fewer rows": lambda: rewritten(tree(), "page_data.lance", DATA, {"values": [1], "ids": [1]}),
}
BAD_SETS: Mapping[str, Callable[[], Segment]] = {
    "no set": lambda: sets({"keys": [1], "bitmaps": [None]}),
    "a set that is none": lambda: sets({"keys": [1], "bitmaps": [b"rows"]}),
    "a set cut short": lambda: sets({"keys": [1], "bitmaps": [set_of(1, 2, 3)[:-2]]}),
    "other columns": lambda: sets({"bitmaps": [b""]}, pa.schema([("bitmaps", pa.binary())])),
    "a set of another type": lambda: sets(
        {"keys": [1], "bitmaps": [1]}, pa.schema([("keys", pa.int64()), ("bitmaps", pa.int64())])
    ),
    "keys without order": lambda: sets(
        {"keys": [[1]], "bitmaps": [set_of(1)]}, pa.schema([("keys", pa.list_(pa.int64())), ("bitmaps", pa.binary())])
    ),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_a_contradictory_tree_is_rejected(name: str) -> None:
    segment = BAD_TREES[name]()
    with pytest.raises(Corrupt, match=str(segment.metadata.uuid)):
        BTREE.open(segment, COLUMN).search(equal(1))


@pytest.mark.parametrize("name", BAD_SETS)
def test_invalid_bitmaps_are_rejected(name: str) -> None:
    segment = BAD_SETS[name]()
    with pytest.raises(Corrupt, match=str(segment.metadata.uuid)):
        BITMAP.open(segment, COLUMN).search(equal(1))


def test_addresses_beyond_a_fragment_are_excluded() -> None:
    beyond = [ROWS_PER_FRAGMENT, (7 << 32) | 3, (1 << 64) - 1]
    segment = write_segment(None, BTREE, COLUMN, row_batches(pa.array([1, 1, 1]), beyond))
    found = BTREE.open(segment, COLUMN).search(equal(1))
    assert found is not None
    assert set(found.rows) == {beyond[1]}
    assert set(BTREE.examine(segment, COLUMN).rows) == set(beyond)

    segment = sets({"keys": [1], "bitmaps": [set_of(*beyond)]})
    found = BITMAP.open(segment, COLUMN).search(equal(1))
    assert found is not None
    assert set(found.rows) == {beyond[1]}
    assert set(BITMAP.examine(segment, COLUMN).rows) == set(beyond)


@pytest.mark.parametrize(("kind", "column"), [(BTREE, COLUMN), (BITMAP, COLUMN), (LABEL_LIST, LISTS)])
def test_missing_and_truncated_files_are_rejected(kind: IndexType, column: pa.Field, tmp_path: Path) -> None:
    values = pa.array([[n] for n in range(50_000)]) if column is LISTS else pa.array(range(50_000))
    leaf: Leaf = Call("array_has", ANY, (pa.scalar(7),)) if column is LISTS else In(ANY, (pa.scalar(7), pa.scalar(9)))
    segment = write_segment(tmp_path, kind, column, row_batches(values.slice(0, 3000)))
    directory = tmp_path / "_indices" / str(segment.metadata.uuid)
    for path in sorted(directory.iterdir()):
        whole = path.read_bytes()
        for length in (0, 10, len(whole) // 3, len(whole) - 30, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises((StorageError, Corrupt)):
                kind.open(segment, column).search(leaf)
        path.unlink()
        with pytest.raises(NotFound):
            kind.open(segment, column).search(leaf)
        path.write_bytes(whole)
    assert kind.open(segment, column).search(leaf) is not None


def test_a_flipped_byte_raises_only_typed_errors(tmp_path: Path) -> None:
    """Any flipped byte leads to a result or to an error of this package, never to another exception."""
    for kind in (BTREE, BITMAP):
        segment = write_segment(tmp_path, kind, COLUMN, row_batches(pa.array([None, *range(40)])), options=_pages(kind))
        for path in sorted((tmp_path / "_indices" / str(segment.metadata.uuid)).iterdir()):
            whole = path.read_bytes()
            for at in range(0, len(whole), 101):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
                try:
                    searcher = kind.open(segment, COLUMN)
                    for leaf in (equal(7), IsNull(ANY)):
                        searcher.search(leaf)
                    kind.examine(segment, COLUMN)
                except LanceError:
                    pass
            path.write_bytes(whole)


def _pages(kind: IndexType) -> dict[str, object]:
    return {"zone_size": 8} if kind is BTREE else {}


def test_a_segment_is_readable_after_a_move(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "a", BTREE, COLUMN, row_batches(pa.array([1, 2, None])))
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = Segment(segment.metadata, type(segment.files)(locate(tmp_path / "b"), segment.metadata), lambda high: 3)  # type: ignore[call-arg]
    found = BTREE.open(moved, COLUMN).search(IsNull(ANY))
    assert found is not None
    assert set(found.rows) == {2}


@pytest.mark.parametrize(
    ("segment", "problem"),
    [
        (lambda: with_lookup({**GOOD, "min": [1, 4, 5]}), "page 1 has a value beyond the min"),
        (lambda: with_lookup({**GOOD, "max": [2, 3, 5]}), "page 1 has a value beyond the max"),
        (lambda: with_lookup({**GOOD, "null_count": [1, 0, 0]}), "page 0 has 0 NULL"),
        (lambda: with_lookup({**GOOD, "min": [3, 1, 5]}), "not in order"),
        (
            lambda: rewritten(tree(), "page_data.lance", DATA, {"values": [3, 4, 1, 2, 5], "ids": [0, 1, 2, 3, 4]}),
            "page 1 begins below the end",
        ),
        (
            lambda: rewritten(tree(), "page_data.lance", DATA, {"values": [1, 2, 3, 4, 5], "ids": [0, 1, 2, 3, 3]}),
            "1 rows of page_data.lance occur more than once",
        ),
    ],
)
def test_examine_reports_contradictory_pages(segment: Callable[[], Segment], problem: str) -> None:
    problems = BTREE.examine(segment(), COLUMN).problems
    assert any(problem in each for each in problems), problems


def test_examine_reports_contradictory_bitmaps() -> None:
    twice = sets({"keys": [1, 1], "bitmaps": [set_of(1), set_of(2)]})
    assert "1 keys more than once" in BITMAP.examine(twice, COLUMN).problems[0]
    shared = sets({"keys": [1, 2], "bitmaps": [set_of(1, 5), set_of(5)]})
    assert "1 rows under more than one key" in BITMAP.examine(shared, COLUMN).problems[0]


def test_examine_accepts_sound_segments() -> None:
    assert not BTREE.examine(with_lookup(GOOD), COLUMN).problems
    assert not BITMAP.examine(
        sets({"keys": [2, None, 1], "bitmaps": [set_of(1), set_of(2), set_of(3)]}), COLUMN
    ).problems


def test_keys_in_any_order_are_found() -> None:
    segment = sets({"keys": [5, None, 1, 3], "bitmaps": [set_of(5), set_of(9), set_of(1), set_of(3)]})
    searcher = BITMAP.open(segment, COLUMN)
    for leaf, rows in ((Comparison(ANY, Op.LE, pa.scalar(3)), {1, 3}), (equal(5), {5}), (IsNull(ANY), {9})):
        found = searcher.search(leaf)
        assert found is not None
        assert set(found.rows) == rows


@pytest.mark.parametrize("notes", [{"lance:label_list_nulls": "one"}, {"lance:label_list_nulls": "7"}])
def test_an_invalid_buffer_of_null_lists_is_rejected(notes: Mapping[str, str]) -> None:
    segment = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    segment = rewritten(segment, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [set_of(0)]}, notes)
    with pytest.raises((Corrupt, StorageError)):
        LABEL_LIST.open(segment, LISTS).search(IsNull(ANY))


def test_older_segments_cannot_search_null_lists() -> None:
    segment = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    segment = rewritten(segment, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [set_of(0)]})
    searcher = LABEL_LIST.open(segment, LISTS)
    assert searcher.search(IsNull(ANY)) is None
    assert searcher.search(Call("array_has", ANY, (pa.scalar(1),))) is not None


def test_a_merge_with_a_segment_without_null_lists_has_none() -> None:
    old = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    old = rewritten(old, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [set_of(0)]})
    merged = write_segment(
        None, LABEL_LIST, LISTS, row_batches(pa.array([None], LISTS.type), [9]), [MergeInput(old, IdentityRemap())]
    )
    assert LABEL_LIST.open(merged, LISTS).search(IsNull(ANY)) is None
