"""Checksums of files: every commit records them for the files that it adds, and later commits carry them on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.manifest import Manifest


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
