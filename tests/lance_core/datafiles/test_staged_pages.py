"""Staged pages: rows that are decoded from pages in memory equal those that the codec reads from the files."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import lance.file
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.datafiles.codec import FileToRead
from lance_core.datafiles.file_checks import FILE_CACHE
from lance_core.datafiles.lance_codec import LanceCodec, LanceFileReader
from lance_core.datafiles.staged_pages import open_object, stage_objects
from lance_core.datafiles.staged_reader import JoinedReader, ObjectReader
from lance_core.format.chunk_table import ChunkedPage
from lance_core.format.page_view import merge_spans
from lance_core.storage.local import LocalStore

VERSIONS = ("2.1", "2.2")
ROWS = 150
POINT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string()), ("w", pa.float32())]))])


def _columns(rows: int, seed: int) -> dict[str, pa.Array]:
    """Columns of every layout: numbers, texts short and long, bit-packed, constant and null values, dictionaries,
    structs, lists and vectors, with nulls and without."""
    random = np.random.default_rng(seed)
    numbers = random.integers(-1000, 1000, rows)
    texts = [f"{'é' * (number % 7)}{number}" for number in numbers.tolist()]

    def with_nulls(values: Sequence[object], arrow: pa.DataType) -> pa.Array:
        return pa.array([None if number % 5 == 0 else each for number, each in enumerate(values)], arrow)

    points = [{"x": index, "y": {"z": text, "w": index / 2}} for index, text in enumerate(texts)]
    lists = [list(range(number % 4)) for number in numbers.tolist()]
    return {
        "n": pa.array(numbers),
        "n_null": with_nulls(numbers.tolist(), pa.int32()),
        "f": pa.array(random.random(rows)),
        "b": with_nulls([number % 2 == 0 for number in numbers.tolist()], pa.bool_()),
        "constant": pa.array([7] * rows, pa.int16()),
        "none": pa.nulls(rows, pa.int64()),
        "t": pa.array(texts),
        "t_null": with_nulls(texts, pa.large_string()),
        "long": pa.array([text * 60 for text in texts]),
        "bytes": with_nulls([text.encode() for text in texts], pa.binary()),
        "few": pa.array([f"kind {number % 3}" for number in numbers.tolist()]),
        "date": pa.array(numbers.astype("int32"), pa.date32()),
        "decimal": pa.array(numbers.tolist(), pa.int64()).cast(pa.decimal128(30, 2)),
        "point": pa.array(points, POINT),
        "point_null": with_nulls(points, POINT),
        "list": pa.array(lists, pa.list_(pa.int64())),
        "list_null": with_nulls([[each] * 3 for each in texts], pa.list_(pa.string())),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * 8), pa.float32()), 8),
        "wide": pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * 128), pa.float32()), 128),
        "dictionary": pa.array(texts).dictionary_encode(),
    }


@pytest.fixture(scope="module", params=VERSIONS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table of small fragments with deleted rows, the last of them empty but for one row."""
    uri = str(tmp_path_factory.mktemp("staged") / "t")
    parts = [pa.table(_columns(rows, seed)) for seed, rows in enumerate((ROWS, 3, ROWS, 1))]
    for part in parts:
        lance.write_dataset(part, uri, mode="append", data_storage_version=request.param)
    return Table.open(uri)


NAMES = tuple(_columns(1, 0))
PROJECTIONS: tuple[list[str] | None, ...] = (None, ["point.y.w", "n"], ["point", "t"], *([name] for name in NAMES))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Number of joined reads, and of files that the codec opened."""
    counts = {"joined": 0, "opened": 0}
    join, opened = LanceCodec.join, LanceFileReader.__init__

    def counted_join(self: LanceCodec, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedReader | None:
        joined = join(self, files, columns)
        counts["joined"] += joined is not None
        return joined

    def counted_open(self: LanceFileReader, *arguments: Any, **more: Any) -> None:
        counts["opened"] += 1
        opened(self, *arguments, **more)

    monkeypatch.setattr(LanceCodec, "join", counted_join)
    monkeypatch.setattr(LanceFileReader, "__init__", counted_open)
    return counts


@pytest.mark.parametrize("columns", PROJECTIONS, ids=str)
def test_joined_fragments_equal_pylance(table: Table, columns: list[str] | None, calls: dict[str, int]) -> None:
    expected = lance.dataset(table.uri).to_table(columns=columns)
    assert table.to_table(columns=columns).to_pylist() == expected.to_pylist()
    assert calls == {"joined": 1, "opened": 0}


def test_deleted_rows_and_system_columns(table: Table, tmp_path: Path, calls: dict[str, int]) -> None:
    """Deleted rows are left out, and each row keeps its address."""
    copy = lance.write_dataset(lance.dataset(table.uri).to_table(), tmp_path / "t", max_rows_per_file=200)
    copy.delete("n % 3 = 0 and n > -500")
    ours = Table.open(tmp_path / "t")
    columns = ["n", "t", "point"]
    for condition in (None, "n < 100", "point.x > 250", "n = 5000"):
        expected = copy.to_table(columns=columns, filter=condition, with_row_address=True)
        assert ours.to_table(columns=columns, filter=condition, with_row_address=True).equals(
            expected.cast(ours.to_table(columns=columns, limit=0, with_row_address=True).schema)
        )
        assert ours.count_rows(condition) == copy.count_rows(condition)
    assert calls["joined"] >= 4


def test_columns_of_several_files_and_renamed_columns(tmp_path: Path, calls: dict[str, int]) -> None:
    """Fragments whose columns are in several files, and whose files have other names than the table."""
    dataset = lance.write_dataset(pa.table({"a": range(1000), "b": range(1000)}), tmp_path / "t", max_rows_per_file=100)
    dataset.add_columns({"c": "a * 2"})
    dataset.alter_columns({"path": "b", "name": "d"})  # type: ignore[dict-item]
    dataset = lance.write_dataset(
        pa.table({"a": range(100), "d": range(100), "c": range(100)}), tmp_path / "t", mode="append"
    )
    ours = Table.open(tmp_path / "t")
    for columns in (None, ["c"], ["d"], ["d", "a"], ["c", "a"]):
        assert ours.to_table(columns=columns).to_pylist() == dataset.to_table(columns=columns).to_pylist()
    assert calls["joined"] >= 5


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Files are decoded together, but an error is about one of them."""
    table = Table.create(tmp_path / "t", pa.table({"a": range(300)}), max_rows_per_file=100)
    file = table.fragments[1].files[0].path
    path = tmp_path / "t" / "data" / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match=file):
        table.to_table()


class _Objects:
    """Files of a directory as objects, with the requests for their ranges."""

    def __init__(self, directory: Path) -> None:
        self.codec = LanceCodec(LocalStore(directory))
        self.requests: list[tuple[str, int, int]] = []
        FILE_CACHE.clear()

    def read(self, path: str, start: int, length: int) -> bytes:
        self.requests.append((path, start, length))
        return self.codec.store.read(path, start, length)

    def open(self, path: str, size: int, **more: int) -> ObjectReader:
        store, read = self.codec.store, self.read
        checked, tail = open_object(store, FileToRead(path, size), read)
        decoder, fallback = self.codec.view_decoder(path), lambda: self.codec.open(path, size=size)
        return ObjectReader(store, path, checked, tail, read, 4, decoder, fallback, **more)


@pytest.fixture(scope="module", params=VERSIONS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one file whose columns have several pages, which are larger than the end of the file."""
    directory = tmp_path_factory.mktemp("objects")
    with lance.file.LanceFileWriter(str(directory / "f.lance"), version=request.param, data_cache_bytes=1) as writer:
        for seed in range(4):
            writer.write_batch(pa.table(_columns(1000, seed)))
    with lance.file.LanceFileWriter(str(directory / "large.lance"), version=request.param) as writer:
        writer.write_batch(pa.table({name: _columns(LARGE, 5)[name] for name in LARGE_COLUMNS}))
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_ranges_and_rows_of_an_object(directory: Path, name: str) -> None:
    """Whole pages, and the codec where a small part of a page is requested, give the rows of the file."""
    size = (directory / "f.lance").stat().st_size
    file = lance.file.LanceFileReader(str(directory / "f.lance"), columns=[name])
    expected = file.read_all().to_table()[name].to_pylist()
    for start, count in ((0, 4000), (0, 1000), (999, 2), (1000, 1000), (3999, 1), (1500, 2200)):
        batches = _Objects(directory).open("f.lance", size).read([name], start, count)
        assert _values(batches) == expected[start : start + count]
    for rows in ([0], [5, 7, 900], [1500], [3999], [0, 3999]):
        taken = _Objects(directory).open("f.lance", size).take([name], np.array(rows))
        assert _values(taken) == [expected[row] for row in rows]


LARGE = 40_000
LARGE_COLUMNS = ("n", "n_null", "f", "t", "t_null", "bytes", "few", "decimal", "point", "vector", "dictionary")


@pytest.mark.parametrize("name", LARGE_COLUMNS)
def test_chunks_of_a_page(directory: Path, name: str) -> None:
    """A few rows of a large page are read by its chunk table, without the codec that opens the file. The chunk table is
    kept."""
    size = (directory / "large.lance").stat().st_size
    file = lance.file.LanceFileReader(str(directory / "large.lance"), columns=[name])
    expected = file.read_all().to_table()[name].to_pylist()
    objects = _Objects(directory)
    reader = objects.open("large.lance", size, _whole_bytes_max=0)
    for start, count in ((0, 1), (1023, 2), (4095, 4097), (LARGE - 1, 1), (17_000, 3000)):
        assert _values(reader.read([name], start, count)) == expected[start : start + count]
    draw = np.random.default_rng(2)
    for count in (1, 5, 40):
        rows = np.unique(draw.integers(0, LARGE, count))
        assert _values(reader.take([name], rows)) == [expected[row] for row in rows]
    assert not reader.is_opened_by_codec
    before = len(objects.requests)
    assert _values(reader.take([name], np.array([30_000]))) == [expected[30_000]]
    assert len(objects.requests) <= before + 3  # a struct has three columns
    assert sum(length for _, _, length in objects.requests[before:]) <= 128 * 1024


def test_a_chunk_table_that_contradicts_its_page_is_not_used() -> None:
    page = ChunkedPage((0, 6), (64, 8 * 6), 2500, 2)
    words = [(2 - 1) << 4 | 10, (3 - 1) << 4 | 10, (1 - 1) << 4]
    table = np.array(words, dtype="<u2").tobytes()
    assert page.spans_of(table, np.array([0, 1023])) == [(64, 16)]
    assert page.spans_of(table, np.array([1023, 1024, 2499])) == [(64, 16), (80, 24), (104, 8)]
    assert replace(page, chunks=(64, 8 * 7)).spans_of(table, np.array([0])) is None
    assert replace(page, rows=2048).spans_of(table, np.array([0])) is None
    assert page.spans_of(table[:-2], np.array([0])) is None


def test_requests_for_an_object(directory: Path) -> None:
    """The end is read once, the pages of a column by one request if they are close together; a second reader of the
    process needs no request for the end."""
    size = (directory / "f.lance").stat().st_size
    objects = _Objects(directory)
    assert len(list(objects.open("f.lance", size).read(["f"], 0, 4000))) > 0
    assert [start + length for _, start, length in objects.requests[:1]] == [size + 1]
    assert len(objects.requests) <= 1 + 4
    before = len(objects.requests)
    assert objects.open("f.lance", size).row_count == 4000
    assert len(objects.requests) == before


def test_small_objects_take_one_request_each(table: Table) -> None:
    objects = _Objects(Path(table.uri))
    files = [FileToRead(f"data/{fragment.files[0].path}", fragment.files[0].size) for fragment in table.fragments]
    small = [file for file in files if file.size is not None and file.size < 60_000]
    assert len(small) >= 2
    staged = stage_objects(objects.codec.store, small, ("n",), objects.read, 4)
    assert staged is not None
    assert len(objects.requests) == len(small)


def test_an_object_of_another_size_is_corrupt(directory: Path) -> None:
    size = (directory / "f.lance").stat().st_size
    for wrong in (size - 1, size + 1):
        with pytest.raises(Corrupt, match=f"has {size} bytes, but the table records {wrong}"):
            _Objects(directory).open("f.lance", wrong)


def test_a_short_answer_is_an_error(directory: Path) -> None:
    """The codec must not decode what is not there."""
    objects = _Objects(directory)
    size = (directory / "f.lance").stat().st_size
    reader = objects.open("f.lance", size)
    objects.codec = LanceCodec(_Truncated(directory))
    with pytest.raises(Corrupt):
        list(reader.read(["f"], 0, 4000))


class _Truncated(LocalStore):
    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return super().read(path, start, length)[:-1]


def test_spans_are_merged() -> None:
    assert merge_spans([(0, 10), (10, 5), (20, 5), (22, 1), (100, 1)], 5) == [(0, 25), (100, 1)]
    assert merge_spans([(0, 10), (20, 5)], 9) == [(0, 10), (20, 5)]
    assert merge_spans([], 9) == []


def _values(batches: Iterator[pa.RecordBatch]) -> list[object]:
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_views_without_anonymous_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems other than Linux decode from a temporary file."""
    monkeypatch.delattr(os, "memfd_create")
    assert table.to_table(["n", "t"]).to_pylist() == lance.dataset(table.uri).to_table(["n", "t"]).to_pylist()
