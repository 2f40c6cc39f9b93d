"""Growth axes: tables of increasing size, and the operations that are measured on each of them.

An axis builds a table of a given size; a step prepares one call on a copy of it, which is timed. Fragments of the axis
`fragments` have no data files, since its steps read metadata only. Start at `AXES`.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Scale
from lance_core import Table, find_tables
from lance_core.format.schema import TableSchema
from lance_core.operations import Append, DataFile, Delete, Fragment, Overwrite
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import locate
from tests.torture import limits

Call = Callable[[], object]
_ROWS_PER_FILE = 10
_KEYS = 1_000
_ROWS_OF_ONE = pa.table({"c0": pa.array([1], pa.int32())})


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    ours: Callable[[str], Call]
    pylance: Callable[[str], Call] | None = None
    changes_table: bool = True
    """True if each call needs a fresh copy of the table."""


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    sizes: Mapping[Scale, tuple[int, ...]]
    build: Callable[[Path, int], None]
    steps: tuple[Step, ...]
    is_one_table: bool = True
    """False if the directory is not a table but holds tables."""


def copy_table(source: Path, target: Path) -> None:
    """Copy a table. Its files are immutable, so that the copies share them by hard links."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    # References are replaced and not changed, too. A file system limits the number of links to one file.
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _ours(action: Callable[[Table], object]) -> Callable[[str], Call]:
    """Open the table and act on it."""
    return lambda path: lambda: action(Table.open(path, durable=False))


def _pylance(action: Callable[[Any], object]) -> Callable[[str], Call]:
    import lance

    return lambda path: lambda: action(lance.dataset(path))


# columns


def _wide_rows(columns: int, count: int, first: int = 0) -> pa.Table:
    values = np.arange(first, first + count, dtype=np.int32)
    return pa.table({f"c{number}": values + number for number in range(columns)})


def _build_columns(path: Path, columns: int) -> None:
    Table.create(path, _wide_rows(columns, 2 * _ROWS_PER_FILE), durable=False, max_rows_per_file=_ROWS_PER_FILE)


def _append_wide(path: str) -> Call:
    rows = _wide_rows(len(Table.open(path).schema.names), _ROWS_PER_FILE)
    return lambda: Table.open(path, durable=False).append(rows)


def _append_wide_by_pylance(path: str) -> Call:
    import lance

    rows = _wide_rows(len(Table.open(path).schema.names), _ROWS_PER_FILE)
    return lambda: lance.write_dataset(rows, path, mode="append")


def _upsert_wide(path: str) -> Call:
    rows = _wide_rows(len(Table.open(path).schema.names), _ROWS_PER_FILE, first=3 * _ROWS_PER_FILE // 2)
    return lambda: Table.open(path, durable=False).upsert(rows, on="c0")


def _upsert_wide_by_pylance(path: str) -> Call:
    import lance

    rows = _wide_rows(len(Table.open(path).schema.names), _ROWS_PER_FILE, first=3 * _ROWS_PER_FILE // 2)

    def upsert() -> object:
        merge = lance.dataset(path).merge_insert("c0").when_matched_update_all().when_not_matched_insert_all()
        return merge.execute(rows)

    return upsert


# fragments


def _build_fragments(path: Path, count: int) -> None:
    location = locate(path, durable=False)
    schema = TableSchema.from_arrow(_ROWS_OF_ONE.schema)
    first = Overwrite(limits.new_fragments(count - 1, 1), schema)
    limits.commit_operation(location, first, case=limits.Case("growth", count))
    Table.open(path, durable=False).append(_ROWS_OF_ONE)


def _commit_file(path: str) -> Call:
    """Commit a file that another process has written."""
    table = Table.open(path, durable=False)
    (file,) = table.fragments[-1].files
    name = f"{uuid.uuid4().hex}.lance"
    os.link(Path(path, "data", file.path), Path(path, "data", name))
    linked = DataFile.of(
        path=name,
        field_ids=file.field_ids,
        column_indices=file.column_indices,
        version=file.version,
        size=file.size or 0,
    )
    added = Append((Fragment.of(files=[linked], physical_rows=table.fragments[-1].physical_rows),))
    return lambda: table.commit(added)


def _commit_file_by_pylance(path: str) -> Call:
    import lance

    dataset = lance.dataset(path)
    described = dataset.get_fragments()[-1].metadata.to_json()
    described["id"] = 0  # the commit assigns an id
    described["files"][0]["path"] = f"{uuid.uuid4().hex}.lance"
    operation = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(json.dumps(described))])
    return lambda: lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def _delete_fragment(path: str) -> Call:
    table = Table.open(path, durable=False)
    removed = table.fragments[len(table.fragments) // 2].id
    return lambda: table.commit(Delete(updated=(), removed_ids=(removed,), predicate="true"))


def _delete_fragment_by_pylance(path: str) -> Call:
    import lance

    dataset = lance.dataset(path)
    operation = lance.LanceOperation.Delete([], [len(dataset.get_fragments()) // 2], "true")
    return lambda: lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def _append_row_by_pylance(path: str) -> Call:
    import lance

    return lambda: lance.write_dataset(_ROWS_OF_ONE, path, mode="append")


# fragments of one row, versions, tags, segments, tables


def _build_small_fragments(path: Path, count: int) -> None:
    Table.create(path, _keyed_rows(count), durable=False, max_rows_per_file=1)


def _keyed_rows(count: int, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "name": [f"name {number}" for number in ids]})


_STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def _build_versions(path: Path, count: int) -> None:
    """Commit one version a minute."""

    class TableOfThen(Table):
        runtime = SYSTEM_RUNTIME

    def set_clock(version: int) -> None:
        now_ns = int((_STARTED + timedelta(minutes=version)).timestamp()) * 10**9
        TableOfThen.runtime = replace(SYSTEM_RUNTIME, now_ns=lambda: now_ns)

    set_clock(1)
    table = TableOfThen.create(path, _ROWS_OF_ONE, durable=False)
    for version in range(2, count + 1):
        set_clock(version)
        table = table.set_config({"turn": str(version)}).table


def _time_of_middle(path: str) -> datetime:
    versions = Table.open(path).version
    return _STARTED + timedelta(minutes=versions // 2, seconds=30)


def _open_by_time(path: str) -> Call:
    moment = _time_of_middle(path)
    return lambda: Table.open(path).at(timestamp=moment)


def _open_by_time_with_pylance(path: str) -> Call:
    import lance

    moment = _time_of_middle(path).astimezone().replace(tzinfo=None)
    return lambda: lance.dataset(path, asof=moment)


def _build_tags(path: Path, count: int) -> None:
    Table.create(path, _ROWS_OF_ONE, durable=False)
    limits.put_tags(locate(path, durable=False), count)


def _build_segments(path: Path, count: int) -> None:
    table = Table.create(path, _keyed_rows(_KEYS), durable=False).create_index("id", "BTREE").table
    for number in range(1, count):
        table = table.append(_keyed_rows(_KEYS, number * _KEYS)).table
        table = table.optimize_indices(merge="none").table
    assert len(table.indices) == count


def _look_up(table: Table) -> object:
    return table.to_table(filter=f"id = {_KEYS // 2}")


def _build_tables(path: Path, count: int) -> None:
    first = path.with_name(f"{path.name}-first")
    Table.create(first, _ROWS_OF_ONE, durable=False)
    for number in range(count):
        copy_table(first, path / f"d{number // 100:03}" / f"t{number:05}")


_COLUMNS = Axis(
    "columns",
    {
        Scale.SMOKE: (10, 20),
        Scale.DEFAULT: (10, 100, 1_000, 4_000),
        Scale.FULL: (10, 100, 1_000, 4_000, 10_000),
    },
    _build_columns,
    (
        Step("open", _ours(lambda t: t), _pylance(lambda d: d), changes_table=False),
        Step("read all", _ours(lambda t: t.to_table()), _pylance(lambda d: d.to_table()), changes_table=False),
        Step(
            "read one",
            _ours(lambda t: t.to_table(columns=["c1"])),
            _pylance(lambda d: d.to_table(columns=["c1"])),
            changes_table=False,
        ),
        Step("append", _append_wide, _append_wide_by_pylance),
        Step("commit a file", _commit_file, _commit_file_by_pylance),
        Step("compact", _ours(lambda t: t.compact()), _pylance(lambda d: d.optimize.compact_files())),
        Step("upsert", _upsert_wide, _upsert_wide_by_pylance),
    ),
)
_FRAGMENTS = Axis(
    "fragments",
    {
        Scale.SMOKE: (10, 20),
        Scale.DEFAULT: (100, 1_000, 10_000, 50_000),
        Scale.FULL: (100, 1_000, 10_000, 50_000, 200_000, 1_000_000),
    },
    _build_fragments,
    (
        Step("open", _ours(lambda t: t), _pylance(lambda d: d), changes_table=False),
        Step("append", _ours(lambda t: t.append(_ROWS_OF_ONE)), _append_row_by_pylance),
        Step("commit a file", _commit_file, _commit_file_by_pylance),
        Step("delete one fragment", _delete_fragment, _delete_fragment_by_pylance),
        Step("history", _ours(lambda t: t.versions()), _pylance(lambda d: d.versions()), changes_table=False),
    ),
)
_SMALL_FRAGMENTS = Axis(
    "fragments of one row",
    {Scale.SMOKE: (5, 10), Scale.DEFAULT: (100, 1_000, 3_000), Scale.FULL: (100, 1_000, 3_000)},
    _build_small_fragments,
    (
        Step("scan", _ours(lambda t: t.to_table()), _pylance(lambda d: d.to_table()), changes_table=False),
        Step("delete", _ours(lambda t: t.delete("id = 3")), _pylance(lambda d: d.delete("id = 3"))),
    ),
)
_VERSIONS = Axis(
    "versions",
    {Scale.SMOKE: (5, 10), Scale.DEFAULT: (100, 1_000, 5_000), Scale.FULL: (100, 1_000, 5_000, 20_000)},
    _build_versions,
    (
        Step("append", _ours(lambda t: t.append(_ROWS_OF_ONE)), _append_row_by_pylance),
        Step("open by timestamp", _open_by_time, _open_by_time_with_pylance, changes_table=False),
        Step("history", _ours(lambda t: t.versions()), _pylance(lambda d: d.versions()), changes_table=False),
        Step("version numbers", _ours(lambda t: t.version_numbers()), changes_table=False),
    ),
)
_TAGS = Axis(
    "tags",
    {Scale.SMOKE: (5, 10), Scale.DEFAULT: (10, 100, 1_000), Scale.FULL: (10, 100, 1_000, 10_000)},
    _build_tags,
    (
        Step("list", _ours(lambda t: t.tags.list()), _pylance(lambda d: d.tags.list()), changes_table=False),
        Step(
            "open by tag",
            lambda path: lambda: Table.open(path, tag="t1"),
            lambda path: partial(_open_tag_with_pylance, path),
            changes_table=False,
        ),
        Step("create", _ours(lambda t: t.tags.create("new", 1)), _pylance(lambda d: d.tags.create("new", 1))),
    ),
)
_SEGMENTS = Axis(
    "index segments",
    {Scale.SMOKE: (1, 2), Scale.DEFAULT: (1, 16, 64), Scale.FULL: (1, 16, 64, 256)},
    _build_segments,
    (
        Step(
            "lookup", _ours(_look_up), _pylance(lambda d: d.to_table(filter=f"id = {_KEYS // 2}")), changes_table=False
        ),
        Step("append", _ours(lambda t: t.append(_keyed_rows(1))), lambda path: partial(_append_key_by_pylance, path)),
    ),
)
_TABLES = Axis(
    "tables",
    {Scale.SMOKE: (3, 6), Scale.DEFAULT: (10, 100, 1_000), Scale.FULL: (10, 100, 1_000, 10_000)},
    _build_tables,
    (Step("find", lambda path: lambda: find_tables(path), changes_table=False),),
    is_one_table=False,
)
AXES = (_COLUMNS, _FRAGMENTS, _SMALL_FRAGMENTS, _VERSIONS, _TAGS, _SEGMENTS, _TABLES)


def _open_tag_with_pylance(path: str) -> object:
    import lance

    return lance.dataset(path, version="t1")


def _append_key_by_pylance(path: str) -> object:
    import lance

    return lance.write_dataset(_keyed_rows(1), path, mode="append")
