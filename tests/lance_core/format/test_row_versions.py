"""Row versions: runs of rows, whose spans count by length only, and what pylance stores and reads."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format._pb import rowids_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import manifest_path
from lance_core.format.row_lineage import RowVersions

HIGHEST = 2**64 - 1
MESSAGE = rowids_pb2.RowDatasetVersionSequence
RUN = rowids_pb2.RowDatasetVersionRun
SEGMENT = rowids_pb2.U64Segment
ARRAY = rowids_pb2.EncodedU64Array


def decoded(data: bytes | None, rows: int) -> RowVersions:
    return RowVersions.decode(data, rows=rows, path="m", field="created_at")


def encoded(*runs: tuple[SEGMENT, int]) -> bytes:
    return MESSAGE(runs=[RUN(span=span, version=version) for span, version in runs]).SerializeToString()


def in_range(start: int, end: int) -> SEGMENT:
    return SEGMENT(range=SEGMENT.Range(start=start, end=end))


def array(*values: int) -> ARRAY:
    return ARRAY(u64_array=ARRAY.U64Array(values=np.array(values, dtype="<u8").tobytes()))


per_row = st.lists(st.sampled_from([0, 1, 2, 7, HIGHEST]), max_size=40) | st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=6
).map(lambda runs: [version for version, rows in runs for _ in range(rows)])


@given(per_row)
def test_versions_are_encoded_in_consecutive_ranges(each: list[int]) -> None:
    versions = RowVersions.of(np.array(each, dtype=np.uint64))
    again = decoded(versions.encode(), len(each))
    assert (len(again), again.to_numpy().tolist(), again.runs) == (len(each), each, versions.runs)
    runs = MESSAGE.FromString(versions.encode()).runs
    spans = [(run.span.range.start, run.span.range.end) for run in runs]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])][: len(spans)]
    assert all(one.version != next_one.version for one, next_one in pairwise(runs))


@given(per_row, per_row, st.data())
def test_operations_equal_those_of_a_list(each: list[int], more: list[int], data: st.DataObject) -> None:
    versions = RowVersions.of(each)
    both = RowVersions.concat([versions, RowVersions.of(more)])
    assert both.to_numpy().tolist() == each + more
    assert both.runs == RowVersions.of(each + more).runs
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(each)), st.integers(0, len(each)))))
    assert versions.slice(start, stop).to_numpy().tolist() == each[start:stop]
    rows = data.draw(st.lists(st.integers(0, len(each) - 1), max_size=20)) if each else []
    positions = np.array(rows, dtype=np.uint32)
    remaining = [version for row, version in enumerate(each) if row not in rows]
    assert versions.delete(np.unique(positions)).runs == RowVersions.of(remaining).runs
    stamped = [9 if row in rows else version for row, version in enumerate(each)]
    assert versions.with_version_at(positions, Version(9)).to_numpy().tolist() == stamped
    assert versions.with_version_in(BitMap(rows), Version(9)).runs == RowVersions.of(stamped).runs
    later = [9 if start <= row < stop else version for row, version in enumerate(each)]
    assert versions.with_version_in(BitMap(range(start, stop)), Version(9)).runs == RowVersions.of(later).runs
    assert versions.to_numpy().tolist() == each


def test_only_the_length_of_a_span_counts() -> None:
    """A compaction leaves such spans: not rebased, overlapping, of any encoding."""
    data = encoded(
        (in_range(0, 2), 3),
        (in_range(0, 3), 5),
        (SEGMENT(range_with_bitmap=SEGMENT.RangeWithBitmap(start=1, end=9, bitmap=b"\x83")), 5),
        (SEGMENT(range_with_holes=SEGMENT.RangeWithHoles(start=1, end=5, holes=array(3))), 6),
        (SEGMENT(sorted_array=array(1, 900)), 7),
        (SEGMENT(array=array(9, 4, 1)), 8),
        (in_range(4, 4), 9),
    )
    assert decoded(data, 16).runs == ((2, 3), (6, 5), (3, 6), (2, 7), (3, 8))


def test_no_sequence_means_version_1() -> None:
    assert decoded(None, 5).runs == ((5, 1),)
    assert decoded(None, 0).runs == ()


def test_no_rows_are_no_bytes() -> None:
    assert RowVersions.of_one(0, Version(3)).encode() == b"" == RowVersions.concat([]).encode()
    assert decoded(b"", 0).runs == ()


@pytest.mark.parametrize(
    ("data", "rows", "message", "path"),
    [
        (b"\x0a\x7f", 1, "not a row version sequence", ""),
        (b"", 1, "holds 0 row versions for 1 rows", ""),
        (encoded((in_range(0, 2), 3)), 3, "holds 2 row versions for 3 rows", ""),
        (encoded((in_range(0, 2), 3), (in_range(2, 6), 4)), 5, "4 values, but at most 3 rows remain", ".runs[1].span"),
        (encoded((in_range(0, HIGHEST), 3)), 5, "but at most 5 rows remain", ".runs[0].span"),
        (encoded((in_range(4, 2), 3)), 5, "ends before it starts", ".runs[0].span"),
        (MESSAGE(runs=[RUN(version=1)]).SerializeToString(), 5, "has an unknown form", ".runs[0].span"),
        (None, 2**63, "a fragment has at most 4294967296", ""),
    ],
)
def test_corruption_is_reported(data: bytes | None, rows: int, message: str, path: str) -> None:
    with pytest.raises(Corrupt, match=f"^m: .*{message}") as caught:
        decoded(data, rows)
    assert (caught.value.path, caught.value.field) == ("m", f"created_at{path}")


@given(st.data())
def test_one_wrong_byte_is_an_error_or_other_versions(data: st.DataObject) -> None:
    good = RowVersions.of([1] * 300 + [2] * 5 + [70_000] * 41).encode()
    position, value = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 255))
    try:
        versions = decoded(good[:position] + bytes([value]) + good[position + 1 :], 346)
    except Corrupt:
        return
    assert len(versions) == len(versions.to_numpy()) == 346


@pytest.mark.parametrize(
    "call",
    [
        lambda versions: versions.slice(0, 4),
        lambda versions: versions.delete(np.array([3])),
        lambda versions: versions.delete(np.array([-1])),
        lambda versions: versions.with_version_at(np.array([3]), Version(2)),
    ],
)
def test_missing_rows_are_rejected(call: Callable[[RowVersions], object]) -> None:
    with pytest.raises(InvalidInput):
        call(RowVersions.of([1, 1, 2]))


# pylance


def table(ids: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int64())})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    uri = str(tmp_path_factory.mktemp("tables") / "t")
    lance.write_dataset(table([*range(100)]), uri, enable_stable_row_ids=True, max_rows_per_file=50)
    ds = lance.write_dataset(table([*range(100, 160)]), uri, mode="append")
    ds.update({"v": "v + 1"}, where="id % 9 = 0")
    upsert = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(table([3, 300, 120, 301]))
    ds.delete("id in (9, 50, 51, 52, 301)")
    ds.optimize.compact_files(target_rows_per_fragment=1000)
    ds.update({"v": "v + 2"}, where="id % 4 = 0")
    ds = lance.dataset(uri)
    ds.add_columns({"w": "v * 2"})
    ds.optimize.compact_files(target_rows_per_fragment=70)
    return lance.dataset(uri)


def fragments_of(ds: lance.LanceDataset, version: int) -> list[Fragment]:
    path = Path(ds.uri, manifest_path(Version(version)))
    return list(Manifest.decode(path.read_bytes(), path=path.name).fragments)


def created_and_updated(fragment: Fragment) -> tuple[tuple[bytes, RowVersions], tuple[bytes, RowVersions]]:
    created = fragment.message.inline_created_at_versions
    updated = fragment.message.inline_last_updated_at_versions
    rows = fragment.physical_rows
    return (created, decoded(created, rows)), (updated, decoded(updated, rows))


def test_pylance_reads_the_same_versions(history: lance.LanceDataset) -> None:
    for version in range(1, history.version + 1):
        stored = {each.id: created_and_updated(each) for each in fragments_of(history, version)}
        scanner = history.checkout_version(version).scanner(
            columns=["_row_created_at_version", "_row_last_updated_at_version"], with_row_address=True
        )
        for row in scanner.to_table().to_pylist():
            (_, created), (_, updated) = stored[row["_rowaddr"] >> 32]
            at = row["_rowaddr"] & 0xFFFFFFFF
            assert created.slice(at, at + 1).runs == ((1, row["_row_created_at_version"]),)
            assert updated.slice(at, at + 1).runs == ((1, row["_row_last_updated_at_version"]),)


def test_pylance_writes_the_same_bytes(history: lance.LanceDataset) -> None:
    """Compactions are excluded, since pylance does not rebase their spans."""
    observed, rebased = set[bytes](), 0
    for version in range(1, history.version + 1):
        transaction = history.read_transaction(version)
        compacts = transaction is not None and isinstance(transaction.operation, lance.LanceOperation.Rewrite)
        for fragment in fragments_of(history, version):
            for theirs, versions in created_and_updated(fragment):
                ours = RowVersions.of(versions.to_numpy()).encode()
                assert decoded(ours, len(versions)).runs == versions.runs
                if compacts:
                    rebased += ours != theirs
                    observed.add(theirs)
                elif theirs not in observed:
                    assert ours == theirs == versions.encode()
    assert rebased
