"""Checksums of files: every commit records them for the files that it adds, and later commits carry them on."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, IndexIgnored, InvalidInput, LanceError, Table
from lance_core.datafiles.checksums import forget_verified_files
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.manifest import Manifest

ROOT = Path(__file__).parents[2]


def rows(start: int, count: int) -> pa.Table:
    numbers = np.arange(start, start + count)
    return pa.table({"id": numbers, "kind": numbers % 5, "word": [f"word {n}" for n in numbers]})


def recorded_checksums(manifest: Manifest) -> Iterator[tuple[str, FileChecksum | None]]:
    """Yield the path of each file of a version, and the checksum that the version records."""
    for fragment in manifest.fragments:
        yield from ((file.qualified_path, file.checksum) for file in fragment.files)
        if fragment.deletion_file is not None:
            yield fragment.deletion_file.qualified_path, fragment.deletion_file.checksum
    for index in manifest.indices:
        yield from ((f"{index.qualified_path}/{file.path}", file.checksum) for file in index.files)


def test_a_file_whose_last_write_failed_is_not_committed(tmp_path: Path) -> None:
    """The codec reports no error then. A limit of the size of files stands for a full disk, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.lance_core.write_to_full_disk", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "data: StorageError: is incomplete, 1 version with 5000 rows",
        "index: StorageError: is incomplete, 1 version with 5000 rows",
        "blobs: StorageError: exceeds blob object size, 1 version with 1 rows",
    ]


@pytest.mark.parametrize("storage_version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_every_commit_records_the_checksums_of_its_files(tmp_path: Path, stable: bool, storage_version: str) -> None:
    table = Table.create(
        tmp_path / "t", rows(0, 300), stable_row_ids=stable, storage_version=storage_version, durable=False
    )
    steps = (
        lambda: table.append(rows(300, 200)),
        lambda: table.create_index("id", "BTREE"),
        lambda: table.create_index("kind", "BITMAP"),
        lambda: table.create_index("word", "NGRAM"),
        lambda: table.delete("id % 7 = 0"),
        lambda: table.update({"kind": "kind + 1"}, where="id < 50"),
        lambda: table.upsert(rows(450, 100), on="id"),
        lambda: table.add_columns({"twice": "id * 2"}),
        lambda: table.compact(),
        lambda: table.optimize_indices(),
        lambda: table.delete("id % 11 = 0"),
        lambda: table.set_config({"team": "blue"}),
    )
    seen: set[str] = set()
    for step in steps:
        table = step().table
        for path, checksum in recorded_checksums(table.manifest):
            assert checksum == FileChecksum.of(Path(table.uri, path).read_bytes()), path
            seen.add(path.partition("/")[0])
    assert seen == {"data", "_deletions", "_indices"}


KINDS = {
    "key": "BTREE",
    "kind": "BITMAP",
    "word": "NGRAM",
    "tags": "LABEL_LIST",
    "zone": "ZONEMAP",
    "bloom": "BLOOMFILTER",
}
FILTERS = {
    "BTREE": "key = 77",
    "BITMAP": "kind = 3",
    "NGRAM": "contains(word, '777')",
    "LABEL_LIST": "array_has_any(tags, ['1'])",
    "ZONEMAP": "zone < 100",
    "BLOOMFILTER": "bloom = 77",
}


def create_table(directory: Path, storage_version: str) -> Table:
    """Create a table with files of each kind: two data files, two deletion files, and six indices."""
    data = rows(0, 6000)
    for name in ("key", "zone", "bloom"):
        data = data.append_column(name, data["id"])
    data = data.append_column("tags", pa.array([[str(n % 3)] for n in range(6000)]))
    table = Table.create(directory, data, storage_version=storage_version, max_rows_per_file=3000, durable=False)
    for column, kind in KINDS.items():
        table = table.create_index(column, kind, name=kind).table
    table = table.delete("id in (1, 2)").table
    return table.delete("id >= 3000 and id % 2 = 0").table


def read_verified(uri: str, path: str) -> None:
    """Read the rows that the file holds, or search the index that it belongs to."""
    forget_verified_files()
    table = Table.open(uri, verify="read")
    names = {str(index.uuid): index.name for index in table.indices}
    index = names.get(path.split("/")[1])
    table.to_table(filter=FILTERS[index] if index else None)


@pytest.mark.parametrize("storage_version", ["2.0", "2.1", "2.2"])
def test_a_flipped_bit_in_any_file_is_found_before_the_file_is_decoded(tmp_path: Path, storage_version: str) -> None:
    table = create_table(tmp_path / "t", storage_version)
    random = np.random.default_rng(2)
    for number, (path, checksum) in enumerate(recorded_checksums(table.manifest)):
        assert checksum is not None
        original, expected = Path(table.uri, path).read_bytes(), IndexIgnored if "_indices" in path else Corrupt
        flipped = bytearray(original)
        flipped[int(random.integers(checksum.size))] ^= 1 << int(random.integers(8))
        for damaged, what in ((bytes(flipped), "has the hash"), (original[:-1], "bytes, but")):
            # Each copy is another table, whose indices are not open in this process.
            uri = shutil.copytree(table.uri, tmp_path / f"{number} {what}")
            Path(uri, path).write_bytes(damaged)
            with pytest.raises(expected, match=f"(?s){Path(path).name}.*{what}"):
                read_verified(str(uri), path)
            shutil.rmtree(uri)
        read_verified(table.uri, path)


def test_the_mode_decides_which_files_are_verified(tmp_path: Path) -> None:
    uri = Table.create(tmp_path / "t", rows(0, 400), max_rows_per_file=2, durable=False).uri
    files = [Path(uri, path) for path, _ in recorded_checksums(Table.open(uri).manifest)]
    for file in files:
        damaged = bytearray(file.read_bytes())
        damaged[-1] ^= 1
        file.write_bytes(damaged)

    def damaged_files(mode: Literal["off", "sample", "read"]) -> int:
        table, found = Table.open(uri, verify=mode), 0
        for number in range(0, 400, 2):
            try:
                table.take([number])
            except Corrupt as error:
                found += error.field == "checksum"
            except LanceError:
                pass  # the codec refused the file
        return found

    assert damaged_files("off") == 0
    assert 1 <= damaged_files("sample") <= 60
    assert damaged_files("read") == len(files) == 200


def test_a_verified_file_is_not_read_again_in_the_process(tmp_path: Path) -> None:
    value = np.array([0.123456789, 1.5])
    uri = Table.create(tmp_path / "t", pa.table({"x": value}), durable=False).uri
    (file,) = Path(uri, "data").iterdir()
    Table.open(uri, verify="read").to_table()
    file.write_bytes(file.read_bytes().replace(value.tobytes()[:8], value.tobytes()[8:]))
    assert Table.open(uri, verify="read").to_table()["x"].to_pylist() == [1.5, 1.5]
    forget_verified_files()
    with pytest.raises(Corrupt, match=r"read for x in fragment 0 of version 1 of "):
        Table.open(uri, verify="read").to_table()


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    uri = Table.create(tmp_path / "t", rows(0, 10), durable=False).uri
    with pytest.raises(InvalidInput, match="verify must be one of off, sample, read"):
        Table.open(uri, verify="always")


def change_by_pylance(uri: str) -> None:
    """Commit with an engine that drops the checksums of the whole version."""
    lance.write_dataset(rows(1000, 10), uri, mode="append")


def missing_checksums(table: Table) -> list[str]:
    return [path for path, checksum in recorded_checksums(table.manifest) if checksum is None]


def test_the_next_commit_takes_over_the_checksums_that_another_engine_dropped(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 100), max_rows_per_file=20, durable=False).delete("id = 1").table
    table = table.create_index("id", "BTREE").table
    before = dict(recorded_checksums(table.manifest))
    for planned_before in (True, False):
        change_by_pylance(table.uri)
        assert len(missing_checksums(table.refresh())) == len(list(recorded_checksums(table.refresh().manifest)))
        base = table if planned_before else table.refresh()
        table = base.append(rows(500, 5)).table
        after = dict(recorded_checksums(table.manifest))
        assert before.items() <= after.items()
        before = {path: checksum for path, checksum in after.items() if checksum is not None}
    assert len(missing_checksums(table)) == 2


def test_missing_checksums_are_recorded_on_request(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 100), uri, max_rows_per_file=20)
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance.dataset(uri).delete("id = 7")
    table = Table.open(uri)
    files = {path: path.stat() for path in Path(uri, "data").iterdir()}
    (finding,) = [finding for finding in table.fsck(data=True).findings if finding.rule == "no_checksum"]
    assert finding.automatic_repair is not None
    reports: list[str] = []
    committed = table.record_checksums(progress=lambda state: reports.append(str(state)))
    count = len(list(recorded_checksums(committed.table.manifest)))
    assert reports[0] == f"record_checksums: hash files: 0 of {count} files (0%)"
    assert reports[-1] == f"record_checksums: hash files: {count} of {count} files (100%)"
    assert (committed.version, committed.rows_added, committed.files) == (table.version + 1, 0, 0)
    assert {path: path.stat() for path in Path(uri, "data").iterdir()} == files
    for path, checksum in recorded_checksums(committed.table.manifest):
        assert checksum == FileChecksum.of(Path(uri, path).read_bytes())
    assert committed.table.record_checksums().version == committed.version
    assert committed.table.fsck(data=True).is_clean
    assert lance.dataset(uri).to_table(filter="id >= 5").num_rows == 94
    change_by_pylance(uri)
    change_by_pylance(uri)
    assert "version 7 records" in finding.automatic_repair.apply()
    assert missing_checksums(Table.open(uri)) == []


def test_a_change_that_was_planned_before_another_engine_dropped_checksums_is_rebased(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 100), max_rows_per_file=50, durable=False).delete("id = 1").table
    lance.dataset(table.uri).update_config({"team": "blue"})
    committed = table.delete("id = 2")
    assert (committed.version, committed.attempts) == (4, 1)
    lance.dataset(table.uri).delete("id = 3")
    committed = table.update({"kind": "kind + 1"}, where="id = 4")
    assert committed.table.count_rows() == 97
    newest = table.delete("id = 60").table
    assert newest.count_rows() == 96
    known = {item for item in recorded_checksums(table.manifest) if item[0].startswith("data")}
    assert known <= set(recorded_checksums(newest.manifest))


def test_pylance_uses_tables_with_checksums(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 100), max_rows_per_file=20, durable=False).delete("id = 1").table
    uri = table.create_index("id", "BTREE").table.uri
    change_by_pylance(uri)
    lance.dataset(uri).delete("id = 2")
    lance.dataset(uri).create_scalar_index("kind", "BITMAP")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).optimize.optimize_indices()
    lance.dataset(uri).update({"kind": "7"}, where="id = 3")
    dataset, table = lance.dataset(uri), Table.open(uri)
    for filter in ("id = 3", "kind = 7", "id >= 90", "id = 2"):
        assert dataset.to_table(filter=filter).sort_by("id") == table.to_table(filter=filter).sort_by("id")
    assert dataset.count_rows() == table.count_rows() == 108
