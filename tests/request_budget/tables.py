"""Tables whose requests are counted: built on local disk in a moment, and copied into the emulator for each operation.

Their versions are a day old, and their rows are the same in each run.
"""

import enum
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from lance_core import Table
from lance_core.runtime import SYSTEM_RUNTIME, Runtime

VERSIONS, FEW_VERSIONS, MANY_VERSIONS = 100, 10, 1_000
FRAGMENTS, ROWS_PER_FRAGMENT, DIMENSIONS, TASKS = 10, 10_000, 16, 20
_ROWS = FRAGMENTS * ROWS_PER_FRAGMENT
_STARTED = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the first version; each following version is a minute younger."""
_VOCABULARY = 40
TAKEN = [number * ROWS_PER_FRAGMENT + 500 for number in range(FRAGMENTS)]


class TableKind(enum.Enum):
    NONE = "no table"
    VERSIONS = "100 versions, each but the first an append of one fragment of 10 rows"
    FEW_VERSIONS = "10 such versions"
    FRAGMENTS = "10 fragments of 10,000 rows, 5 columns, one version"
    KEYED = "FRAGMENTS with a b-tree"
    VECTORS = "1,000 vectors with IVF_PQ"
    TEXTS = "1,000 texts with INVERTED"
    MANY_VERSIONS = "1,000 such versions"
    INTENTS = "10 versions, each an append with an intent"
    LAKE = "20 tables of one version below a prefix"
    LARGE_LAKE = "1,000 such tables"
    NEW_FILES = "one fragment, and 100 files that no version references yet"
    MANY_NEW_FILES = "one fragment, and 10,000 such files"


NEW_FILES: Mapping[TableKind, int] = {TableKind.NEW_FILES: 100, TableKind.MANY_NEW_FILES: 10_000}
"""Number of unreferenced data files of a table."""
LAKES: Mapping[TableKind, tuple[str, ...]] = {
    kind: tuple(f"table-{number:04}" for number in range(count))
    for kind, count in ((TableKind.LAKE, 20), (TableKind.LARGE_LAKE, 1_000))
}
"""Names of the tables below a prefix."""


def rows(count: int, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + count)
    values = np.random.default_rng(first).random(count)
    return pa.table(
        {
            "id": ids,
            "key": ids * 7919 % 100_003,
            "name": [f"name {number % 500}" for number in ids],
            "value": values,
            "flag": ids % 3 == 0,
        }
    )


UPSERTED = rows(100, _ROWS - 50)
MERGED = pa.table({"id": np.arange(_ROWS), "score": np.arange(_ROWS) / 7})


def time_of(version: int) -> datetime:
    """Return a time between this version and the next."""
    return _STARTED + timedelta(minutes=version) - timedelta(seconds=30)


def build(kind: TableKind, place: Path) -> Mapping[str, Path]:
    """Build the table, and return its directory for each of `ours` and `pylance`."""
    if kind is TableKind.VERSIONS:
        shared = _build_versions(place / "shared", VERSIONS, lambda number: None)
    elif kind is TableKind.FEW_VERSIONS:
        shared = _build_versions(place / "shared", FEW_VERSIONS, lambda number: None)
    elif kind is TableKind.INTENTS:
        shared = _build_versions(place / "shared", FEW_VERSIONS, lambda number: f"load {number}")
    elif kind is TableKind.MANY_VERSIONS:
        shared = _build_versions(place / "shared", MANY_VERSIONS, lambda number: None)
    elif kind in LAKES:
        shared = _build_lake(place / "shared", LAKES[kind])
    elif kind in NEW_FILES:
        shared = _build_with_new_files(place / "shared", NEW_FILES[kind])
    elif kind is TableKind.FRAGMENTS:
        shared = _create(place / "shared", rows(_ROWS))
    else:
        for system in ("ours", "pylance"):
            _BUILDS_WITH_INDEX[kind](system, place / system)
        return {system: place / system for system in ("ours", "pylance")}
    return {"ours": shared, "pylance": shared}


def _build_versions(path: Path, versions: int, intent_of: Callable[[int], str | None]) -> Path:
    """Commit each version at its time, whatever the time is now."""

    class TableOfThen(Table):
        runtime = _runtime_of(_STARTED)

    table = TableOfThen.create(str(path), rows(10), durable=False, intent=intent_of(1))
    for number in range(2, versions + 1):
        TableOfThen.runtime = _runtime_of(_STARTED + timedelta(minutes=number - 1))
        table = table.append(rows(10, number * 10), intent=intent_of(number)).table
    return path


def _runtime_of(moment: datetime) -> Runtime:
    start, steps = int(moment.timestamp() * 1e9), itertools.count()
    return replace(SYSTEM_RUNTIME, now_ns=lambda: start + next(steps) * 1_000)


def _create(path: Path, data: pa.Table) -> Path:
    Table.create(str(path), data, durable=False, max_rows_per_file=ROWS_PER_FRAGMENT)
    return path


def _build_with_new_files(path: Path, count: int) -> Path:
    _create(path, rows(10))
    (first,) = (path / "data").iterdir()
    for number in range(count):
        os.link(first, path / "data" / name_of_new_file(number))
    return path


def _build_lake(path: Path, names: Sequence[str]) -> Path:
    for name in names:
        _create(path / name, rows(10))
    return path


def name_of_new_file(number: int) -> str:
    return f"new-{number:06}.lance"


def _build_keyed(system: str, path: Path) -> None:
    _create(path, rows(_ROWS))
    if system == "ours":
        Table.open(path, durable=False).create_index("key", "BTREE")
    else:
        lance.dataset(path).create_scalar_index("key", "BTREE")


def _build_vectors(system: str, path: Path) -> None:
    numbers = np.random.default_rng(1).normal(size=(1_000, DIMENSIONS)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), DIMENSIONS)
    _create(path, pa.table({"id": np.arange(1_000), "vector": vectors}))
    parameters: Mapping[str, Any] = {"num_partitions": 8, "num_sub_vectors": 4}
    if system == "ours":
        Table.open(path, durable=False).create_index("vector", "IVF_PQ", **parameters)
    else:
        lance.dataset(path).create_index("vector", "IVF_PQ", **parameters)


def _build_texts(system: str, path: Path) -> None:
    words = np.random.default_rng(1).integers(0, _VOCABULARY, (1_000, 8))
    _create(
        path, pa.table({"id": np.arange(1_000), "body": [" ".join(f"word{word}" for word in row) for row in words]})
    )
    if system == "ours":
        Table.open(path, durable=False).create_index("body", "INVERTED", with_position=True)
    else:
        lance.dataset(path).create_scalar_index("body", "INVERTED", with_position=True)


_BUILDS_WITH_INDEX: Mapping[TableKind, Callable[[str, Path], None]] = {
    TableKind.KEYED: _build_keyed,
    TableKind.VECTORS: _build_vectors,
    TableKind.TEXTS: _build_texts,
}
