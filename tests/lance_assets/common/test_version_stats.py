"""Version statistics: files and fragments of a manifest, and the small fragments among them."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_assets.common import version_stats
from lance_assets.common.version_stats import VersionStats, fragment_stats
from lance_core import Table

ROWS = pa.table({"id": list(range(1_000))})


@pytest.mark.parametrize(
    ("rows", "size", "small"),
    [
        (1_001, 10**9, [True, True]),
        (1_000, 10**9, [False, True]),
        (10**9, 1, [False, False]),
        (500, 10**9, [False, True]),
    ],
)
def test_small_fragments_have_few_rows_and_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int, small: list[bool]
) -> None:
    monkeypatch.setattr(version_stats, "FULL_FRAGMENT_ROWS", rows)
    monkeypatch.setattr(version_stats, "SMALL_FRAGMENT_BYTES_MAX", size)
    table = Table.create(tmp_path / "t", ROWS).append(ROWS.slice(0, 10)).table
    assert [piece.is_small for piece in fragment_stats(table)] == small
    assert VersionStats.of(table).small_fragments == sum(small)


def test_deleted_rows_do_not_make_a_fragment_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_stats, "FULL_FRAGMENT_ROWS", 1_000)
    (piece,) = fragment_stats(Table.create(tmp_path / "t", ROWS).delete("id > 5").table)
    assert (piece.rows, piece.deleted, piece.is_small) == (6, 994, False)


def test_empty_table(tmp_path: Path) -> None:
    empty = VersionStats.of(Table.create(tmp_path / "t", ROWS.schema))
    assert empty == VersionStats(
        rows=0,
        deleted=0,
        fragments=0,
        small_fragments=0,
        fragments_with_deletions=0,
        files=0,
        bytes=0,
        files_without_size=0,
    )
    assert empty.deleted_share == 0
