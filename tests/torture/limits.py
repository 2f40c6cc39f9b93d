"""Limits harness: tables of the largest size that is promised, committed by metadata alone, opened and continued.

Each case is acknowledged, and then opened by a reader with default caps. `make torture ARGS=limits` runs all of them
one after another and reports time and memory of each.
"""

import resource
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pyarrow as pa

from lance_core import Table
from lance_core.commit.loop import CommitResult, commit
from lance_core.format import naming, refs
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.refs import Tag
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import Snapshot, load_latest, load_transaction
from tests.torture.report import Report

VERSION = StorageVersion(2, 1)
ROWS = 1000
TIMELESS_RUNTIME = replace(SYSTEM_RUNTIME, elapsed_ns=lambda: 0, now_ns=lambda: 1_800_000_000 * 10**9)
"""A commit that took long would look for its data files, which do not exist."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    fragments: int
    columns: int = 1
    stable_row_ids: bool = False
    commits: int = 2
    """1 creates the table with all of its fragments."""
    tags: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    cases: Sequence[Case]


PR = Size((
    Case("1,000 columns", fragments=300, columns=1_000),
    Case("stable row ids", fragments=4_000, stable_row_ids=True),
    Case("a first write", fragments=4_000, commits=1),
    Case("tags", fragments=1, tags=50),
))  # fmt: skip
NIGHTLY = Size((
    Case("1,000,000 narrow fragments", fragments=1_000_000),
    Case("1,000,000 narrow fragments with stable row ids", fragments=1_000_000, stable_row_ids=True),
    Case("a first write of 1,000,000 fragments", fragments=1_000_000, commits=1),
    Case("1,000 columns at 9,000 fragments", fragments=9_000, columns=1_000),
    Case("5,000 columns at 9,000 fragments", fragments=9_000, columns=5_000),
    Case("10,000 columns at 1,000 fragments", fragments=1_000, columns=10_000),
    Case("100,000 tags", fragments=1, tags=100_000),
))  # fmt: skip


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures, figures = [], {}
    for case in size.cases:
        with TemporaryDirectory() as directory:
            try:
                figures[case.name] = run_case(case, Path(directory, "table"))
            except Exception as error:  # noqa: BLE001 - every error is a failure of the case
                failures.append(f"{case.name}: {type(error).__name__}: {error}")
    return Report("limits", len(size.cases), time.perf_counter() - started, tuple(failures), figures)


def run_case(case: Case, root: Path) -> str:
    """Create the table of a case, open it, append once more and open it again. Return time and memory of the first
    opening."""
    location = locate(root, durable=False)
    schema = pa.schema([pa.field(f"c{number}", pa.int32()) for number in range(case.columns)])
    parts = _split(case.fragments, case.commits)
    commit_operation(location, Overwrite(new_fragments(parts[0], case.columns), _schema_of(schema)), case=case)
    for count in parts[1:]:
        commit_operation(location, Append(new_fragments(count, case.columns)))
    if case.tags:
        put_tags(location, case.tags)
    opened, seconds = _timed(lambda: load_latest(location))
    header_memory = _peak_megabytes()
    counted, seconds_of_fragments = _timed(opened.manifest.row_count)
    assert counted == case.fragments * ROWS, counted
    assert load_transaction(location, opened.manifest) is not None
    commit_operation(location, Append(new_fragments(1, case.columns)))
    table = Table.open(root)
    assert table.version == case.commits + 1
    assert table.count_rows() == (case.fragments + 1) * ROWS
    if case.tags:
        table.tags.create("one-more")
        assert len(table.tags.list()) == case.tags + 1
    return (
        f"{len(opened.manifest.encode()) / 1e6:.0f} MB, opened in {seconds:.2f} s, fragments parsed in "
        f"{seconds_of_fragments:.2f} s, peak memory so far {header_memory:,} MB and {_peak_megabytes():,} MB"
    )


def new_fragments(count: int, columns: int) -> tuple[Fragment, ...]:
    fields = range(columns)
    size = 4 * ROWS * columns
    return tuple(
        Fragment.of(
            files=[
                DataFile.of(
                    path=naming.data_file_name(uuid.uuid4().bytes),
                    field_ids=fields,
                    column_indices=fields,
                    version=VERSION,
                    size=size,
                )
            ],
            physical_rows=ROWS,
        )
        for _ in range(count)
    )


def commit_operation(location: Location, operation: Operation, *, case: Case | None = None) -> CommitResult:
    """Commit an operation whose files do not exist."""
    base: Snapshot | NewTable
    base = NewTable(VERSION, case.stable_row_ids) if case is not None else load_latest(location)
    version = base.version if isinstance(base, Snapshot) else Version(0)
    ours = Transaction(version, str(uuid.uuid4()), operation)
    return commit(location, ours, base=base, since=version, attempts=1, runtime=TIMELESS_RUNTIME)


def put_tags(location: Location, count: int) -> None:
    content = refs.encode_tag(Tag(branch=None, version=Version(1), manifest_bytes=1))
    for number in range(count):
        location.store.put(refs.tag_path(f"t{number}"), content)


def _schema_of(schema: pa.Schema) -> TableSchema:
    return TableSchema.from_arrow(schema)


def _split(count: int, parts: int) -> list[int]:
    """Return the number of fragments of each commit; the first one takes what is left over."""
    each = count // parts
    return [count - each * (parts - 1), *[each] * (parts - 1)]


def _timed(call: Callable[[], _Result]) -> tuple[_Result, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def _peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
