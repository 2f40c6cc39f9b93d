"""Scans: limits and offsets over fragments with deleted rows equal slices of the whole; columns come in any order."""

import itertools
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Corrupt, InvalidInput, NotFound, Table
from lance_core.datafiles.codec import FileToRead
from lance_core.datafiles.lance_codec import LanceCodec, LanceFileReader
from lance_core.datafiles.staged_reader import JoinedReader
from lance_core.expressions import Predicate
from lance_core.scan.executor import scan
from lance_core.scan.morsels import Morsel
from lance_core.scan.parallel import THREADS
from lance_core.scan.plan import plan_scan
from lance_core.scan.row_reader import RowReader
from lance_core.scan.selection import FragmentSelection, Selection


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with three fragments of four rows, of which two, three and none are deleted."""
    directory = str(tmp_path_factory.mktemp("scan") / "t")
    table = pa.table({"a": range(12), "b": [str(value) for value in range(12)]})
    lance.write_dataset(table, directory, max_rows_per_file=4)
    lance.dataset(directory).delete("a in (0, 2, 4, 5, 7)")
    return directory


LIVE = [1, 3, 6, 8, 9, 10, 11]


@pytest.mark.parametrize("offset", [None, 0, 1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("limit", [None, 0, 1, 2, 4, 7, 100])
def test_every_window(uri: str, limit: int | None, offset: int | None) -> None:
    start = offset or 0
    expected = LIVE[start : None if limit is None else start + limit]
    table = Table.open(uri)
    assert table.to_table(limit=limit, offset=offset)["a"].to_pylist() == expected
    assert [row for batch in table.to_batches(limit=limit, offset=offset) for row in batch["a"].to_pylist()] == expected


def test_fragments_outside_the_window_are_not_opened(uri: str) -> None:
    manifest = Table.open(uri).manifest
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, limit=2, offset=2).tasks] == [1, 2]
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, limit=0).tasks] == []
    assert [task.fragment.id for task in plan_scan(manifest, columns=None, offset=3).tasks] == [2]


def test_columns_come_in_the_requested_order(uri: str) -> None:
    table = Table.open(uri)
    assert table.to_table(columns=["b", "a"]).column_names == ["b", "a"]
    assert table.to_table(columns=["b"])["b"].to_pylist() == [str(value) for value in LIVE]


def test_a_projection_without_columns_has_rows(uri: str) -> None:
    assert Table.open(uri).to_table(columns=[]).num_rows == len(LIVE)
    assert Table.open(uri).to_table(columns=[], limit=3, offset=1).num_rows == 3


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["A"], "no column 'A'; "), (["bb"], "no column 'bb'; did you mean 'b'"), (["a", "a"], "names a column twice")],
)
def test_unknown_columns_are_rejected(uri: str, columns: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.open(uri).to_table(columns=columns)


@pytest.mark.parametrize(("limit", "offset"), [(-1, None), (None, -1)])
def test_negative_windows_are_rejected(uri: str, limit: int | None, offset: int | None) -> None:
    with pytest.raises(InvalidInput, match="must not be negative"):
        Table.open(uri).to_table(limit=limit, offset=offset)


def test_a_scan_reads_lazily(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}), max_rows_per_file=2)
    batches = table.to_batches()
    for path in (tmp_path / "t" / "data").iterdir():
        path.unlink()
    with pytest.raises(NotFound, match=r"data file .*\.lance does not exist"):
        next(batches)


def test_damaged_data_files_are_named(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}))
    (path,) = (tmp_path / "t" / "data").iterdir()
    all_rows = path.read_bytes()
    for damaged in (b"", all_rows[:-1], all_rows[:50], bytes(len(all_rows)), b"\xff" * len(all_rows)):
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match=path.name):
            table.to_table()


def test_a_file_of_other_rows_is_corrupt(tmp_path: Path) -> None:
    """A data file was swapped by hand or by a failed restore from a backup."""
    short = Table.create(str(tmp_path / "short"), pa.table({"a": range(2)}))
    table = Table.create(str(tmp_path / "t"), pa.table({"a": range(6)}))
    (source,) = (tmp_path / "short" / "data").iterdir()
    (target,) = (tmp_path / "t" / "data").iterdir()
    target.write_bytes(source.read_bytes())
    assert short.count_rows() == 2
    with pytest.raises(Corrupt, match="has 2 rows, but its fragment 0 has 6"):
        table.to_table()


@pytest.mark.parametrize("damage", ["missing", "empty", "other count"])
def test_damaged_deletions_are_named(damage: str, tmp_path: Path) -> None:
    """Deleted rows do not reappear because their deletion file is missing or damaged."""
    uri = str(tmp_path / "t")
    for directory, where in ((uri, "a < 3"), (str(tmp_path / "other"), "a < 2")):
        lance.write_dataset(pa.table({"a": range(6)}), directory)
        lance.dataset(directory).delete(where)
    (path,) = (tmp_path / "t" / "_deletions").iterdir()
    (other,) = (tmp_path / "other" / "_deletions").iterdir()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else other.read_bytes())
    with pytest.raises((Corrupt, NotFound), match=path.name):
        Table.open(uri).to_table()


@pytest.mark.parametrize(
    ("filter", "expected"),
    [("a % 2 = 0", [6, 8, 10]), ("b >= '9'", [9]), ("a = 0", []), ("A > 9 and b != '11'", [10]), ("b = '4'", [])],
)
def test_a_filter_returns_the_matching_rows(uri: str, filter: str, expected: list[int]) -> None:
    table = Table.open(uri)
    assert table.to_table(filter=filter)["a"].to_pylist() == expected
    assert table.to_table(["a"], filter)["a"].to_pylist() == expected
    assert table.to_table(["b"], filter).column_names == ["b"]
    assert table.count_rows(filter) == len(expected)
    theirs = lance.dataset(uri).to_table(columns=["a"], filter=filter.replace("A", "a"))
    assert theirs["a"].to_pylist() == expected


@pytest.mark.parametrize("offset", [None, 0, 1, 3, 9])
@pytest.mark.parametrize("limit", [None, 0, 1, 3, 9])
def test_windows_count_matching_rows(uri: str, limit: int | None, offset: int | None) -> None:
    matching = [value for value in LIVE if value % 2]
    start = offset or 0
    found = Table.open(uri).to_table(["b"], "a % 2 = 1", limit=limit, offset=offset)["b"].to_pylist()
    assert found == [str(value) for value in matching[start : None if limit is None else start + limit]]


def test_a_filter_on_an_unknown_column_is_rejected(uri: str) -> None:
    with pytest.raises(InvalidInput, match="there is no column 'bb' at character 1; did you mean 'b'"):
        Table.open(uri).to_table(filter="bb = 1")


FRAGMENTS = 200


@pytest.fixture(scope="module")
def many_fragments(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table whose fragments are so small that a few of them make up one morsel."""
    directory = str(tmp_path_factory.mktemp("many") / "t")
    rows = pa.table({"a": range(FRAGMENTS * 3)})
    return Table.create(directory, rows, max_rows_per_file=3, durable=False)


def _reading_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("lance-read")]


LARGER = 80
ROWS_OF_GROUP = 65_536


@pytest.fixture(scope="module")
def larger_fragments(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table whose fragments are small, but two of them have enough rows for a unit of work."""
    directory = str(tmp_path_factory.mktemp("larger") / "t")
    rows = pa.table({"a": range(LARGER * ROWS_OF_GROUP // 2)})
    return Table.create(directory, rows, max_rows_per_file=ROWS_OF_GROUP // 2, durable=False)


@pytest.mark.parametrize("filter", [None, "a % 2 = 0"])
def test_read_ahead_is_bounded_and_ends_with_the_scan(
    larger_fragments: Table, filter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan reads only a few groups of fragments ahead of a slow consumer. After the consumer closes or drops the
    scan, no thread remains and nothing more is read."""
    opened: set[str] = set()
    join = LanceCodec.join

    def record_join(self: LanceCodec, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedReader | None:
        opened.update(file.path for file in files)
        return join(self, files, columns)

    monkeypatch.setattr(LanceCodec, "join", record_join)
    files_ahead = 2 * (THREADS + 3)
    for stop in ("close", "forget"):
        opened.clear()
        batches = larger_fragments.to_batches(filter=filter)
        first = next(batches)
        assert first["a"].to_pylist()[0] == 0
        if stop == "close":
            batches.close()  # type: ignore[attr-defined]
        else:
            del batches
        assert _reading_threads() == []
        assert 0 < len(opened) <= files_ahead < LARGER


def test_bytes_ahead_bound_the_rows_that_are_read_ahead(
    larger_fragments: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow consumer gets all rows in order, and few of them are in memory at a time."""
    read: list[int] = []
    batches_of = RowReader.batches

    def record_rows(self: RowReader, morsels: Sequence[Morsel]) -> list[pa.RecordBatch]:
        read.append(sum(morsel.count for morsel in morsels))
        return batches_of(self, morsels)

    monkeypatch.setattr(RowReader, "batches", record_rows)
    fragment = larger_fragments.fragments[0]
    bytes_ahead = 2 * fragment.file_bytes
    consumed = 0
    plan = plan_scan(larger_fragments._snapshot.manifest, columns=["a"])
    for batch in scan(larger_fragments._location, plan, bytes_ahead=bytes_ahead):
        assert batch["a"][0].as_py() == consumed
        consumed += batch.num_rows
        assert sum(read) <= consumed + 3 * fragment.physical_rows
    assert consumed == larger_fragments.count_rows()


def test_a_reader_thread_raises_its_error_in_the_consumer(larger_fragments: Table, tmp_path: Path) -> None:
    """The consumer gets the rows before the failure and then the error, once."""
    copy = str(shutil.copytree(larger_fragments.uri, tmp_path / "t"))
    table = Table.open(copy)
    missing_path = table.fragments[60].files[0].path
    (tmp_path / "t" / "data" / missing_path).unlink()
    received: list[int] = []
    with pytest.raises(NotFound, match=missing_path):
        received.extend(row for batch in table.to_batches() for row in batch["a"].to_pylist())
    assert received == list(range(len(received)))
    assert 0 < len(received) <= 30 * ROWS_OF_GROUP
    assert _reading_threads() == []
    with pytest.raises(NotFound, match=missing_path):
        table.count_rows("a >= 0")
    with pytest.raises(NotFound, match=missing_path):
        table.take([3, 30 * ROWS_OF_GROUP])


def test_one_table_serves_several_threads(many_fragments: Table) -> None:
    all_rows = many_fragments.to_table()
    offsets = [599, 0, 300, 300, 7]

    def work(number: int) -> bool:
        if number % 3 == 0:
            return bool(many_fragments.to_table().equals(all_rows))
        if number % 3 == 1:
            return many_fragments.to_table(filter="a % 3 = 1", with_row_id=True)["a"].to_pylist() == list(
                range(1, 600, 3)
            )
        return many_fragments.take(offsets)["a"].to_pylist() == offsets

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(18)))


def test_rows_come_in_table_order(many_fragments: Table) -> None:
    assert many_fragments.to_table()["a"].to_pylist() == list(range(FRAGMENTS * 3))
    addresses = many_fragments.to_table(["_rowaddr"], "a % 5 != 0")["_rowaddr"].to_pylist()
    assert addresses == sorted(addresses)


def test_a_limit_ends_the_scan_early(many_fragments: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan with a limit ends with its last row and has not read further files ahead."""
    opened: list[str] = []
    read = LanceFileReader.read

    def record_read(self: LanceFileReader, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        opened.append(self.full_path)
        return read(self, columns, start, count)

    monkeypatch.setattr(LanceFileReader, "read", record_read)
    assert many_fragments.to_table(filter="a % 2 = 1", limit=3, offset=1)["a"].to_pylist() == [3, 5, 7]
    assert len(opened) <= 3


def test_wide_rows_are_read_in_small_batches(tmp_path: Path) -> None:
    """The size of the rows limits a morsel, even if a fragment has few rows."""
    random = np.random.default_rng(1)
    wide = pa.array([random.bytes(2**19) for _ in range(40)], pa.large_binary())
    rows = pa.table({"a": range(40), "wide": wide})
    table = Table.create(str(tmp_path / "t"), rows, durable=False)
    (fragment,) = table.fragments
    sizes, narrow = (plan_scan(table.manifest, columns=[name]).morsel_sizes() for name in ("wide", "a"))
    assert sizes.rows_per_morsel(sizes.row_bytes(fragment)) == 31
    assert narrow.rows_per_morsel(narrow.row_bytes(fragment)) > 40
    assert [batch.num_rows for batch in table.to_batches(["wide"])] == [31, 9]
    assert table.to_table(["wide", "a"]).equals(rows.select(["wide", "a"]))
    assert table.to_table(["wide"], "a = 35")["wide"].to_pylist() == [wide[35].as_py()]


def select_all(selection: Selection, predicate: Predicate) -> Selection:
    return selection


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_fragments_listed_in_any_order_are_scanned_once(tmp_path: Path, order: Sequence[int]) -> None:
    """Old writers list fragments in any order after a compaction; each fragment is scanned once."""
    lance.write_dataset(pa.table({"a": range(4)}), tmp_path / "t", max_rows_per_file=1)
    manifest = Table.open(str(tmp_path / "t")).manifest
    reordered = manifest.with_fragments([manifest.fragments[number] for number in order])
    selections = {number: FragmentSelection(BitMap([0])) for number in order}
    for excluded in (None, *order):
        selected = {number: rows for number, rows in selections.items() if number != excluded}
        select = partial(select_all, Selection(BitMap(order), selected))
        plan = plan_scan(reordered, columns=None, filter="a >= 0", select=select)
        assert [task.fragment.id for task in plan.tasks] == [number for number in order if number != excluded]
