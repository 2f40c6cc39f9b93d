"""Row id sequences: every encoding, errors for corrupt ones, and the bytes and lookups of pylance."""

import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format._pb import rowids_pb2, table_pb2
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId, RowId, Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import manifest_path
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.format.row_lineage import RowIdSequence

HIGHEST = 2**64 - 1
MESSAGE = rowids_pb2.RowIdSequence
SEGMENT = rowids_pb2.U64Segment
ARRAY = rowids_pb2.EncodedU64Array

EXAMPLES: tuple[tuple[str, list[int], str], ...] = (
    ("range", [], "0a020a00"),
    ("range", [0, 1, 2], "0a040a021003"),
    ("sorted_array", [0, 1000, 2000], "0a0c220a0a0812060000e803d007"),
    ("sorted_array", [10, 3900], "0a0c220a0a08080a12040000320f"),
    ("range_with_bitmap", [5, 6, 9], "0a091a070805100a1a0113"),
    ("range_with_bitmap", [0, 2], "0a071a0510031a0105"),
    ("range_with_bitmap", [0, 2, 12], "0a081a06100d1a020510"),
    (
        "range_with_holes",
        [each for each in range(300, 400) if each != 350],
        "0a13121108ac021090031a090a0708de0212020000",
    ),
    ("array", [3, 1, 2], "0a0e2a0c0a0a08011206020000000100"),
    # Of two encodings of one size the first of this order is used: holes, bitmap, array.
    ("range_with_holes", [0, *range(2, 32)], "0a0e120c10201a080a06080112020000"),
    ("range_with_bitmap", [0, 31], "0a0a1a0810201a0401000080"),
)


def kinds(data: bytes) -> list[str | None]:
    return [segment.WhichOneof("segment") for segment in MESSAGE.FromString(data).segments]


def decoded(data: bytes, rows: int) -> RowIdSequence:
    return RowIdSequence.decode(data, rows=rows, path="m", field="row_ids")


def expected_encoding(ids: list[int]) -> str:
    """Return the encoding that the format prescribes."""
    if sorted(set(ids)) != ids:
        return "array"
    if not ids or (ids[-1] - ids[0] + 1 == len(ids) and ids[-1] < HIGHEST):
        return "range"
    slots = ids[-1] - ids[0] + 1
    sizes = {"range_with_holes": 4 * (slots - len(ids)), "range_with_bitmap": -(-slots // 8)}
    if ids[-1] == HIGHEST:
        sizes = {}
    return min({**sizes, "sorted_array": 2 * len(ids)}.items(), key=lambda item: item[1])[0]


BASES = st.one_of(st.just(0), st.integers(0, 2**20), st.integers(2**32 - 50, 2**32 + 50), st.just(HIGHEST - 5000))
GAPS = st.sampled_from([1, 1, 1, 1, 2, 3, 9, 700])


@st.composite
def distinct_ids(draw: st.DrawFn) -> list[int]:
    """Dense, holey and sparse stretches, in order or not, near both ends of the 64-bit range."""
    ids = [draw(BASES)]
    for gap in draw(st.lists(GAPS, max_size=120)):
        ids.append(min(ids[-1] + gap, HIGHEST))
    ids = sorted(set(ids + draw(st.lists(st.integers(0, HIGHEST), max_size=2))))
    return draw(st.permutations(ids)) if draw(st.booleans()) else ids


@st.composite
def sequences(draw: st.DrawFn) -> tuple[RowIdSequence, list[int]]:
    """Sequences of several segments with distinct ids."""
    ids = draw(distinct_ids())
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    pieces = [ids[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    return RowIdSequence.concat([RowIdSequence.of(piece) for piece in pieces]), ids


@pytest.mark.parametrize(("kind", "ids", "wire"), EXAMPLES)
def test_the_examples_of_the_format(kind: str, ids: list[int], wire: str) -> None:
    data = RowIdSequence.of(ids).encode()
    assert (kinds(data), data.hex()) == ([kind], wire)
    assert decoded(data, len(ids)).to_numpy().tolist() == ids


def test_a_bitmap_starts_at_its_lowest_bit() -> None:
    bitmap = SEGMENT.RangeWithBitmap(start=10, end=20, bitmap=b"\x03\x02")
    data = MESSAGE(segments=[SEGMENT(range_with_bitmap=bitmap)]).SerializeToString()
    assert decoded(data, 3).to_numpy().tolist() == [10, 11, 19]


@pytest.mark.parametrize(
    ("ids", "width"),
    [
        ([7, 6 + 2**16, 6], "u32_array"),
        ([6 + 2**16 - 1, 6], "u16_array"),
        ([2**40 + 2**32 - 1, 2**40], "u32_array"),
        ([2**40 + 2**32, 2**40], "u64_array"),
        ([HIGHEST, 0], "u64_array"),
    ],
)
def test_an_array_is_as_wide_as_its_span(ids: list[int], width: str) -> None:
    data = RowIdSequence.of(ids).encode()
    assert MESSAGE.FromString(data).segments[0].array.WhichOneof("array") == width
    assert decoded(data, len(ids)).to_numpy().tolist() == ids


@given(distinct_ids())
def test_ids_are_encoded_in_the_smallest_form(ids: list[int]) -> None:
    data = RowIdSequence.of(np.array(ids, dtype=np.uint64)).encode()
    again = decoded(data, len(ids))
    assert kinds(data) == [expected_encoding(ids)]
    assert (again.to_numpy().tolist(), again.encode()) == (ids, data)


@given(sequences())
def test_segments_are_decoded_unchanged(case: tuple[RowIdSequence, list[int]]) -> None:
    sequence, ids = case
    again = decoded(sequence.encode(), len(ids))
    assert (again.to_numpy().tolist(), again.encode()) == (ids, sequence.encode())


@given(sequences(), st.data())
def test_operations_equal_those_of_a_list(case: tuple[RowIdSequence, list[int]], data: st.DataObject) -> None:
    sequence, ids = case
    assert (len(sequence), sequence.to_numpy().tolist()) == (len(ids), ids)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(ids)), st.integers(0, len(ids)))))
    assert sequence.slice(start, stop).to_numpy().tolist() == ids[start:stop]
    rows = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=20))
    missing = np.unique(np.array(rows, dtype=np.uint32))
    remaining = sequence.delete(missing)
    assert remaining.to_numpy().tolist() == [each for row, each in enumerate(ids) if row not in missing]
    assert decoded(remaining.encode(), len(remaining)).encode() == remaining.encode()


@pytest.mark.parametrize(
    ("parts", "wire"),
    [
        ([[0, 1], [2, 3], [4]], ["range"]),
        ([[0, 1], [3, 4]], ["range", "range"]),
        ([[0, 1], [], [2]], ["range"]),
        ([[], []], ["range"]),
        ([[3, 1], [2]], ["array", "range"]),
        ([[0, 2], [3]], ["range_with_bitmap", "range"]),
        ([[0, 1], [2, 4], [5, 6], [7]], ["range", "range_with_bitmap", "range"]),
    ],
)
def test_only_adjacent_ranges_are_merged(parts: list[list[int]], wire: list[str]) -> None:
    original = RowIdSequence.concat([RowIdSequence.of(part) for part in parts])
    assert original.to_numpy().tolist() == [each for part in parts for each in part]
    assert kinds(original.encode()) == wire


def test_the_highest_id_is_not_followed_by_the_lowest() -> None:
    original = RowIdSequence.concat([RowIdSequence.of([HIGHEST]), RowIdSequence.of([0, 1])])
    assert decoded(original.encode(), 3).to_numpy().tolist() == [HIGHEST, 0, 1]


def test_a_remaining_ordered_array_is_encoded_as_sorted() -> None:
    remaining = RowIdSequence.of([5, 90, 6, 7]).delete(np.array([1]))
    assert kinds(remaining.encode()) == ["range"]
    assert kinds(RowIdSequence.concat([remaining, RowIdSequence.of([8])]).encode()) == ["range"]


def test_new_ids_and_moved_ids_form_one_segment() -> None:
    moved = RowIdSequence.decode_partial(RowIdSequence.of([0, 2]).encode(), rows_max=3, path="m")
    assert moved.with_appended_range(RowId(12), 1).encode().hex() == "0a081a06100d1a020510"
    assert moved.with_appended_range(RowId(12), 0) is moved
    with pytest.raises(Corrupt, match="holds 2 row ids for 3 rows"):
        decoded(moved.encode(), 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda ids: ids.slice(1, 5),
        lambda ids: ids.slice(2, 1),
        lambda ids: ids.delete(np.array([4])),
        lambda ids: ids.delete(np.array([-1])),
        lambda ids: RowIdSequence.of_range(RowId(HIGHEST), 1),
        lambda ids: RowIdSequence.of_range(RowId(0), -1),
    ],
)
def test_missing_rows_are_rejected(call: Callable[[RowIdSequence], object]) -> None:
    with pytest.raises(InvalidInput):
        call(RowIdSequence.of([5, 6, 9, 1]))


def u16(*offsets: int, base: int = 0) -> ARRAY:
    return ARRAY(u16_array=ARRAY.U16Array(base=base, offsets=np.array(offsets, dtype="<u2").tobytes()))


def in_range(start: int, end: int) -> SEGMENT:
    return SEGMENT(range=SEGMENT.Range(start=start, end=end))


def with_holes(start: int, end: int, holes: ARRAY) -> SEGMENT:
    return SEGMENT(range_with_holes=SEGMENT.RangeWithHoles(start=start, end=end, holes=holes))


def with_bitmap(start: int, end: int, bitmap: bytes) -> SEGMENT:
    return SEGMENT(range_with_bitmap=SEGMENT.RangeWithBitmap(start=start, end=end, bitmap=bitmap))


ODD_BYTES = ARRAY(u16_array=ARRAY.U16Array(offsets=b"abc"))
DAMAGE: tuple[tuple[list[SEGMENT], str, str], ...] = (
    ([SEGMENT()], "a segment has an unknown form", ".segments[0]"),
    ([in_range(0, 2), SEGMENT(array=ARRAY())], "an array has an unknown form", ".segments[1]"),
    ([in_range(5, 3)], "ends before it starts", ".segments[0]"),
    ([in_range(0, HIGHEST)], "but at most 10 rows remain", ".segments[0]"),
    ([in_range(0, 6), in_range(8, 13)], "holds 5 values, but at most 4 rows remain", ".segments[1]"),
    ([in_range(0, 4), in_range(2, 5)], "holds row id 2 twice", ""),
    ([in_range(4, 8), in_range(0, 5)], "holds row id 4 twice", ""),
    ([SEGMENT(array=u16(7, 3, 7))], "holds row id 7 twice", ""),
    ([with_holes(0, HIGHEST, u16(3))], "but at most 10 rows remain", ".segments[0]"),
    ([with_holes(3, 1, u16())], "ends before it starts", ".segments[0]"),
    ([with_holes(0, 2, u16(0, 1, 2))], "ends before it starts", ".segments[0]"),
    ([with_holes(5, 9, u16(4))], "a hole lies outside its range 5..9", ".segments[0]"),
    ([with_holes(5, 9, u16(9))], "a hole lies outside its range 5..9", ".segments[0]"),
    ([with_holes(5, 9, u16(7, 6))], "holes of a range are not in ascending order", ".segments[0]"),
    ([with_holes(5, 9, u16(6, 6))], "holes of a range are not in ascending order", ".segments[0]"),
    ([with_holes(5, 9, ARRAY())], "an array has an unknown form", ".segments[0]"),
    ([with_bitmap(0, 9, b"\x01")], "a bitmap of 1 bytes does not match its range 0..9", ".segments[0]"),
    ([with_bitmap(0, 8, b"\x01\x00")], "a bitmap of 2 bytes", ".segments[0]"),
    ([with_bitmap(0, HIGHEST, b"\x01")], "a bitmap of 1 bytes", ".segments[0]"),
    ([with_bitmap(8, 0, b"")], "a bitmap of 0 bytes does not match its range 8..0", ".segments[0]"),
    ([with_bitmap(0, 7, b"\x80")], "bits beyond its range", ".segments[0]"),
    ([with_bitmap(0, 80, b"\xff" * 10)], "holds 80 values, but at most 10", ".segments[0]"),
    ([SEGMENT(sorted_array=u16(3, 2))], "is not in ascending order", ".segments[0]"),
    ([SEGMENT(sorted_array=u16(3, 3))], "is not in ascending order", ".segments[0]"),
    ([SEGMENT(array=u16(*range(11)))], "holds 11 values, but at most 10", ".segments[0]"),
    ([SEGMENT(array=u16(1, base=HIGHEST))], "more than 64 bits", ".segments[0]"),
    ([SEGMENT(array=ODD_BYTES)], "3 bytes are not a whole number of 2-byte values", ".segments[0]"),
    ([in_range(0, 3)], "holds 3 row ids for 10 rows", ""),
    ([], "holds 0 row ids for 10 rows", ""),
)


@pytest.mark.parametrize(("segments", "message", "path"), DAMAGE)
def test_corruption_is_reported(segments: list[SEGMENT], message: str, path: str) -> None:
    with pytest.raises(Corrupt, match=f"^m: .*{message}") as caught:
        decoded(MESSAGE(segments=segments).SerializeToString(), 10)
    assert (caught.value.path, caught.value.field) == ("m", f"row_ids{path}")


def test_invalid_messages_are_reported() -> None:
    with pytest.raises(Corrupt, match="not a row id sequence"):
        decoded(b"\x0a\x7f", 1)


@pytest.mark.parametrize("segment", [in_range(9, 3), with_holes(1, 1, ARRAY(u64_array={})), with_bitmap(4, 4, b"")])
def test_every_kind_may_be_empty_but_not_negative(segment: SEGMENT) -> None:
    data = MESSAGE(segments=[segment]).SerializeToString()
    if segment.range.start:
        with pytest.raises(Corrupt):
            decoded(data, 0)
    else:
        assert len(decoded(data, 0)) == 0


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rows", [10, 2**32, 2**63, HIGHEST])
@pytest.mark.parametrize(
    "segment",
    [
        in_range(0, 2**32),
        in_range(0, HIGHEST),
        with_holes(0, 2**32 + 1, u16(7)),
        with_holes(0, HIGHEST, u16(7)),
        with_bitmap(0, HIGHEST, b"\xff"),
    ],
)
def test_a_small_message_takes_little_memory(segment: SEGMENT, rows: int) -> None:
    data = MESSAGE(segments=[segment]).SerializeToString()

    def attempt() -> None:
        try:
            decoded(data, rows)
        except Corrupt:
            return

    assert peak_bytes(attempt) < 100_000


def test_one_wrong_byte_is_an_error_or_another_sequence() -> None:
    """No other exception is raised, and no claimed length is trusted before its bytes exist."""
    dice = random.Random(7)
    ids = [*range(20), *range(40, 140, 2), *range(900, 1000), 70_000, 2_000_000, 5, 2**40]
    pieces = (ids[:20], ids[20:70], [each for each in ids[70:170] if each != 950], ids[170:172], [2**40, 30, 35])
    good = RowIdSequence.concat([RowIdSequence.of(piece) for piece in pieces])
    data, rows = good.encode(), len(good)
    assert kinds(data) == ["range", "range_with_bitmap", "range_with_holes", "sorted_array", "array"]
    outcomes = {"corrupt": 0, "valid": 0}

    def attempts() -> None:
        for position in range(len(data)):
            for value in {0, 1, 127, 128, 255, data[position] ^ 1 << dice.randrange(8), dice.randrange(256)}:
                edited = data[:position] + bytes([value]) + data[position + 1 :]
                try:
                    sequence = decoded(edited, rows)
                except Corrupt:
                    outcomes["corrupt"] += 1
                else:
                    outcomes["valid"] += 1
                    assert len(np.unique(sequence.to_numpy())) == rows
                    assert decoded(sequence.encode(), rows).to_numpy().tolist() == sequence.to_numpy().tolist()

    assert peak_bytes(attempts) < 2_000_000
    assert min(outcomes.values()) > 100, outcomes


# The index


def located(index: RowIdIndex, ids: Sequence[int]) -> list[tuple[int, int] | None]:
    places = index.locate_rows(np.array(ids, dtype=np.uint64))
    rows = zip(places.is_known, places.fragment_ids.tolist(), places.offsets.tolist(), strict=True)
    return [(fragment, offset) if known else None for known, fragment, offset in rows]


@given(st.lists(st.tuples(sequences(), st.sets(st.integers(0, 200))), max_size=5), st.lists(st.integers(0, HIGHEST)))
def test_the_index_is_a_dictionary(
    parts: list[tuple[tuple[RowIdSequence, list[int]], set[int]]], strangers: list[int]
) -> None:
    fragments, expected = [], dict[int, tuple[int, int]]()
    for number, ((sequence, ids), deleted) in enumerate(parts):
        missing = sorted(
            {each for each in deleted if each < len(ids)} | {p for p, i in enumerate(ids) if i in expected}
        )
        expected |= {each: (number * 7, offset) for offset, each in enumerate(ids) if offset not in missing}
        fragments.append(FragmentRowIds(FragmentId(number * 7), sequence, np.array(missing, dtype=np.uint32)))
    index = RowIdIndex(fragments, path="m")
    wanted = [*strangers, *(each for (_, ids), _ in parts for each in ids), 0, HIGHEST]
    assert located(index, wanted) == [expected.get(each) for each in wanted]
    assert len(index) == len(expected)


def test_an_id_is_found_at_its_newest_row() -> None:
    old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    new = FragmentRowIds(FragmentId(2**32 - 1), RowIdSequence.of([11]))
    index = RowIdIndex([old, new], path="m")
    assert located(index, [12, 11, 10, 9]) == [(3, 2), (2**32 - 1, 0), (3, 0), None]
    assert index.locate_rows([12, 11]).addresses.tolist() == [(3 << 32) + 2, (2**32 - 1) << 32]


@pytest.mark.parametrize("ids", [([5, 6, 7], [7]), ([7], [0, 7]), ([1, 9, 7, 3], [2, 7])])
def test_an_id_that_is_live_twice_is_corrupt(ids: tuple[list[int], list[int]]) -> None:
    fragments = [
        FragmentRowIds(FragmentId(each), RowIdSequence.of(part)) for each, part in zip((8, 4), ids, strict=True)
    ]
    index = RowIdIndex(fragments, path="_versions/9.manifest")
    with pytest.raises(Corrupt, match="row id 7 is live in fragment 4 and in fragment 8") as caught:
        index.locate_rows([0])
    assert (caught.value.path, caught.value.field) == ("_versions/9.manifest", "fragments[id=8].row_ids")


def test_a_deleted_row_that_does_not_exist_is_corrupt() -> None:
    part = FragmentRowIds(FragmentId(6), RowIdSequence.of([10, 11]), np.array([2], dtype=np.uint32))
    with pytest.raises(Corrupt, match="row 2 is deleted, but the fragment has only 2 rows") as caught:
        RowIdIndex([part], path="m").locate_rows([10])
    assert caught.value.field == "fragments[id=6].deletion_file"


def test_ten_million_rows_in_ranges_stay_ranges() -> None:
    """Ten thousand fragments of a thousand rows: per-row arrays would take 80 MB."""
    parts = [
        FragmentRowIds(FragmentId(each), RowIdSequence.of_range(RowId(each * 1000), 1000)) for each in range(10_000)
    ]
    index = RowIdIndex(parts, path="m")
    assert peak_bytes(lambda: index.locate_rows([0])) < 4_000_000
    assert located(index, [9_999_999, 123_456, 10_000_000]) == [(9999, 999), (123, 456), None]


# pylance


def table(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int64())})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """A table with several appends, deletes, updates, upserts and compactions."""
    uri = str(tmp_path_factory.mktemp("tables") / "t")
    lance.write_dataset(table(range(200)), uri, enable_stable_row_ids=True, max_rows_per_file=50)
    ds = lance.write_dataset(table(range(200, 300)), uri, mode="append")
    ds.delete("id % 7 = 0")
    ds.delete("id >= 60 and id < 90")
    ds.optimize.compact_files(target_rows_per_fragment=1000)
    ds.update({"v": "v + 1"}, where="id % 5 = 0")
    ds.update({"v": "v + 1"}, where="id in (1, 2, 3, 120)")
    upsert = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(table([250, 3, 900, 40, 901, 8]))
    ds.delete("id in (3, 901)")
    ds.optimize.compact_files(target_rows_per_fragment=1000)
    ds.update({"v": "v + 1"}, where="id % 2 = 0")
    lance.write_dataset(table(range(2000, 2300)), uri, mode="append", max_rows_per_file=75)
    ds = lance.dataset(uri)
    ds.delete("id = 2100")
    ds.optimize.compact_files(target_rows_per_fragment=130)
    return ds


def manifest_of(ds: lance.LanceDataset, version: int) -> Manifest:
    path = Path(ds.uri, manifest_path(Version(version)))
    return Manifest.decode(path.read_bytes(), path=path.name)


def row_ids_of(fragment: Fragment) -> RowIdSequence:
    return decoded(fragment.message.inline_row_ids, fragment.physical_rows)


def deleted_of(ds: lance.LanceDataset, fragment: Fragment) -> DeletionVector:
    file = fragment.deletion_file
    if file is None:
        return DeletionVector(np.empty(0, dtype=np.uint32))
    data = Path(ds.uri, file.path).read_bytes()
    return (DeletionVector.decode_bitmap if file.is_bitmap else DeletionVector.decode_arrow)(data, path=file.path)


def indexed(ds: lance.LanceDataset, manifest: Manifest) -> RowIdIndex:
    parts = [FragmentRowIds(each.id, row_ids_of(each), deleted_of(ds, each).offsets) for each in manifest.fragments]
    return RowIdIndex(parts, path=manifest.path)


def test_pylance_writes_the_same_bytes(history: lance.LanceDataset) -> None:
    observed = set[str | None]()
    for version in range(1, history.version + 1):
        for fragment in manifest_of(history, version).fragments:
            theirs = fragment.message.inline_row_ids
            sequence = row_ids_of(fragment)
            assert sequence.encode() == theirs
            if len(kinds(theirs)) == 1:
                assert RowIdSequence.of(sequence.to_numpy()).encode() == theirs
            observed |= set(kinds(theirs))
    assert observed >= {"range", "range_with_holes", "range_with_bitmap", "sorted_array", "array"}


@pytest.mark.parametrize(
    "ids",
    [
        [0, *range(2, 32)],
        [0, *range(2, 25)],
        [0, 31],
        [0, 32],
        [0, 1, 2, 47, 48],
        [0, *range(3, 90)],
        [*range(0, 90, 3)],
        [5, 6, 9],
        [2, 70_000],
        [*range(40), 69_000],
    ],
)
def test_pylance_uses_the_same_encoding(tmp_path: Path, ids: list[int]) -> None:
    """A compaction leaves such ids of the first rows of a table."""
    ds = lance.write_dataset(table(range(ids[-1] + 1)), str(tmp_path / "t"), enable_stable_row_ids=True)
    ds.delete(f"id not in ({', '.join(map(str, ids))})")
    ds.optimize.compact_files(materialize_deletions_threshold=0.0)
    (fragment,) = manifest_of(ds, lance.dataset(ds.uri).version).fragments
    assert fragment.physical_rows == len(ids)
    assert RowIdSequence.of(ids).encode() == fragment.message.inline_row_ids


def test_pylance_finds_the_same_rows(history: lance.LanceDataset) -> None:
    for version in range(1, history.version + 1):
        at = history.checkout_version(version)
        rows = at.scanner(columns=["id"], with_row_id=True, with_row_address=True).to_table()
        index = indexed(history, manifest_of(history, version))
        places = index.locate_rows(rows["_rowid"].to_numpy())
        assert places.is_known.all()
        assert places.addresses.tolist() == rows["_rowaddr"].to_pylist()
        assert len(index) == rows.num_rows


def test_pylance_compacts_to_the_same_ids(history: lance.LanceDataset) -> None:
    """The ids are equal, not the bytes: pylance writes neighbouring ranges of one old fragment as one segment, this
    library keeps them apart.
    """
    compactions = 0
    for version in range(2, history.version + 1):
        transaction = history.read_transaction(version)
        if transaction is None or not isinstance(transaction.operation, lance.LanceOperation.Rewrite):
            continue
        compactions += 1
        before = {each.id: each for each in manifest_of(history, transaction.read_version).fragments}
        after = {each.id: each for each in manifest_of(history, version).fragments}
        for group in transaction.operation.groups:
            old = [before[FragmentId(each.id)] for each in group.old_fragments]
            live = RowIdSequence.concat([row_ids_of(each).delete(deleted_of(history, each).offsets) for each in old])
            first = 0
            for new in (after[FragmentId(each.id)] for each in group.new_fragments):
                ours = live.slice(first, first + new.physical_rows)
                assert ours.to_numpy().tolist() == row_ids_of(new).to_numpy().tolist()
                first += new.physical_rows
            assert first == len(live)
    assert compactions == 3


READ_BY_THE_REFERENCE = {
    "range": [range(30)],
    "far range": [range(2**40, 2**40 + 30)],
    "holes": [[each for each in range(300, 331) if each != 311]],
    "bitmap": [range(100, 160, 2)],
    "sparse": [range(0, 30_000, 1000)],
    "wide": [[each << 33 for each in range(30)]],
    "shuffled": [[*range(29, -1, -1)]],
    "side by side": [[5, 6, 9], range(10, 20), [90, 80, 70], [1000, 5000], range(100, 112)],
}


@pytest.mark.parametrize("parts", READ_BY_THE_REFERENCE.values(), ids=READ_BY_THE_REFERENCE.keys())
def test_pylance_reads_our_sequences(tmp_path: Path, parts: list[Sequence[int]]) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(table(range(30)), uri, enable_stable_row_ids=True)
    path = tmp_path / "t" / manifest_path(Version(1))
    theirs = Manifest.decode(path.read_bytes(), path=path.name)
    message = table_pb2.Manifest()
    message.CopyFrom(theirs.message)
    sequence = RowIdSequence.concat([RowIdSequence.of(np.array(part, dtype=np.uint64)) for part in parts])
    message.fragments[0].inline_row_ids = sequence.encode()
    path.write_bytes(
        Manifest.from_header(
            message, index_section=theirs.index_section, transaction=theirs.inline_transaction, path=path.name
        ).encode()
    )
    ids = [each for part in parts for each in part]
    ds = lance.dataset(uri)
    assert ds.scanner(with_row_id=True).to_table()["_rowid"].to_pylist() == ids
    assert ds._take_rows(ids[::-3])["id"].to_pylist() == [*range(29, -1, -3)]
