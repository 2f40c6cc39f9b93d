"""Distributed upsert: workers stage the source rows, then read, join and rewrite the table.

    workers   write the source rows to files of their own (`staged.py`)
    workers   join each partition of the table with the source, write what changes, and report the matched source rows
              (the driver does it if the indices leave few rows of the table to read)
    workers   write the source rows that matched nothing as new rows
              (the driver does it if they are few, since a job takes longer)
    driver    merges the results into one operation

No row of the table goes anywhere but to the worker that reads it; see `001-broadcast-upsert-source.md`. If the source
has only some of the columns, matched rows may stay in place, with those columns rewritten. The driver decides which
way is cheaper, from the counts of a first pass.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap, BitMap64

from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.column_sources import with_given_columns
from lance_core.dml.deletion_files import encode_offsets
from lance_core.dml.row_rewrite import field_ids_of, is_column_rewrite_cheaper, move_rows, rewrite_columns, write_rows
from lance_core.dml.upsert import (
    can_stay_in_place,
    changed_columns,
    changes_nothing,
    check_source_columns,
    encode_new_keys,
    existing_keys_error,
    given_columns,
    merge_new_keys,
    row_rewrite_of,
    with_commit_hints,
)
from lance_core.dml.upsert_join import (
    Conditions,
    JoinCache,
    Matched,
    UpsertRules,
    find_candidates,
    join,
    parse_delete_if,
)
from lance_core.errors import InvalidInput
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Update, UpdateMode
from lance_core.format.row_sets import bitmap64_of
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.plan import ScanTask
from lance_core.scan.selection import Selection
from lance_core.table.base import Committed
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, Runner
from lance_core.tasks.rows.staged import StagedFiles, StagedRows, cached_staged_rows, evict_staged_rows, plan_staging
from lance_core.tasks.rows.update import partitions_for_writing
from lance_core.tasks.rows.write import StageFunction, WriteTask, collect_fragments
from lance_core.tasks.scan.pushed_selection import PushedSelection
from lance_core.versions.snapshot import Snapshot

_CHANGE_COUNTS = struct.Struct("<QQ?")
DRIVER_ROWS_MAX = 1 << 14
"""Rows of the table up to which the driver itself joins. Reading and writing this much takes less time than starting a
job, and any driver has the memory for it, however well the files are compressed."""
DRIVER_BYTES_MAX = 1 << 24
"""Bytes of the data files up to which the driver itself joins."""


def upsert(
    table: TableRef,
    incoming: pa.Schema,
    stage: StageFunction,
    rules: UpsertRules,
    *,
    limits: FileLimits,
    options: WriteOptions,
    runner: Runner,
) -> Committed:
    """Update matching rows and insert the others, as one version. `incoming` is the schema in which a new table would
    store the source rows."""
    run = UpsertRun(incoming, stage, rules, limits, runner)
    try:
        return run_change(table, options, "upsert", run.plan_with_sources, operation=Update.name)
    finally:
        run.discard()


class UpsertRun:
    """One upsert on the driver. It keeps its results across replans."""

    def __init__(
        self, incoming: pa.Schema, stage: StageFunction, rules: UpsertRules, limits: FileLimits, runner: Runner
    ) -> None:
        self._incoming, self._stage, self._rules, self._limits, self._runner = incoming, stage, rules, limits, runner
        self._staged: tuple[Snapshot, StagedFiles] | None = None
        self._counted, self._joined, self._inserted = PartialResults(), PartialResults(), PartialResults()

    def plan(self, base: Snapshot) -> Update | None:
        """Join and write what the version needs, and return the operation; `None` if the rules change nothing."""
        rules, schema = self._rules, base.manifest.schema
        what, incoming = base.location.uri, schema_to_stored(self._incoming, schema)
        source_schema = check_source_columns(incoming, schema, rules, Conversion.CAST, what)
        Conditions.of(base, source_schema.arrow, rules)  # reports invalid conditions before a task runs
        if changes_nothing(rules):
            return None
        staged = self._stage_once(base, source_schema)
        probe = self._plan_probe(base, staged)
        in_place = self._is_cheaper_in_place(base, staged, probe)
        matched, updates = self._join(base, staged, probe, in_place)
        template = Update(fields_assigned=field_ids_of(schema.fields))
        if in_place:
            changes = map(schema.field, changed_columns(source_schema.arrow, schema, rules))
            template = Update(fields_modified=field_ids_of(changes), mode=UpdateMode.REWRITE_COLUMNS)
        update = with_commit_hints(
            operation_merge.merge_updates(updates, template), StagedRows(base, staged), rules, schema
        )
        if not rules.insert:
            return update
        inserted = self._insert(base, staged, matched)
        filters = [insert.inserted_keys for insert in inserted if insert.inserted_keys is not None]
        new = tuple(fragment for insert in inserted for fragment in insert.new)
        return replace(update, new=update.new + new, inserted_keys=merge_new_keys(filters, rules, schema))

    def plan_with_sources(self, base: Snapshot) -> Planned | None:
        """Plan the upsert, and record the source rows as the source of the columns with the same names."""
        return with_given_columns(base, self.plan(base), given_columns(self._incoming, self._rules))

    def discard(self) -> None:
        """Delete the staged files."""
        if self._staged is not None:
            base, staged = self._staged
            staged.delete_files(base.location)
            evict_staged_rows(staged)

    def _stage_once(self, base: Snapshot, source_schema: TableSchema) -> StagedFiles:
        """Stage the source rows on the first call, and check that the columns are still the same on later ones."""
        if self._staged is None:
            task = WriteTask(plan_staging(base, source_schema))
            staged = StagedFiles.of(collect_fragments(self._stage(task)), source_schema, self._rules.on)
            self._staged = base, staged
            chunk_count = len(staged.chunks())
            if chunk_count > 1 or not base.manifest.fragments:  # otherwise each join task checks that keys are unique
                run_over_partitions(base, ((),) * chunk_count, _CheckUniqueTask(staged, chunk_count), self._runner)
        _, staged = self._staged
        if staged.schema != source_schema:
            raise InvalidInput(
                f"{base.location.uri}: another writer changed the columns {', '.join(staged.column_names)} while the "
                "source rows of this upsert were staged. No version was committed; run it again"
            )
        return staged

    def _plan_probe(self, base: Snapshot, staged: StagedFiles) -> "_Probe":
        """Plan which fragments to join, by what indices know of the keys. If they leave few rows of the whole table,
        the driver joins them itself."""
        rules, fragments = self._rules, base.manifest.fragments
        known = Selection()
        if staged.fits_in_memory:
            source = cached_staged_rows(base, staged)
            known = find_candidates(base, source, rules)
            if known.covered:
                source.check_unique(0, 1)  # otherwise each join task checks it
        candidates = known.fragments
        tasks = [
            ScanTask(fragment, selection=candidates.get(fragment.id))
            for fragment in fragments
            if _may_match(fragment, known)
        ]
        runner = LocalRunner() if known.covered and _is_small(base, tasks) else self._runner
        return _Probe([task.fragment for task in tasks], PushedSelection.of(tasks), runner)

    def _is_cheaper_in_place(self, base: Snapshot, staged: StagedFiles, probe: "_Probe") -> bool:
        """Return whether to rewrite columns in place, by the counts of a first pass. A source with all columns is
        written as whole rows."""
        rules, schema = self._rules, base.manifest.schema
        columns = changed_columns(staged.schema.arrow, schema, rules)
        if not columns or rules.matched is not Matched.UPDATE or not can_stay_in_place(staged.schema.arrow, schema):
            return False
        results = probe.run(base, staged, _JoinTask(staged, rules, self._limits, None, probe.selection), self._counted)
        counts = [_CHANGE_COUNTS.unpack(encoded[1]) for encoded in results.values()]
        if any(removes_rows for _, _, removes_rows in counts):
            return False
        rows, changed_rows = sum(count[0] for count in counts), sum(count[1] for count in counts)
        return is_column_rewrite_cheaper(base, columns, rows=rows, changed=changed_rows)

    def _join(
        self, base: Snapshot, staged: StagedFiles, probe: "_Probe", in_place: bool
    ) -> tuple[BitMap64, list[Update]]:
        """Join the table with the source. Return the numbers of the matched source rows, and the updates of the
        partitions."""
        rules = self._rules
        results = probe.run(
            base, staged, _JoinTask(staged, rules, self._limits, in_place, probe.selection), self._joined
        )
        matched, updates = BitMap64(), []
        for _, encoded in sorted(results.items()):
            matched |= BitMap64.deserialize(encoded[0])
            updates += [
                operation
                for operation in map(operation_merge.decode_operation, encoded[1:])
                if isinstance(operation, Update)
            ]
        if rules.matched is Matched.FAIL and matched:
            keys = StagedRows(base, staged).describe_keys(np.frombuffer(matched.to_array(), dtype=np.int64))
            raise existing_keys_error(len(matched), keys, what=base.location.uri)
        return matched, updates

    def _insert(self, base: Snapshot, staged: StagedFiles, matched: BitMap64) -> list[Update]:
        """Write the source rows that matched nothing."""
        matched_rows = np.frombuffer(matched.to_array(), dtype=np.int64)
        first, matched_offsets, fragments, row_count = 0, [], [], 0
        for fragment in staged.decode_fragments():
            rows = fragment.physical_rows
            start, stop = np.searchsorted(matched_rows, (first, first + rows))
            matched_offsets.append(encode_offsets(matched_rows[start:stop] - first))
            if stop - start < rows:
                fragments.append(fragment)
                row_count += rows - int(stop - start)
            first += rows
        task = _InsertTask(staged, tuple(matched_offsets), self._rules, self._limits)
        runner = LocalRunner() if staged.fits_in_memory else self._runner
        results = self._inserted.over_fragments(
            base, fragments, partitions_for_writing(row_count, runner), task, runner
        )
        return [operation for operation in operation_merge.decode_operations(results) if isinstance(operation, Update)]


@dataclass(frozen=True, slots=True)
class _Probe:
    """Fragments of a version that may have a row for the source, and the runner that joins them."""

    fragments: Sequence[Fragment]
    selection: PushedSelection
    runner: Runner

    def run(
        self, base: Snapshot, staged: StagedFiles, task: "_JoinTask", cache: PartialResults
    ) -> Mapping[int, list[bytes]]:
        rows = sum(fragment.physical_rows for fragment in staged.decode_fragments())
        return cache.over_fragments(base, self.fragments, partitions_for_writing(rows, self.runner), task, self.runner)


def _is_small(base: Snapshot, tasks: Sequence[ScanTask]) -> bool:
    """Return whether the driver can join the tasks itself. Candidate rows of an index count, and all rows of fragments
    without one."""
    rows = [task.fragment.physical_rows if task.selection is None else len(task.selection.rows) for task in tasks]
    fragments = [task.fragment for task in tasks]
    size = sum(
        fragment.file_bytes * row_count // max(1, fragment.physical_rows)
        for fragment, row_count in zip(fragments, rows, strict=True)
    )
    is_size_known = all(file.size for fragment in fragments for file in fragment.files) and not any(
        map(is_blob, base.manifest.schema.fields)
    )
    return is_size_known and sum(rows) <= DRIVER_ROWS_MAX and size <= DRIVER_BYTES_MAX


def _may_match(fragment: Fragment, selection: Selection) -> bool:
    return fragment.id not in selection.covered or fragment.id in selection.fragments


@dataclass(frozen=True, slots=True)
class _CheckUniqueTask:
    """Checks the keys of one hash bucket for duplicates."""

    staged: StagedFiles
    bucket_count: int

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        StagedRows(partition, self.staged).check_unique(number, self.bucket_count)
        return iter(())


@dataclass(frozen=True, slots=True)
class _JoinTask:
    """Joins one partition. Returns the matched source rows, then the operation; or counts, as long as `in_place` is
    undecided."""

    staged: StagedFiles
    rules: UpsertRules
    limits: FileLimits
    in_place: bool | None
    selection: PushedSelection = field(compare=False)
    """Excluded from comparison, since the result of a fragment does not depend on it: results stay valid if it
    changes."""

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        rules = self.rules
        source = cached_staged_rows(partition, self.staged)
        result = join(partition, source, rules, JoinCache(), self.selection.selection_for(partition))
        yield bytes(bitmap64_of(np.flatnonzero(result.has_match).astype(np.uint64)).serialize())
        changes = row_rewrite_of(partition, source, result, rules)
        if self.in_place is None:
            rows = sum(change.fragment.physical_rows for change in changes.changes)
            yield _CHANGE_COUNTS.pack(
                rows, sum(len(change.offsets) for change in changes.changes), bool(result.removed)
            )
        elif rules.matched is Matched.FAIL and result.has_match.any():
            return  # the driver raises the error
        elif self.in_place and changes.changes:
            yield operation_merge.encode_operation(
                rewrite_columns(changes, (), limits=self.limits, runtime=SYSTEM_RUNTIME)
            )
        elif changes.changes or result.removed:
            assigned: Sequence[int] = field_ids_of(partition.manifest.schema.fields)
            moved = move_rows(
                changes, result.removed, (), assigned=assigned, limits=self.limits, runtime=SYSTEM_RUNTIME
            )
            yield operation_merge.encode_operation(moved)


@dataclass(frozen=True, slots=True)
class _InsertTask:
    """Writes new rows. Its partition consists of staged fragments."""

    staged: StagedFiles
    matched: tuple[bytes, ...]
    """Offsets of the matched rows of each staged fragment, which are not new."""
    rules: UpsertRules
    limits: FileLimits

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        on, schema = list(self.rules.on), partition.manifest.schema
        reader = StagedRows(partition, self.staged).open_reader(self.staged.column_names)
        keys: list[pa.RecordBatch] = []
        condition = parse_delete_if(self.rules, self.staged.schema.arrow)

        def new_rows() -> Iterator[pa.RecordBatch]:
            for fragment in partition.manifest.fragments:
                matched = DeletionVector(np.array(BitMap.deserialize(self.matched[fragment.id]), dtype=np.uint32))
                for rows in reader.read_live(fragment, matched):
                    batch = rows.batch
                    if condition is not None:
                        batch = batch.filter(pc.invert(condition.mask(batch)))
                    if batch.num_rows:
                        keys.append(batch.select(on))
                        yield batch

        new = write_rows(partition, new_rows(), limits=self.limits, runtime=SYSTEM_RUNTIME)
        if new:
            key_filter = encode_new_keys(pa.Table.from_batches(keys), self.rules, schema)
            yield operation_merge.encode_operation(Update(new=new, inserted_keys=key_filter))


__all__ = ["StageFunction", "UpsertRules", "UpsertRun", "upsert"]
