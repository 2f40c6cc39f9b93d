"""Map columns: workers compute new columns from others with a function, and record the progress of each fragment.

    start     with a `resume_key`: loads the records of an earlier run that are still valid
    run       one task per fragment that is left; its worker writes the file, then the progress record (`progress.py`)
    commit    one version with the whole columns; after a conflict, only new or changed fragments run again

Readers see nothing before it is finished (`001-atomic-column-addition.md`).
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
from lance_core.dml.new_columns import Compute, add_columns, define_new_fields
from lance_core.errors import InvalidInput, StorageError
from lance_core.expressions import with_metadata_columns
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Merge
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.store import Store
from lance_core.table.base import Committed
from lance_core.tasks.columns.column_fill import plan_merge, still_matches, without_filled_file
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot

ProgressCallback = Callable[[int, int], None]
"""Called with the number of finished fragments and the number of all fragments."""
_HEADS_AT_ONCE = 8
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Computation:
    """A function that computes columns, and the columns that it reads and returns."""

    compute: Compute
    read_columns: Sequence[str] | None
    """`None` reads all columns of the version on which the run starts."""
    schema: pa.Schema
    """Schema of the new columns."""

    def validated(self) -> "Computation":
        if not callable(self.compute):
            raise InvalidInput(
                f"fn is a function from a record batch to a batch of new columns, not {type(self.compute)}"
            )
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
    """Add columns that a function computes, as one version. A resume key is committed at most once, as an intent is,
    and serves as the intent if none is given."""
    computation = computation.validated()
    if resume_key is not None:
        progress_module.check_resume_key(resume_key)
        options = options if options.intent is not None else replace(options, intent=f"map_columns {resume_key}")
    run = _MapColumnsRun(computation, resume_key, progress, runner)
    committed = run_change(table, options, "map_columns", run.plan, operation=Merge.name)
    run.finish(table)
    return committed


@dataclass
class _MapColumnsRun:
    """State of one run on the driver, which it keeps across replans."""

    computation: Computation
    resume_key: str | None
    progress: ProgressCallback | None
    runner: Runner
    filled: dict[int, Fragment] = field(default_factory=dict)
    directory: str | None = None
    store: Store | None = None
    """Store of the table; `None` before the run starts."""
    lease: str | None = None
    """Lease on the files of an earlier run."""

    def plan(self, base: Snapshot) -> Merge:
        """Fill the fragments that have no valid file, and return the operation that adds the columns."""
        define_new_fields(base, self.computation.schema)  # reports invalid columns before a task runs
        columns = self._checked_read_columns(base)
        if self.store is None:
            self._start(base)
        fragments = base.manifest.fragments
        self.filled = {
            fragment.id: self.filled[fragment.id]
            for fragment in fragments
            if fragment.id in self.filled
            and still_matches(base, without_filled_file(self.filled[fragment.id]), fragment, columns)
        }
        unfilled = [fragment for fragment in fragments if fragment.id not in self.filled]
        if unfilled:
            task = _ComputeTask(self.computation.compute, columns, self.computation.schema, self.directory)
            with self._reporting_progress(base.location.own_store, [fragment.id for fragment in unfilled]):
                results = run_over_partitions(
                    base, tuple((fragment.encode(),) for fragment in unfilled), task, self.runner
                )
            new = (Fragment.decode(result) for encoded in results.values() for result in encoded)
            self.filled |= {fragment.id: fragment for fragment in new}
        if missing := [fragment.id for fragment in fragments if fragment.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker returned fragment {missing[0]}; run it again")
        return plan_merge(base, self.computation.schema, self.filled)

    def finish(self, table: TableRef) -> None:
        """Delete the progress records and release the lease of a committed run."""
        if self.resume_key is None and self.directory is None:
            return
        store = self.store or table.newest().location.own_store
        if self.resume_key is not None:
            progress_module.remove_records(store, progress_module.directory_of(self.resume_key))
        elif self.directory is not None:
            progress_module.remove_records(store, self.directory)
        if self.lease is not None:
            release(store, self.lease)

    def _checked_read_columns(self, base: Snapshot) -> tuple[str, ...]:
        stored = base.manifest.schema.arrow
        if self.computation.read_columns is None:
            self.computation = replace(self.computation, read_columns=tuple(stored.names))
        assert self.computation.read_columns is not None
        readable = with_metadata_columns(stored).names
        for name in self.computation.read_columns:
            if name not in readable:
                raise InvalidInput(f"{base.location.uri}: {unknown_column_message(name, stored.names)}")
        return tuple(self.computation.read_columns)

    def _start(self, base: Snapshot) -> None:
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
        progress_module.claim(store, self.resume_key, {"schema": columns, **inputs})
        recorded = {
            fragment.id: fragment
            for fragment in progress_module.completed_fragments(store, self.directory)
            if fragment.files
        }
        if recorded:
            paths = tuple(fragment.files[-1].qualified_path for fragment in recorded.values())
            self.lease = acquire(
                store, Lease("resuming map_columns", files=paths), SYSTEM_RUNTIME
            )  # before the existence of the files is checked
        current = {fragment.id: fragment for fragment in base.manifest.fragments}
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            complete = list(pool.map(lambda fragment: _is_file_complete(store, fragment), recorded.values()))
        for fragment, is_complete in zip(recorded.values(), complete, strict=True):
            if (
                is_complete
                and fragment.id in current
                and still_matches(base, without_filled_file(fragment), current[fragment.id], read)
            ):
                self.filled[fragment.id] = fragment
            else:
                progress_module.remove_fragment(store, self.directory, fragment.id)

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

    compute: Compute
    read_columns: tuple[str, ...]
    schema: pa.Schema
    directory: str | None

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        filled = add_columns(
            partition, self.compute, schema=self.schema, read_columns=list(self.read_columns), runtime=SYSTEM_RUNTIME
        ).fragments
        for fragment in filled:
            if self.directory is not None:
                progress_module.record_fragment(partition.location.own_store, self.directory, fragment)
            yield fragment.encode()


def _is_file_complete(store: Store, filled: Fragment) -> bool:
    file = filled.files[-1]
    details = store.head(file.qualified_path)
    return details is not None and details.size == file.size
