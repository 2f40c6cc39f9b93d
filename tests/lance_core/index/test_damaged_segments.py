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
from lance_core.format.fragment import StorageVersion
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
PATH = (VALUE,)
DATA = pa.schema([pa.field("values", pa.int64()), pa.field("ids", pa.uint64())])
LOOKUP = pa.schema(
    [pa.field("min", pa.int64()), pa.field("max", pa.int64()), ("null_count", pa.uint32()), ("page_idx", pa.uint32())]
)
KEYS = pa.schema([pa.field("keys", pa.int64()), pa.field("bitmaps", pa.binary())])
Columns = Mapping[str, Sequence[object]]


def equals(value: int) -> Leaf:
    return Comparison(PATH, Op.EQ, pa.scalar(value))


def replace_file(
    segment: Segment, name: str, schema: pa.Schema, columns: Columns, metadata: Mapping[str, str] | None = None
) -> Segment:
    """Replace one file of the segment by these columns."""
    files = segment.files
    assert hasattr(files, "location")
    new = NewSegment(files.location, segment.metadata.uuid, StorageVersion(2, 2))
    writer = new.create(name, schema)
    if any(columns.values()):
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    for key, text in (metadata or {}).items():
        writer.add_metadata(key, text)
    writer.finish()
    return segment


def write_tree(values: Sequence[int | None] = (1, 2, 3, 4, 5)) -> Segment:
    return write_segment(None, BTREE, COLUMN, row_batches(pa.array(values, pa.int64())), options={"zone_size": 2})


def write_tree_with_lookup(
    columns: Columns, metadata: Mapping[str, str] | None = None, schema: pa.Schema = LOOKUP
) -> Segment:
    return replace_file(
        write_tree(), "page_lookup.lance", schema, columns, {"batch_size": "2"} if metadata is None else metadata
    )


SOUND_LOOKUP: Columns = {"min": [1, 3, 5], "max": [2, 4, 5], "null_count": [0, 0, 0], "page_idx": [0, 1, 2]}


def encode_rows(*rows: int) -> bytes:
    return RowSet.of(np.array(rows, np.uint64)).encode()


def write_bitmaps(columns: Columns, schema: pa.Schema = KEYS, metadata: Mapping[str, str] | None = None) -> Segment:
    segment = write_segment(None, BITMAP, COLUMN, row_batches(pa.array([1, 2])))
    return replace_file(segment, "bitmap_page_lookup.lance", schema, columns, metadata)


BAD_TREES: Mapping[str, Callable[[], Segment]] = {
    "pages out of order": lambda: write_tree_with_lookup({**SOUND_LOOKUP, "min": [3, 1, 5]}),
    "ends out of order": lambda: write_tree_with_lookup({**SOUND_LOOKUP, "max": [4, 2, 5]}),
    "pages numbered otherwise": lambda: write_tree_with_lookup({**SOUND_LOOKUP, "page_idx": [0, 2, 1]}),
    "too few pages": lambda: write_tree_with_lookup({key: column[:2] for key, column in SOUND_LOOKUP.items()}),
    "other sizes of pages": lambda: write_tree_with_lookup(SOUND_LOOKUP, {}),
    "no size of pages": lambda: write_tree_with_lookup(SOUND_LOOKUP, {"batch_size": "many"}),
    "pages of zero rows": lambda: write_tree_with_lookup(SOUND_LOOKUP, {"batch_size": "0"}),
    "a page that ends nowhere": lambda: write_tree_with_lookup({**SOUND_LOOKUP, "max": [2, None, 5]}),
    "NULL between values": lambda: write_tree_with_lookup({**SOUND_LOOKUP, "null_count": [0, 2, 0]}),
    "another type": lambda: write_tree_with_lookup(
        {**SOUND_LOOKUP, "min": ["a", "b", "c"], "max": ["b", "c", "d"]},
        schema=LOOKUP.set(0, pa.field("min", pa.string())).set(1, pa.field("max", pa.string())),
    ),
    "other columns": lambda: write_tree_with_lookup({"pages": [1]}, schema=pa.schema([("pages", pa.int64())])),
    "rows of another type": lambda: replace_file(
        write_tree(),
        "page_data.lance",
        pa.schema([("values", pa.int64()), ("ids", pa.int64())]),
        {"values": [1], "ids": [1]},
    ),
    "values without order": lambda: replace_file(
        write_tree(),
        "page_data.lance",
        pa.schema([("values", pa.list_(pa.int64())), ("ids", pa.uint64())]),
        {"values": [[1]], "ids": [1]},
    ),
    "fewer rows": lambda: replace_file(write_tree(), "page_data.lance", DATA, {"values": [1], "ids": [1]}),
}
BAD_SETS: Mapping[str, Callable[[], Segment]] = {
    "no set": lambda: write_bitmaps({"keys": [1], "bitmaps": [None]}),
    "a set that is none": lambda: write_bitmaps({"keys": [1], "bitmaps": [b"rows"]}),
    "a set cut short": lambda: write_bitmaps({"keys": [1], "bitmaps": [encode_rows(1, 2, 3)[:-2]]}),
    "other columns": lambda: write_bitmaps({"bitmaps": [b""]}, pa.schema([("bitmaps", pa.binary())])),
    "a set of another type": lambda: write_bitmaps(
        {"keys": [1], "bitmaps": [1]}, pa.schema([("keys", pa.int64()), ("bitmaps", pa.int64())])
    ),
    "keys without order": lambda: write_bitmaps(
        {"keys": [[1]], "bitmaps": [encode_rows(1)]},
        pa.schema([("keys", pa.list_(pa.int64())), ("bitmaps", pa.binary())]),
    ),
}


@pytest.mark.parametrize("name", BAD_TREES)
def test_a_contradictory_tree_is_rejected(name: str) -> None:
    segment = BAD_TREES[name]()
    with pytest.raises(Corrupt, match=str(segment.metadata.uuid)):
        BTREE.open(segment, COLUMN).search(equals(1))


@pytest.mark.parametrize("name", BAD_SETS)
def test_invalid_bitmaps_are_rejected(name: str) -> None:
    segment = BAD_SETS[name]()
    with pytest.raises(Corrupt, match=str(segment.metadata.uuid)):
        BITMAP.open(segment, COLUMN).search(equals(1))


def test_addresses_beyond_a_fragment_are_excluded() -> None:
    addresses = [ROWS_PER_FRAGMENT, (7 << 32) | 3, (1 << 64) - 1]
    segment = write_segment(None, BTREE, COLUMN, row_batches(pa.array([1, 1, 1]), addresses))
    found = BTREE.open(segment, COLUMN).search(equals(1))
    assert found is not None
    assert set(found.rows) == {addresses[1]}
    assert set(BTREE.examine(segment, COLUMN).rows) == set(addresses)

    segment = write_bitmaps({"keys": [1], "bitmaps": [encode_rows(*addresses)]})
    found = BITMAP.open(segment, COLUMN).search(equals(1))
    assert found is not None
    assert set(found.rows) == {addresses[1]}
    assert set(BITMAP.examine(segment, COLUMN).rows) == set(addresses)


@pytest.mark.parametrize(("index_type", "column"), [(BTREE, COLUMN), (BITMAP, COLUMN), (LABEL_LIST, LISTS)])
def test_missing_and_truncated_files_are_rejected(index_type: IndexType, column: pa.Field, tmp_path: Path) -> None:
    values = pa.array([[n] for n in range(50_000)]) if column is LISTS else pa.array(range(50_000))
    condition: Leaf = (
        Call("array_has", PATH, (pa.scalar(7),)) if column is LISTS else In(PATH, (pa.scalar(7), pa.scalar(9)))
    )
    segment = write_segment(tmp_path, index_type, column, row_batches(values.slice(0, 3000)))
    directory = tmp_path / "_indices" / str(segment.metadata.uuid)
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        for length in (0, 10, len(content) // 3, len(content) - 30, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises((StorageError, Corrupt)):
                index_type.open(segment, column).search(condition)
        path.unlink()
        with pytest.raises(NotFound):
            index_type.open(segment, column).search(condition)
        path.write_bytes(content)
    assert index_type.open(segment, column).search(condition) is not None


def test_a_flipped_byte_raises_only_typed_errors(tmp_path: Path) -> None:
    """Any flipped byte leads to a result or to an error of this package, never to another exception."""
    for index_type in (BTREE, BITMAP):
        segment = write_segment(
            tmp_path, index_type, COLUMN, row_batches(pa.array([None, *range(40)])), options=_page_options(index_type)
        )
        for path in sorted((tmp_path / "_indices" / str(segment.metadata.uuid)).iterdir()):
            content = path.read_bytes()
            for position in range(0, len(content), 101):
                path.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
                try:
                    searcher = index_type.open(segment, COLUMN)
                    for condition in (equals(7), IsNull(PATH)):
                        searcher.search(condition)
                    index_type.examine(segment, COLUMN)
                except LanceError:
                    pass
            path.write_bytes(content)


def _page_options(index_type: IndexType) -> dict[str, object]:
    return {"zone_size": 8} if index_type is BTREE else {}


def test_a_segment_is_readable_after_a_move(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "a", BTREE, COLUMN, row_batches(pa.array([1, 2, None])))
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = Segment(segment.metadata, type(segment.files)(locate(tmp_path / "b"), segment.metadata), lambda high: 3)  # type: ignore[call-arg]
    found = BTREE.open(moved, COLUMN).search(IsNull(PATH))
    assert found is not None
    assert set(found.rows) == {2}


@pytest.mark.parametrize(
    ("segment", "problem"),
    [
        (lambda: write_tree_with_lookup({**SOUND_LOOKUP, "min": [1, 4, 5]}), "page 1 has a value beyond the min"),
        (lambda: write_tree_with_lookup({**SOUND_LOOKUP, "max": [2, 3, 5]}), "page 1 has a value beyond the max"),
        (lambda: write_tree_with_lookup({**SOUND_LOOKUP, "null_count": [1, 0, 0]}), "page 0 has 0 NULL"),
        (lambda: write_tree_with_lookup({**SOUND_LOOKUP, "min": [3, 1, 5]}), "not in order"),
        (
            lambda: replace_file(
                write_tree(), "page_data.lance", DATA, {"values": [3, 4, 1, 2, 5], "ids": [0, 1, 2, 3, 4]}
            ),
            "page 1 begins below the end",
        ),
        (
            lambda: replace_file(
                write_tree(), "page_data.lance", DATA, {"values": [1, 2, 3, 4, 5], "ids": [0, 1, 2, 3, 3]}
            ),
            "1 rows of page_data.lance occur more than once",
        ),
    ],
)
def test_examine_reports_contradictory_pages(segment: Callable[[], Segment], problem: str) -> None:
    problems = BTREE.examine(segment(), COLUMN).problems
    assert any(problem in each for each in problems), problems


def test_examine_reports_contradictory_bitmaps() -> None:
    duplicate_keys = write_bitmaps({"keys": [1, 1], "bitmaps": [encode_rows(1), encode_rows(2)]})
    assert "1 keys more than once" in BITMAP.examine(duplicate_keys, COLUMN).problems[0]
    shared_rows = write_bitmaps({"keys": [1, 2], "bitmaps": [encode_rows(1, 5), encode_rows(5)]})
    assert "1 rows under more than one key" in BITMAP.examine(shared_rows, COLUMN).problems[0]


def test_examine_accepts_sound_segments() -> None:
    assert not BTREE.examine(write_tree_with_lookup(SOUND_LOOKUP), COLUMN).problems
    assert not BITMAP.examine(
        write_bitmaps({"keys": [2, None, 1], "bitmaps": [encode_rows(1), encode_rows(2), encode_rows(3)]}), COLUMN
    ).problems


def test_keys_in_any_order_are_found() -> None:
    segment = write_bitmaps(
        {"keys": [5, None, 1, 3], "bitmaps": [encode_rows(5), encode_rows(9), encode_rows(1), encode_rows(3)]}
    )
    searcher = BITMAP.open(segment, COLUMN)
    for condition, rows in ((Comparison(PATH, Op.LE, pa.scalar(3)), {1, 3}), (equals(5), {5}), (IsNull(PATH), {9})):
        found = searcher.search(condition)
        assert found is not None
        assert set(found.rows) == rows


@pytest.mark.parametrize("metadata", [{"lance:label_list_nulls": "one"}, {"lance:label_list_nulls": "7"}])
def test_an_invalid_buffer_of_null_lists_is_rejected(metadata: Mapping[str, str]) -> None:
    segment = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    segment = replace_file(
        segment, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [encode_rows(0)]}, metadata
    )
    with pytest.raises((Corrupt, StorageError)):
        LABEL_LIST.open(segment, LISTS).search(IsNull(PATH))


def test_older_segments_cannot_search_null_lists() -> None:
    segment = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    segment = replace_file(segment, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [encode_rows(0)]})
    searcher = LABEL_LIST.open(segment, LISTS)
    assert searcher.search(IsNull(PATH)) is None
    assert searcher.search(Call("array_has", PATH, (pa.scalar(1),))) is not None


def test_a_merge_with_a_segment_without_null_lists_has_none() -> None:
    older = write_segment(None, LABEL_LIST, LISTS, row_batches(pa.array([[1], None], LISTS.type)))
    older = replace_file(older, "bitmap_page_lookup.lance", KEYS, {"keys": [1], "bitmaps": [encode_rows(0)]})
    merged = write_segment(
        None, LABEL_LIST, LISTS, row_batches(pa.array([None], LISTS.type), [9]), [MergeInput(older, IdentityRemap())]
    )
    assert LABEL_LIST.open(merged, LISTS).search(IsNull(PATH)) is None
