"""An upsert whose rows come from workers, and whose table is read and written by workers.

    workers   the rows that come, in files of their own (`staged.py`)
    workers   each part of the table finds its rows among those, writes what changes, and says which it met
              (the driver, where indices leave few rows of the table to be looked at)
    workers   the rows that no part met, written as new ones
              (few of them: by the driver, since a job takes longer)
    driver    one operation for all

No row of the table goes anywhere but to the worker that reads it; see `002-broadcast-upsert-source.md`. Rows
that come with some columns only may stay where they are: which way is cheaper is decided on the driver, by counts of a
first look.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.deletion_files import rows_as_bitmap
from lance_core.dml.row_rewrite import ids_of, is_cheaper, move_rows, rewrite_columns, write_rows
from lance_core.dml.upsert import (
    changes_nothing,
    changes_of,
    columns_that_change,
    columns_that_come,
    existing_rows,
    keys_joined,
    keys_of,
    may_stay,
    with_cache,
)
from lance_core.dml.upsert_join import Conditions, JoinCache, Matched, UpsertRules, join, looked_up
from lance_core.errors import InvalidInput
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Update, UpdateMode
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.plan import ScanTask
from lance_core.scan.selection import Selection
from lance_core.table.committed import Committed
from lance_core.tasks import operation_merge
from lance_core.tasks.driver import TableRef, WriteOptions, over_partitions, run_change
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, Runner
from lance_core.tasks.pushed_selection import PushedSelection
from lance_core.tasks.staged import StagedFiles, StagedRows, cached_staged_rows, evict_staged_rows, plan_staging
from lance_core.tasks.update import partitions_for_writing
from lance_core.tasks.write import StageFunction, WriteTask, fragments_of
from lance_core.versions.snapshot import Snapshot

_LOOKED = struct.Struct("<QQ?")
_LITTLE_ROWS, _LITTLE_BYTES = 1 << 14, 1 << 24
"""Of the table and of its files. To read and write so much takes less than to begin a job, and any driver has room for
it, however well the files are compressed."""


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
    """`incoming` is what a table would store of the rows that come."""
    work = _Upsert(incoming, stage, rules, limits, runner)
    try:
        return run_change(table, options, "upsert", work.plan, operation=Update.name)
    finally:
        work.discard()


class _Upsert:
    """One upsert, on the driver: what it has done it keeps from plan to plan."""

    def __init__(
        self, incoming: pa.Schema, stage: StageFunction, rules: UpsertRules, limits: FileLimits, runner: Runner
    ) -> None:
        self._incoming, self._stage, self._rules, self._limits, self._runner = incoming, stage, rules, limits, runner
        self._staged: tuple[Snapshot, StagedFiles] | None = None
        self._looked, self._joined, self._inserted = PartialResults(), PartialResults(), PartialResults()

    def plan(self, base: Snapshot) -> Update | None:
        rules, schema = self._rules, base.manifest.schema
        what, incoming = base.location.uri, schema_to_stored(self._incoming, schema)
        fields = columns_that_come(incoming, schema, rules, Conversion.CAST, what)
        Conditions.of(base, fields.arrow, rules)  # what is wrong with them is told before a task runs
        if changes_nothing(rules):
            return None
        staged = self._staged_for(base, fields)
        reach = self._reach(base, staged)
        in_place = self._is_cheaper_in_place(base, staged, reach)
        met, parts = self._join(base, staged, reach, in_place)
        whole = Update(fields_assigned=ids_of(schema.fields))
        if in_place:
            changes = map(schema.field, columns_that_change(fields.arrow, schema, rules))
            whole = Update(fields_modified=ids_of(changes), mode=UpdateMode.REWRITE_COLUMNS)
        update = with_cache(operation_merge.merge_updates(parts, whole), StagedRows(base, staged), rules, schema)
        if not rules.insert:
            return update
        inserted = self._insert(base, staged, met)
        filters = [each.inserted_keys for each in inserted if each.inserted_keys is not None]
        new = tuple(fragment for each in inserted for fragment in each.new)
        return replace(update, new=update.new + new, inserted_keys=keys_joined(filters, rules, schema))

    def discard(self) -> None:
        if self._staged is not None:
            base, staged = self._staged
            staged.delete_files(base.location)
            evict_staged_rows(staged)

    def _staged_for(self, base: Snapshot, fields: TableSchema) -> StagedFiles:
        if self._staged is None:
            task = WriteTask(plan_staging(base, fields))
            staged = StagedFiles.of(fragments_of(self._stage(task)), fields, self._rules.on)
            self._staged = base, staged
            portions = len(staged.chunks())
            if portions > 1 or not base.manifest.fragments:  # else each part of the table finds it out
                over_partitions(base, ((),) * portions, _Unique(staged, portions), self._runner)
        _, staged = self._staged
        if staged.schema != fields:
            raise InvalidInput(
                f"{base.location.uri}: columns {', '.join(staged.column_names)} were changed by somebody else while rows "
                "were brought to them. Nothing was written; run it again"
            )
        return staged

    def _reach(self, base: Snapshot, staged: StagedFiles) -> "_Reach":
        """By what indices know of the keys. Where they leave few rows of the whole table, no worker is asked."""
        rules, fragments = self._rules, base.manifest.fragments
        known = Selection()
        if staged.fits_in_memory:
            source = cached_staged_rows(base, staged)
            known = looked_up(base, source, rules)
            if known.covered:
                source.check_unique(0, 1)  # else each part of the table finds it out
        chosen = known.fragments
        left = [ScanTask(each, selection=chosen.get(each.id)) for each in fragments if _may_match(each, known)]
        runner = LocalRunner() if known.covered and _is_little(base, left) else self._runner
        return _Reach([each.fragment for each in left], PushedSelection.of(left), runner)

    def _is_cheaper_in_place(self, base: Snapshot, staged: StagedFiles, reach: "_Reach") -> bool:
        """For rows with some columns only, from a first look; whole ones are written whole."""
        rules, schema = self._rules, base.manifest.schema
        columns = columns_that_change(staged.schema.arrow, schema, rules)
        if not columns or rules.matched is not Matched.UPDATE or not may_stay(staged.schema.arrow, schema):
            return False
        results = reach.each(base, staged, _Join(staged, rules, self._limits, None, reach.sent), self._looked)
        looked = [_LOOKED.unpack(found[1]) for found in results.values()]
        if any(removes for _, _, removes in looked):
            return False
        rows, changed_rows = sum(each[0] for each in looked), sum(each[1] for each in looked)
        return is_cheaper(base, columns, rows=rows, changed=changed_rows)

    def _join(
        self, base: Snapshot, staged: StagedFiles, reach: "_Reach", in_place: bool
    ) -> tuple[BitMap64, list[Update]]:
        rules = self._rules
        results = reach.each(base, staged, _Join(staged, rules, self._limits, in_place, reach.sent), self._joined)
        met, parts = BitMap64(), []
        for _part, found in sorted(results.items()):
            met |= BitMap64.deserialize(found[0])
            parts += [each for each in map(operation_merge.decode_operation, found[1:]) if isinstance(each, Update)]
        if rules.matched is Matched.FAIL and met:
            keys = StagedRows(base, staged).describe_keys(np.array(met, dtype=np.int64))
            raise existing_rows(len(met), keys, what=base.location.uri)
        return met, parts

    def _insert(self, base: Snapshot, staged: StagedFiles, met: BitMap64) -> list[Update]:
        """The rows that no part met."""
        numbers = np.array(met, dtype=np.int64)
        first, known, todo, count = 0, [], [], 0
        for fragment in staged.decode_fragments():
            rows = fragment.physical_rows
            start, stop = np.searchsorted(numbers, (first, first + rows))
            known.append(rows_as_bitmap(numbers[start:stop] - first))
            if stop - start < rows:
                todo.append(fragment)
                count += rows - int(stop - start)
            first += rows
        work = _Insert(staged, tuple(known), self._rules, self._limits)
        runner = LocalRunner() if staged.fits_in_memory else self._runner
        results = self._inserted.over_fragments(base, todo, partitions_for_writing(count, runner), work, runner)
        return [each for each in operation_merge.decode_operations(results) if isinstance(each, Update)]


@dataclass(frozen=True, slots=True)
class _Reach:
    """Of a version, what may have a row for one that came, and who looks at it."""

    fragments: Sequence[Fragment]
    sent: PushedSelection
    runner: Runner

    def each(
        self, base: Snapshot, staged: StagedFiles, work: "_Join", kept: PartialResults
    ) -> Mapping[int, list[bytes]]:
        rows = sum(fragment.physical_rows for fragment in staged.decode_fragments())
        return kept.over_fragments(base, self.fragments, partitions_for_writing(rows, self.runner), work, self.runner)


def _is_little(base: Snapshot, tasks: Sequence[ScanTask]) -> bool:
    """Of rows that an index knows, and of fragments that none covers, which are read whole."""
    rows = [each.fragment.physical_rows if each.selection is None else len(each.selection.rows) for each in tasks]
    of = [each.fragment for each in tasks]
    size = sum(each.file_bytes * some // max(1, each.physical_rows) for each, some in zip(of, rows, strict=True))
    is_told = all(file.size for each in of for file in each.files) and not any(
        map(is_blob, base.manifest.schema.fields)
    )
    return is_told and sum(rows) <= _LITTLE_ROWS and size <= _LITTLE_BYTES


def _may_match(fragment: Fragment, known: Selection) -> bool:
    return fragment.id not in known.covered or fragment.id in known.fragments


@dataclass(frozen=True, slots=True)
class _Unique:
    staged: StagedFiles
    among: int

    def __call__(self, part: Snapshot, number: int) -> Iterator[bytes]:
        StagedRows(part, self.staged).check_unique(number, self.among)
        return iter(())


@dataclass(frozen=True, slots=True)
class _Join:
    """Gives back the rows that it met, and the operation; or, where the way is not decided, counts."""

    staged: StagedFiles
    rules: UpsertRules
    limits: FileLimits
    in_place: bool | None
    sent: PushedSelection = field(compare=False)
    """What becomes of a fragment does not depend on it, so that what was done stands when it changes."""

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        rules = self.rules
        source = cached_staged_rows(part, self.staged)
        found = join(part, source, rules, JoinCache(), self.sent.selection_for(part))
        yield bytes(BitMap64(np.flatnonzero(found.met).astype(np.uint64)).serialize())
        changes = changes_of(part, source, found, rules)
        if self.in_place is None:
            rows = sum(each.fragment.physical_rows for each in changes.parts)
            yield _LOOKED.pack(rows, sum(len(each.offsets) for each in changes.parts), bool(found.removed))
        elif rules.matched is Matched.FAIL and found.met.any():
            return  # it will be refused
        elif self.in_place and changes.parts:
            yield operation_merge.encode_operation(
                rewrite_columns(changes, (), limits=self.limits, runtime=SYSTEM_RUNTIME)
            )
        elif changes.parts or found.removed:
            assigned: Sequence[int] = ids_of(part.manifest.schema.fields)
            moved = move_rows(changes, found.removed, (), assigned=assigned, limits=self.limits, runtime=SYSTEM_RUNTIME)
            yield operation_merge.encode_operation(moved)


@dataclass(frozen=True, slots=True)
class _Insert:
    """Its part is one of the staged rows."""

    staged: StagedFiles
    met: tuple[bytes, ...]
    """Of each staged fragment, the rows that are not new."""
    rules: UpsertRules
    limits: FileLimits

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        on, schema = list(self.rules.on), part.manifest.schema
        reader = StagedRows(part, self.staged).open_reader(self.staged.column_names)
        keys: list[pa.RecordBatch] = []

        def new_rows() -> Iterator[pa.RecordBatch]:
            for fragment in part.manifest.fragments:
                known = DeletionVector(np.array(BitMap.deserialize(self.met[fragment.id]), dtype=np.uint32))
                for rows in reader.read_live(fragment, known):
                    if rows.batch.num_rows:
                        keys.append(rows.batch.select(on))
                        yield rows.batch

        new = write_rows(part, new_rows(), limits=self.limits, runtime=SYSTEM_RUNTIME)
        if new:
            filtered = keys_of(pa.Table.from_batches(keys), self.rules, schema)
            yield operation_merge.encode_operation(Update(new=new, inserted_keys=filtered))


__all__ = ["StageFunction", "UpsertRules", "upsert"]
