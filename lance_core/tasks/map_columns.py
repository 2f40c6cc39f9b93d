"""Columns that a function computes from others, by workers: fragment by fragment, each noted when it is done.

    begin     under a `resume_key`: what an earlier run has noted, as far as it still fits
    run       a task for each fragment that is left; its worker writes the file, then the record (`progress.py`)
    commit    one version with the whole columns; where others were in the way, only what is new to them is run again

Nothing of it is seen before it is finished (`001-atomic-column-addition.md`).
"""

import base64
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event

import pyarrow as pa

from lance_core import validation
from lance_core.coordination import progress as progress_module
from lance_core.coordination.leases import Lease, acquire, release
from lance_core.dml.new_columns import Compute, add_columns, new_fields
from lance_core.errors import InvalidInput, StorageError
from lance_core.expressions import with_metadata_columns
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Merge
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.store import Store
from lance_core.table.committed import Committed
from lance_core.tasks.column_fill import plan_merge, still_matches, without_filled_file
from lance_core.tasks.driver import TableRef, WriteOptions, over_partitions, run_change
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot

ProgressCallback = Callable[[int, int], None]
"""Is told how many fragments are done, and of how many."""
_HEADS_AT_ONCE = 8
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Computation:
    """What is to be computed."""

    compute: Compute
    read_columns: Sequence[str] | None
    """None: all of the version on which it begins."""
    schema: pa.Schema
    """Of the new columns."""

    def validated(self) -> "Computation":
        if not callable(self.compute):
            raise InvalidInput(f"fn is a function from a record batch to one of new columns, not {type(self.compute)}")
        read = None if self.read_columns is None else validation.check_names(self.read_columns, "read_columns")
        return Computation(self.compute, read, validation.check_schema(self.schema, "schema"))


def map_columns(
    table: TableRef,
    computation: Computation,
    *,
    resume_key: str | None,
    progress: ProgressCallback | None,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """A resume key lands once, like an intent, and is one if none is given."""
    computation = computation.validated()
    if resume_key is not None:
        progress_module.check_key(resume_key)
        options = options if options.intent is not None else replace(options, intent=f"map_columns {resume_key}")
    run = _Run(computation, resume_key, progress, runner)
    committed = run_change(table, options, "map_columns", run.plan, operation=Merge.name)
    run.finish(table)
    return committed


@dataclass
class _Run:
    """What is known while it is planned, and planned again."""

    computation: Computation
    resume_key: str | None
    progress: ProgressCallback | None
    runner: Runner
    filled: dict[int, Fragment] = field(default_factory=dict)
    directory: str | None = None
    store: Store | None = None
    """Of the table; None before it begins."""
    holds: str | None = None

    def plan(self, base: Snapshot) -> Merge:
        new_fields(base, self.computation.schema)  # what is wrong with them is told before a task runs
        columns = self._columns(base)
        if self.store is None:
            self._begin(base)
        fragments = base.manifest.fragments
        self.filled = {
            each.id: self.filled[each.id]
            for each in fragments
            if each.id in self.filled and still_matches(base, without_filled_file(self.filled[each.id]), each, columns)
        }
        left = [each for each in fragments if each.id not in self.filled]
        if left:
            task = _ComputeTask(self.computation.compute, columns, self.computation.schema, self.directory)
            with self._watched(base.location.own_store, [each.id for each in left]):
                results = over_partitions(base, tuple((each.encode(),) for each in left), task, self.runner)
            done = (Fragment.decode(result) for each in results.values() for result in each)
            self.filled |= {each.id: each for each in done}
        if missing := [each.id for each in fragments if each.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker answered for fragment {missing[0]}")
        return plan_merge(base, self.computation.schema, self.filled)

    def finish(self, where: TableRef) -> None:
        if self.resume_key is None and self.directory is None:
            return
        store = self.store or where.newest().location.own_store
        if self.resume_key is not None:
            progress_module.sweep(store, progress_module.directory_of(self.resume_key))
        elif self.directory is not None:
            progress_module.sweep(store, self.directory)
        if self.holds is not None:
            release(store, self.holds)

    def _columns(self, base: Snapshot) -> tuple[str, ...]:
        stored = base.manifest.schema.arrow
        if self.computation.read_columns is None:
            self.computation = replace(self.computation, read_columns=tuple(stored.names))
        assert self.computation.read_columns is not None
        readable = with_metadata_columns(stored).names
        for name in self.computation.read_columns:
            if name not in readable:
                raise InvalidInput(f"{base.location.uri}: {unknown_column_message(name, stored.names)}")
        return tuple(self.computation.read_columns)

    def _begin(self, base: Snapshot) -> None:
        store, computation = base.location.own_store, self.computation
        self.store = store
        if self.resume_key is None:
            # Who waits is told by the records too.
            self.directory = None if self.progress is None else progress_module.directory_of(str(uuid.uuid4()))
            return
        self.directory = progress_module.directory_of(self.resume_key)
        columns = base64.b64encode(computation.schema.serialize()).decode()
        read = computation.read_columns or ()
        told = {"read_columns": ", ".join(read), "storage_version": str(base.manifest.storage_version)}
        progress_module.claim(store, self.resume_key, {"schema": columns, **told})
        noted = {each.id: each for each in progress_module.completed_fragments(store, self.directory) if each.files}
        if noted:
            paths = tuple(each.files[-1].qualified_path for each in noted.values())
            self.holds = acquire(
                store, Lease("going on with new columns", files=paths), SYSTEM_RUNTIME
            )  # before it is looked for
        there = {each.id: each for each in base.manifest.fragments}
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            whole = list(pool.map(lambda each: _is_whole(store, each), noted.values()))
        for each, is_whole in zip(noted.values(), whole, strict=True):
            if is_whole and each.id in there and still_matches(base, without_filled_file(each), there[each.id], read):
                self.filled[each.id] = each
            else:
                progress_module.forget(store, self.directory, each.id)

    @contextmanager
    def _watched(self, store: Store, left: list[int]) -> Iterator[None]:
        """While the tasks run, their records are counted."""
        progress, directory = self.progress, self.directory
        if progress is None or directory is None:
            yield
            return
        done, over, wanted = len(self.filled), Event(), set(left)

        def watch() -> None:
            told = done
            progress(told, done + len(left))
            while not over.wait(_LOOK_SECONDS):
                with suppress(StorageError):
                    found = done + len(progress_module.completed_ids(store, directory) & wanted)
                    if found > told:
                        progress(found, done + len(left))
                        told = found

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            try:
                yield
            finally:
                over.set()
            watching.result()
        progress(done + len(left), done + len(left))


@dataclass(frozen=True, slots=True)
class _ComputeTask:
    compute: Compute
    read_columns: tuple[str, ...]
    schema: pa.Schema
    directory: str | None

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        filled = add_columns(
            part, self.compute, schema=self.schema, read_columns=list(self.read_columns), runtime=SYSTEM_RUNTIME
        ).fragments
        for each in filled:
            if self.directory is not None:
                progress_module.record_fragment(part.location.own_store, self.directory, each)
            yield each.encode()


def _is_whole(store: Store, filled: Fragment) -> bool:
    file = filled.files[-1]
    found = store.head(file.qualified_path)
    return found is not None and found.size == file.size
