"""Damaged files of vector indices: a search compares every vector and names the damage in a warning, and fsck finds
it. Codes are stored unchanged, so that only checksums show a damaged one."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_core import IndexIgnored, Table

ROWS, SIZE = 4_200, 8
VECTORS = np.random.default_rng(4).normal(size=(ROWS, SIZE)).astype(np.float32)
Damage = Callable[[Path], bytes]


def rename(column: bytes) -> Damage:
    """Return a damage of the name of a column."""
    return lambda file: file.read_bytes().replace(column, column[:-1] + b"!")


def zero(column: int, buffer: int, start: int = 0) -> Damage:
    """Return a damage of the first page of a column: 64 bytes of a buffer become zero."""

    def damage(file: Path) -> bytes:
        span = LanceFileReader(str(file)).metadata().columns[column].pages[0].buffers[buffer]
        content, size, position = file.read_bytes(), min(64, span.size - start), span.position + start
        return content[:position] + bytes(size) + content[position + size :]

    return damage


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    rows = pa.table({"id": range(ROWS), "v": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), SIZE)})
    table = Table.create(tmp_path_factory.mktemp("damaged") / "t", rows, durable=False)
    table = table.create_index("v", "IVF_HNSW_SQ", num_partitions=1, m=6, ef_construction=20).table
    assert not problems_of(table)
    return table


@pytest.mark.parametrize(
    ("file_name", "damage", "message"),
    [
        ("auxiliary.idx", rename(b"__sq_code"), "it has no column '__sq_code'"),
        ("auxiliary.idx", rename(b"_rowid"), "it has no column '_rowid'"),
        ("index.idx", rename(b"__neighbors"), "it has no column '__neighbors'"),
        ("index.idx", zero(1, 2), "a repetition index"),
        ("index.idx", zero(0, 1, 700), "its lowest level does not list the rows in order"),
        ("index.idx", zero(1, 0), "index.idx"),
    ],
    ids=["codes", "row numbers", "links", "ends of links", "ids", "chunks of links"],
)
def test_damage_is_named(table: Table, tmp_path: Path, file_name: str, damage: Damage, message: str) -> None:
    copy = damaged_copy(table, tmp_path / "t", file_name, damage)
    assert any(message in each for each in problems_of(copy))
    with pytest.warns(IndexIgnored, match=re.escape(message)):
        found = copy.search("v", VECTORS[7], 10, columns=["id"])
    assert found == table.search("v", VECTORS[7], 10, exact=True, columns=["id"])


def test_fsck_reads_what_no_search_reads(table: Table, tmp_path: Path) -> None:
    """Distances of links serve the merging of graphs only."""
    copy = damaged_copy(table, tmp_path / "t", "index.idx", zero(2, 2))
    assert any("a repetition index" in each for each in problems_of(copy))


def damaged_copy(table: Table, directory: Path, file_name: str, damage: Damage) -> Table:
    shutil.copytree(table.uri, directory)
    (file,) = directory.glob(f"_indices/*/{file_name}")
    sound = file.read_bytes()
    file.write_bytes(damage(file))
    assert len(sound) == file.stat().st_size
    return Table.open(directory)


def problems_of(table: Table) -> list[str]:
    """Return what fsck reports about indices; nothing of the undamaged table."""
    return [str(finding) for finding in table.fsck("head").findings if "index" in finding.rule]
