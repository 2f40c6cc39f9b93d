"""Index files have the storage version of their table, so that releases that read the table can use its indices."""

import struct
import tarfile
from pathlib import Path
from typing import Any, Literal, cast

import lance
import pytest

from lance_core import Table
from tests.fleets.rows import FILTERS, INDEXED, rows

GOLDEN = Path(__file__).parents[2] / "golden" / "tables"


def file_versions(uri: str) -> set[tuple[int, int]]:
    """Return the versions that the footers of all index files record."""
    return {struct.unpack("<HH", path.read_bytes()[-8:-4]) for path in Path(uri, "_indices").glob("*/*")}


def check_filters(uri: str) -> None:
    table, dataset = Table.open(uri), lance.dataset(uri)
    for text in (text for texts in FILTERS.values() for text in texts):
        expected = dataset.to_table(["id"], filter=text, use_scalar_index=False)
        assert dataset.to_table(["id"], filter=text).sort_by("id") == expected.sort_by("id"), text
        assert table.to_table(["id"], text) == expected, text


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_files_have_the_version_of_the_table(tmp_path: Path, storage: Literal["2.0", "2.1", "2.2"]) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    table = Table.create(ours, rows(range(40)), storage_version=storage, max_rows_per_file=10, durable=False)
    dataset = lance.write_dataset(rows(range(40)), theirs, data_storage_version=storage)
    for column, kind in INDEXED.items():
        table = table.create_index(column, kind).table
        dataset.create_scalar_index(column, cast(Any, kind))
    assert len(table.indices) == len(INDEXED)
    assert file_versions(ours) == file_versions(theirs)
    check_filters(ours)
    table = table.append(rows(range(40, 50))).table.optimize_indices().table
    assert file_versions(ours) == file_versions(theirs)
    check_filters(ours)


def test_files_of_a_legacy_table_have_version_2_0(tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / "0.15.0.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11 has it since 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    place = str(tmp_path / "deletions")
    table = Table.open(place, durable=False)
    assert table.manifest.storage_version.is_legacy
    table.create_index(table.schema.names[0], "BTREE")
    assert file_versions(place) == {(0, 3)}
