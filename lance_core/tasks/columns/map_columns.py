"""Map columns: workers compute new columns from others with a function, and record the progress of each fragment.

    mode      "add" adds columns, "recompute" replaces their values, "fill" replaces nulls
    start     with a `resume_key`: loads the records of an earlier run that are still valid
    run       one task per fragment that is left; its worker writes the file, then the progress record (`progress.py`)
    commit    one version with all columns; after a conflict, only new or changed fragments run again

Readers see nothing before it is finished (`001-atomic-column-addition.md`).
"""

import base64
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Literal, cast

import pyarrow as pa

from lance_core import validation
from lance_core.commit.write_protocol import Planned
from lance_core.coordination import progress as progress_module
from lance_core.dml.column_fill import (
    ColumnTarget,
    FilledFragment,
    keep_valid,
    plan_fill,
    read_field_ids,
    resolve_target,
)
from lance_core.dml.column_sources import with_column_sources, with_condition
from lance_core.dml.column_values import FunctionValues
from lance_core.dml.new_columns import Compute, add_columns
from lance_core.dml.replaced_columns import fill_fragment, null_rows, parse_condition
from lance_core.dml.row_matching import find_matching_rows
from lance_core.errors import Corrupt, InvalidInput, StorageError
from lance_core.expressions import Predicate
from lance_core.expressions.arrow_filters import Condition, to_sql
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Merge, Update
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.column_resolution import filterable_schema
from lance_core.storage.store import Store
from lance_core.table.base import Committed
from lance_core.tasks.columns.resumed_fill import FileLease, load_existing, record_filled, releasing_lease
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.tasks.scan.pushed_selection import PushedSelection, fragments_to_scan
from lance_core.versions.snapshot import Snapshot

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished fragments and the number of all fragments."""
CODE_VERSION = "lance_assets.code_version"
"""Property of the transaction with the version of the function."""
_POLL_SECONDS = 1.0


Mode = Literal["add", "fill", "recompute"]
_MODES = ("add", "fill", "recompute")


@dataclass(frozen=True, slots=True)
class Computation:
    """A function that computes columns, the columns that it reads and returns, and the rows that it computes."""

    compute: Compute
    read_columns: Sequence[str] | None
    """`None` reads all columns of the version on which the run starts."""
    schema: pa.Schema
    """Schema of the computed columns."""
    mode: Mode = "add"
    """Treatment of columns that exist: refuse them, compute the rows in which they are null, or compute all rows."""
    where: Condition | None = None
    """Condition of the rows that are computed; `None` means all."""
    code_version: str | None = None
    """Version of the function, which a resumed run must not change."""

    def validated(self) -> "Computation":
        if not callable(self.compute):
            raise InvalidInput(
                f"fn is a function from a record batch to a batch of new columns, not {type(self.compute)}"
            )
        if self.mode not in _MODES:
            raise InvalidInput(f"mode={self.mode!r}: it must be one of {', '.join(map(repr, _MODES))}")
        if self.code_version is not None:
            validation.check_text(self.code_version, "code_version")
        read = None if self.read_columns is None else validation.check_names(self.read_columns, "read_columns")
        return replace(self, read_columns=read, schema=validation.check_schema(self.schema, "schema"))

    @property
    def adds_whole_columns(self) -> bool:
        return self.mode == "add" and self.where is None

    def options(self) -> dict[str, str]:
        """Return what is not the default, as the progress records of a job name it."""
        options = {"mode": "" if self.mode == "add" else self.mode, "code_version": self.code_version or ""}
        options["where"] = "" if self.where is None else str(self.where)
        return {name: value for name, value in options.items() if value}


def map_columns(
    table: TableRef,
    computation: Computation,
    *,
    resume_key: str | None,
    progress: ProgressCallback | None,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """Add columns that a function computes, or replace their values, as one version. A resume key is committed at most
    once, as an intent is, and serves as the intent if none is given."""
    computation = computation.validated()
    if computation.code_version is not None:
        properties = {**(options.properties or {}), CODE_VERSION: computation.code_version}
        options = replace(options, properties=properties)
    if resume_key is not None:
        progress_module.check_resume_key(resume_key)
        options = options if options.intent is not None else replace(options, intent=f"map_columns {resume_key}")
    run = _MapColumnsRun(computation, resume_key, progress, runner)
    operation = Merge if computation.mode == "add" else Update
    with releasing_lease(run):
        committed = run_change(table, options, "map_columns", run.plan, operation=operation.name)
        run.finish(table)
    return committed


def columns_of_condition(table: TableRef, where: str | None) -> tuple[str, ...]:
    """Return the columns of the condition `where`, which decides which rows get a value."""
    predicate = None if where is None else parse_condition(table.newest(), where)
    return () if predicate is None else tuple(sorted(predicate.columns))


@dataclass
class _MapColumnsRun:
    """State of one run on the driver, which it keeps across replans."""

    computation: Computation
    resume_key: str | None
    progress: ProgressCallback | None
    runner: Runner
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    directory: str | None = None
    store: Store | None = None
    """Store of the table; `None` before the run starts."""
    lease: FileLease | None = None
    """Lease on the files of an earlier run."""
    read_ids: tuple[int, ...] | None = None
    """Ids of the fields that the last plan read."""
    declared_reads: Sequence[str] | None = None
    """Columns that the caller named for the function; `None` if it gets all of them."""

    def __post_init__(self) -> None:
        self.declared_reads = self.computation.read_columns

    def plan(self, base: Snapshot) -> Planned | None:
        """Fill the fragments that have no valid file, and return the operation that puts the columns into effect."""
        target = self._resolve(base)  # reports invalid columns before a task runs
        columns = self._checked_read_columns(base)
        where = self._condition(base)
        predicate = parse_condition(base, where)
        reads = {*columns, *(predicate.columns if predicate is not None else ())}
        if self.store is None:
            self._start(base, target, reads)
        fragments, ids = base.manifest.fragments, read_field_ids(base, reads)
        self.filled = keep_valid(base, self.filled, target, reads) if self.read_ids in (None, ids) else {}
        self.read_ids = ids
        selection = self._skip_fragments_without_match(base, target, predicate)
        unfilled = [fragment for fragment in fragments if fragment.id not in self.filled]
        if unfilled:
            computation = replace(self.computation, where=where)
            task = _ComputeTask(computation, columns, self.directory, selection, frozenset(reads))
            with self._reporting_progress(base.location.own_store, [fragment.id for fragment in unfilled]):
                results = run_over_partitions(
                    base, tuple((fragment.encode(),) for fragment in unfilled), task, self.runner
                )
            new = (FilledFragment.decode(result) for encoded in results.values() for result in encoded)
            self.filled |= {each.fragment.id: each for each in new}
        if missing := [fragment.id for fragment in fragments if fragment.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker returned fragment {missing[0]}; run it again")
        values = FunctionValues(self.computation.compute, self.computation.schema, self.declared_reads)
        sources = with_condition(values.sources(base, self.computation.schema.names), predicate)
        return with_column_sources(base, plan_fill(base, target, self.filled), sources)

    def _resolve(self, base: Snapshot) -> ColumnTarget:
        return _resolve_columns(base, self.computation)

    def _condition(self, base: Snapshot) -> str | None:
        where = self.computation.where
        return None if where is None else to_sql(where, filterable_schema(base.manifest), "where")

    def _skip_fragments_without_match(
        self, base: Snapshot, target: ColumnTarget, predicate: Predicate | None
    ) -> PushedSelection:
        """Mark fragments that hold no matching row, as the indices know, as done. Return what they know of the rest."""
        if predicate is None:
            return PushedSelection()
        candidates, selection = fragments_to_scan(base, predicate)
        ids = {fragment.id for fragment in candidates}
        for fragment in base.manifest.fragments:
            if fragment.id not in ids:
                self.filled.setdefault(fragment.id, FilledFragment.unchanged(fragment, target))
        return selection

    def finish(self, table: TableRef) -> None:
        """Delete the progress records of a committed run."""
        if self.resume_key is None and self.directory is None:
            return
        store = self.store or table.newest().location.own_store
        if self.resume_key is not None:
            progress_module.remove_records(store, progress_module.directory_of(self.resume_key))
        elif self.directory is not None:
            progress_module.remove_records(store, self.directory)

    def _checked_read_columns(self, base: Snapshot) -> tuple[str, ...]:
        values = FunctionValues(self.computation.compute, self.computation.schema, self.computation.read_columns)
        columns = tuple(values.reads(base))
        self.computation = replace(self.computation, read_columns=columns)
        return columns

    def _start(self, base: Snapshot, target: ColumnTarget, reads: Collection[str]) -> None:
        """Claim the resume key, and load the fragments that an earlier run has filled."""
        store, computation = base.location.own_store, self.computation
        self.store = store
        if self.resume_key is None:
            # The progress callback counts progress records, too.
            self.directory = None if self.progress is None else progress_module.directory_of(str(uuid.uuid4()))
            return
        self.directory = progress_module.directory_of(self.resume_key)
        columns = base64.b64encode(computation.schema.serialize()).decode()
        read = computation.read_columns or ()
        inputs = {"read_columns": ", ".join(read), "storage_version": str(base.manifest.storage_version)}
        ids = read_field_ids(base, reads)
        progress_module.claim(store, self.resume_key, {"schema": columns, **inputs, **computation.options()})
        recorded: dict[int, FilledFragment] = {
            each.fragment.id: each
            for fragment in progress_module.completed_fragments(store, self.directory)
            if (each := self._recorded(store, self.directory, fragment, ids)) is not None
        }
        existing, self.lease = load_existing(store, self.directory, recorded, job="map_columns")
        self.filled = keep_valid(base, existing, target, reads)
        for number in existing.keys() - self.filled.keys():
            progress_module.remove_fragment(store, self.directory, number)

    def _recorded(self, store: Store, directory: str, fragment: Fragment, ids: Sequence[int]) -> FilledFragment | None:
        """Return what a record says of a fragment; `None` if it says too little, or was made from other fields than
        those with these ids."""
        details = progress_module.recorded_details(store, directory, fragment.id)
        if details is None:  # a record of a release before 0.2.0
            files = fragment.files if self.computation.adds_whole_columns else ()
            return FilledFragment(fragment.with_files(files[:-1]), files[-1]) if files else None
        with suppress(pa.ArrowException, Corrupt, ValueError):
            recorded_ids, _, filled = details.partition(b"\n")
            return FilledFragment.decode(filled) if json.loads(recorded_ids) == list(ids) else None
        return None

    @contextmanager
    def _reporting_progress(self, store: Store, fragment_ids: list[int]) -> Iterator[None]:
        """Count the progress records while the tasks run, and report them."""
        progress, directory = self.progress, self.directory
        if progress is None or directory is None:
            yield
            return
        done_before, finished, pending = len(self.filled), Event(), set(fragment_ids)

        def poll() -> None:
            reported = done_before
            progress(reported, done_before + len(fragment_ids))
            while not finished.wait(_POLL_SECONDS):
                with suppress(StorageError):
                    done = done_before + len(progress_module.completed_ids(store, directory) & pending)
                    if done > reported:
                        progress(done, done_before + len(fragment_ids))
                        reported = done

        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(poll)
            try:
                yield
            finally:
                finished.set()
            polling.result()
        progress(done_before + len(fragment_ids), done_before + len(fragment_ids))


@dataclass(frozen=True, slots=True)
class _ComputeTask:
    """Computes the columns of one partition and records each fragment when its file is complete."""

    computation: Computation
    read_columns: tuple[str, ...]
    directory: str | None
    selection: PushedSelection
    reads: frozenset[str]
    """Columns from which the values are computed, and those of the condition."""

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        store = partition.location.own_store
        for filled in self._fill(partition):
            encoded = filled.encode()
            if self.directory is not None:
                ids = json.dumps(read_field_ids(partition, self.reads)).encode()
                record_filled(store, self.directory, filled, ids + b"\n" + encoded)
            yield encoded

    def _fill(self, partition: Snapshot) -> Iterator[FilledFragment]:
        computation = self.computation
        if computation.adds_whole_columns:
            added = add_columns(
                partition,
                computation.compute,
                schema=computation.schema,
                read_columns=list(self.read_columns),
                runtime=SYSTEM_RUNTIME,
            )
            for before, after in zip(partition.manifest.fragments, added.fragments, strict=True):
                yield FilledFragment(before, after.files[-1])
            return
        target = _resolve_columns(partition, computation)
        values = FunctionValues(computation.compute, computation.schema, self.read_columns)
        predicate = parse_condition(partition, cast("str | None", computation.where))
        only_nulls = computation.mode == "fill"
        selection = self.selection.selection_for(partition)
        matches = {each.id: offsets for each, offsets in find_matching_rows(partition, predicate, selection)}
        for fragment in partition.manifest.fragments:
            offsets = matches.get(fragment.id)
            if offsets is not None and only_nulls:
                offsets = null_rows(partition, fragment, target, offsets)
            if offsets is None or not len(offsets):
                yield FilledFragment.unchanged(fragment, target)
                continue
            yield fill_fragment(
                partition,
                fragment,
                target,
                values.compute(partition, fragment, offsets),
                runtime=SYSTEM_RUNTIME,
                is_complete=predicate is None and not only_nulls,
                only_nulls=only_nulls,
            )


def _resolve_columns(base: Snapshot, computation: Computation) -> ColumnTarget:
    """Return the target of a computation. New columns are null in rows that are not computed."""
    schema, existing = computation.schema, base.manifest.schema.arrow.names
    if computation.where is not None:
        schema = pa.schema([each if each.name in existing else each.with_nullable(True) for each in schema])
    return resolve_target(base, schema, replace=computation.mode != "add")
