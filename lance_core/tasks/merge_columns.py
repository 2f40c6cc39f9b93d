"""Columns from rows that somebody else has, such as a DataFrame: by the address of the row they are for, or by key.

    few rows     staged, and found by each worker for its fragments, by address or by key (`broadcast_join.py`)
    by address   sorted by it, written as they come; every row of the version they are of gets its value
    by key       the workers read the keys of the table, with addresses; joined, the rest is as above

The caller's `SourceFrame` writes, sorts and joins the rows; this module decides which of the three ways is taken, what
is written, and whether it may be committed (`003-broadcast-join-for-small-sources.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write
from lance_core.datafiles.conversions import find_type_mismatch
from lance_core.dml.key_join import check_key_type
from lance_core.dml.new_columns import new_fields
from lance_core.errors import IncompatibleConflict, InvalidInput, SchemaMismatch
from lance_core.format import operations as op
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Merge, Operation, UpdateMode
from lance_core.scan.system_columns import ROW_ADDRESS
from lance_core.table.committed import Committed
from lance_core.tasks.broadcast_join import (
    BROADCAST_BYTES_MAX,
    BroadcastJoinTask,
    estimate_row_bytes,
    fits_in_broadcast,
    staged_files,
    staging_task,
)
from lance_core.tasks.column_fill import plan_merge, still_matches, without_filled_file
from lance_core.tasks.driver import TableRef, WriteOptions, partitions_for_reading, run_change
from lance_core.tasks.fill_by_address import FillTask, KeysTask, Missing, is_packed_vector, missing_value_error
from lance_core.tasks.partitioning import Task, VersionHeader, collect_results, partition_fragments
from lance_core.tasks.staged import StagedFiles
from lance_core.tasks.write import WriteTask, fragments_of
from lance_core.versions.snapshot import Snapshot, load_at, read_history

_TASKS_PER_SLOT = 4
_TOLD_FACTOR = 4
"""What is told of how much comes may be too much."""
_KEY_BYTES = 8
"""At the least; an address takes as much."""


class SourceFrame(Protocol):
    """The rows, with whoever can sort, join and spread them."""

    @property
    def schema(self) -> pa.Schema:
        """As a new table would store them."""

    @property
    def slots(self) -> int:
        """How many tasks run at once."""

    def transport(self, schema: pa.Schema) -> pa.Schema:
        """The types that it can hold, for what a table stores."""

    def run(self, task: Task, parts: int) -> pa.Table:
        """As a `Runner` does."""

    def estimated_bytes(self) -> int | None:
        """About how much all of it is; None if nobody knows."""

    def stage(self, keys: Sequence[str], values: Sequence[str], task: WriteTask) -> pa.Table:
        """The task over these columns, called as its plan says."""

    def fill_by_address(self, values: Sequence[str], task: FillTask) -> pa.Table:
        """The task over the address and these columns: ascending, all rows of a fragment in one call of it."""

    def fill_by_key(self, keys: Sequence[str], values: Sequence[str], key_task: KeysTask, task: FillTask) -> pa.Table:
        """The same, of the rows joined with what `key_task` gives for each of its parts, by equal keys."""


@dataclass(frozen=True, slots=True)
class MergeRequest:
    on: tuple[str, ...]
    schema: pa.Schema | None
    """Of the new columns; None: as the rows have them."""
    missing: Missing
    version: int | None
    """Of which the addresses are; None: the newest."""

    @classmethod
    def of(cls, on: object, schema: pa.Schema | None, missing: str | None, version: int | None) -> "MergeRequest":
        keys = validation.check_key_columns(on, "on")
        by_address = keys == (ROW_ADDRESS,)
        if missing not in (None, "error", "null"):
            raise InvalidInput(f"missing={missing!r}: it is 'error', or 'null' for rows without a value")
        if ROW_ADDRESS in keys and not by_address:
            raise InvalidInput(f"rows are joined by {ROW_ADDRESS} or by keys of the table, not by both")
        if not by_address and (missing == "error" or version is not None):
            raise InvalidInput(f"missing='error' and version= are for rows with their {ROW_ADDRESS}, not for keys")
        default: Missing = "error" if by_address else "null"
        chosen: Missing = default if missing is None else "null" if missing == "null" else "error"
        checked = None if schema is None else validation.check_schema(schema, "schema")
        return cls(keys, checked, chosen, None if version is None else validation.check_version_number(version))

    @property
    def by_address(self) -> bool:
        return self.on == (ROW_ADDRESS,)


def merge_columns(table: TableRef, rows: SourceFrame, request: MergeRequest, *, options: WriteOptions) -> Committed:
    columns = _columns(rows.schema, request, what=table.uri)
    few = _Few(rows, request, columns)
    merging = (_ByAddress if request.by_address else _ByKey)(rows, request, columns, few)
    try:
        return run_change(table, options, "merge_columns", merging.plan, operation=Merge.name)
    finally:
        few.discard()


@dataclass
class _Few:
    """The rows, where they are few enough for each worker to hold them. They are computed once."""

    rows: SourceFrame
    wanted: MergeRequest
    columns: pa.Schema
    _staged: tuple[Snapshot, StagedFiles] | None = None
    _are_many: bool = False

    def filled(self, base: Snapshot, fragments: Sequence[Fragment], fill: FillTask) -> dict[int, Fragment] | None:
        """None where they are too many."""
        staged = self._once(base)
        if staged is None:
            return None
        parts = partition_fragments(fragments, partitions_for_reading(fragments, self.rows.slots))
        return _filled(self.rows.run(BroadcastJoinTask(fill, parts, staged), len(parts)), base, fragments)

    def discard(self) -> None:
        if self._staged is not None:
            base, staged = self._staged
            staged.delete_files(base.location)

    def _once(self, base: Snapshot) -> StagedFiles | None:
        if self._are_many or self._staged is not None:
            return self._staged[1] if self._staged else None
        on, names = self.wanted.on, self.columns.names
        kinds = [self.rows.schema.field(name) for name in names]
        keys = [pa.field(ROW_ADDRESS, pa.int64())] if self.wanted.by_address else list(map(self.rows.schema.field, on))
        told = self._bytes_of_rows(base, pa.schema([*keys, *kinds]))
        if told is None or told > BROADCAST_BYTES_MAX * (1 if self.wanted.by_address else _TOLD_FACTOR):
            self._are_many = True
            return None
        task = staging_task(base, pa.schema(keys), pa.schema(kinds))
        staged = staged_files(fragments_of(self.rows.stage(on, names, task)), task)
        if fits_in_broadcast(staged):
            self._staged = base, staged
            return staged
        staged.delete_files(base.location)
        self._are_many = True
        return None

    def _bytes_of_rows(self, base: Snapshot, schema: pa.Schema) -> int | None:
        """Of rows that have an address there are no more than the table has."""
        if self.wanted.by_address:
            return base.manifest.row_count() * estimate_row_bytes(schema)
        return self.rows.estimated_bytes()


@dataclass
class _ByAddress:
    rows: SourceFrame
    wanted: MergeRequest
    columns: pa.Schema
    few: _Few
    pinned: Snapshot | None = None
    filled: dict[int, Fragment] = field(default_factory=dict)

    def plan(self, base: Snapshot) -> Merge:
        _check(base, self.rows.schema, self.columns)
        if self.pinned is None:
            self._fill(base if self.wanted.version is None else load_at(base.location, _version(self.wanted)))
        assert self.pinned is not None
        self._follow(base, self.pinned)
        return plan_merge(base, self.columns, self.filled)

    def _fill(self, pinned: Snapshot) -> None:
        self.pinned = pinned
        fragments = pinned.manifest.fragments
        if fragments:
            task = _task(pinned, fragments, self.columns, self.wanted)
            found = self.few.filled(pinned, fragments, task)
            if found is None:
                found = _filled(self.rows.fill_by_address(self.columns.names, task), pinned, fragments)
            self.filled = found
        without = [each for each in fragments if each.id not in self.filled and each.live_rows]
        if without and self.wanted.missing == "error":
            raise missing_value_error(f"{pinned.location.uri} ({pinned.manifest.path})", without[0].id, 0)
        _check_nullable(self.columns, without)

    def _follow(self, base: Snapshot, pinned: Snapshot) -> None:
        """That what was filled is still what the rows are, and that no others came who have a right to a value."""
        if base.version == pinned.version:
            return
        history = read_history(base.location, pinned.version, base=base)
        for landed in history.others if history else ():
            made = landed.transaction.operation if landed.transaction else None
            if landed.version <= base.version and _moves_rows(made):
                raise _conflict(base, made, landed.version, "rows were moved to other addresses")
        known = {each.id: each for each in pinned.manifest.fragments}
        for now in base.manifest.fragments:
            then = known.get(now.id)
            if then is None and self.wanted.missing == "error":
                what = "rows were added, and there is no value for them. With missing='null' they have none"
                raise _conflict(base, None, base.version, what)
            if then is not None and not still_matches(base, then, now, ()):
                raise _conflict(base, None, base.version, f"fragment {now.id} is another one")


@dataclass
class _ByKey:
    rows: SourceFrame
    wanted: MergeRequest
    columns: pa.Schema
    few: _Few
    filled: dict[int, Fragment] = field(default_factory=dict)
    unmatched: dict[int, Fragment] = field(default_factory=dict)

    def plan(self, base: Snapshot) -> Merge:
        _check(base, self.rows.schema, self.columns)
        keys = self._keys(base)
        there: dict[int, Fragment] = {each.id: each for each in base.manifest.fragments}
        self.filled = {
            number: each
            for number, each in self.filled.items()
            if number in there and still_matches(base, without_filled_file(each), there[number], self.wanted.on)
        }
        self.unmatched = {
            number: each
            for number, each in self.unmatched.items()
            if number in there and still_matches(base, each, there[number], self.wanted.on)
        }
        left = [each for number, each in there.items() if number not in self.filled and number not in self.unmatched]
        if left:
            task = _task(base, left, self.columns, self.wanted)
            found = self.few.filled(base, left, task)
            if found is None:
                found = self._shuffled(base, left, task, keys)
            self.filled |= found
            self.unmatched |= {each.id: each for each in left if each.id not in found}
        _check_nullable(self.columns, [each for each in self.unmatched.values() if each.live_rows])
        return plan_merge(base, self.columns, self.filled)

    def _shuffled(
        self, base: Snapshot, left: Sequence[Fragment], task: FillTask, keys: pa.Schema
    ) -> dict[int, Fragment]:
        parts = partition_fragments(left, self.rows.slots * _TASKS_PER_SLOT)
        row_bytes = _KEY_BYTES * (len(keys) + 1)
        size = sum(each.live_rows for each in left) * row_bytes
        reading = KeysTask(task.header, parts, self.wanted.on, keys, size)
        return _filled(self.rows.fill_by_key(self.wanted.on, self.columns.names, reading, task), base, left)

    def _keys(self, base: Snapshot) -> pa.Schema:
        """As the table stores them, in types that can travel."""
        stored, what = base.manifest.schema.arrow, base.location.uri
        for name in self.wanted.on:
            if name not in stored.names:
                raise InvalidInput(
                    f"{what}: cannot join on {name!r}, for in the table {unknown_column_message(name, stored.names)}"
                )
            expected, got = stored.field(name).type, self.rows.schema.field(name).type
            check_key_type(name, expected, what=what)
            if find_type_mismatch(got, expected, name):
                raise SchemaMismatch(
                    f"{what}: the key {name!r} is a {expected} in the table and a {got} in the data; cast it",
                    column=name,
                    expected=str(expected),
                    got=str(got),
                )
        return self.rows.transport(pa.schema([stored.field(name) for name in self.wanted.on]))


def _columns(rows: pa.Schema, wanted: MergeRequest, *, what: str) -> pa.Schema:
    """What is new, in the types that it will have."""
    for name in wanted.on:
        if name not in rows.names:
            raise InvalidInput(
                f"{what}: cannot join on {name!r}, for in the data {unknown_column_message(name, rows.names)}"
            )
    names = [name for name in rows.names if name not in wanted.on]
    if twice := sorted({name for name in rows.names if rows.names.count(name) > 1}):
        raise InvalidInput(f"{what}: the data has two columns named {twice[0]!r}")
    if not names:
        raise InvalidInput(f"{what}: a merge of columns needs, in the data, a column besides {', '.join(wanted.on)}")
    if wanted.schema is None:
        return pa.schema([rows.field(name) for name in names])
    if sorted(wanted.schema.names) != sorted(names):
        raise InvalidInput(
            f"{what}: schema= has the columns {', '.join(wanted.schema.names)}, and the data {', '.join(names)}"
        )
    return wanted.schema


def _check(base: Snapshot, rows: pa.Schema, columns: pa.Schema) -> None:
    """What is wrong with the new columns is told before a task runs."""
    new = new_fields(base, columns)
    coming = [
        pa.field(name, new.arrow.field(name).type) if is_packed_vector(rows.field(name).type, new.arrow.field(name).type)
        else rows.field(name)
        for name in columns.names
    ]  # fmt: skip
    incoming = schema_to_stored(pa.schema(coming), new)
    columns_to_write(incoming, new, conversion=Conversion.CAST, what=base.location.uri)


def _check_nullable(columns: pa.Schema, without: Sequence[Fragment]) -> None:
    for each in columns:
        if without and not each.nullable:
            raise InvalidInput(
                f"column {each.name!r} is not nullable, and no row of fragment {without[0].id} has a value for it"
            )


def _task(base: Snapshot, fragments: Sequence[Fragment], columns: pa.Schema, wanted: MergeRequest) -> FillTask:
    encoded = {int(each.id): each.encode() for each in fragments}
    keys = () if wanted.by_address else wanted.on
    return FillTask(VersionHeader.of(base), encoded, columns, wanted.missing, keys)


def _filled(came_back: pa.Table, base: Snapshot, fragments: Sequence[Fragment]) -> dict[int, Fragment]:
    beyond = max((int(each.id) for each in fragments), default=-1) + 1
    results = collect_results(came_back, beyond, uri=base.location.uri)
    found = {}
    for number, each in results.items():
        (encoded,) = each  # one task has all rows of a fragment
        found[number] = Fragment.decode(encoded)
    return found


def _version(wanted: MergeRequest) -> Version:
    assert wanted.version is not None
    return Version(wanted.version)


def _moves_rows(operation: Operation | None) -> bool:
    """Whether rows that were there may be elsewhere now, or be other rows. What nobody knows may have moved them."""
    match operation:
        case op.Append() | op.Delete() | op.CreateIndex() | op.Merge() | op.Project() | op.DataReplacement():
            return False
        case op.ReserveFragments() | op.UpdateConfig() | op.UpdateBases() | op.UpdateMemWalState():
            return False
        case op.Update():
            return bool(operation.new) and operation.mode is not UpdateMode.REWRITE_COLUMNS
        case _:
            return True


def _conflict(base: Snapshot, theirs: Operation | None, version: int, what: str) -> IncompatibleConflict:
    name = "another change" if theirs is None else theirs.name
    return IncompatibleConflict(
        f"{base.location.uri}: the new columns are for rows by their address, and up to version {version} ({name}) "
        f"{what}. Read the rows again, then merge their columns; no compaction or update should run meanwhile",
        ours=Merge.name,
        theirs=name,
        version=version,
        rule="addresses_stay",
    )
