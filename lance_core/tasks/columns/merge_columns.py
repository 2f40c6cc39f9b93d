"""Merge columns: adds columns from rows that the caller has, such as a DataFrame, by row address or by key, or replaces
their values in the rows that have a match.

    few rows     staged; each worker joins its fragments with them, by address or by key (`broadcast_join.py`)
    by address   shuffled and sorted by address, then written; each row of the addressed version gets its value
    by key       workers read the keys of the table with their addresses; after a join, as by address

The caller's `SourceFrame` writes, sorts and joins the rows. This module decides which of the three ways is taken,
what is written, and whether it may be committed (`002-broadcast-join-for-small-sources.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_core import validation
from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.blob_writing import schema_to_stored
from lance_core.datafiles.conform import Conversion, columns_to_write, find_type_mismatch
from lance_core.dml.column_fill import (
    FilledFragment,
    is_still_valid,
    keep_valid,
    plan_fill,
    read_field_ids,
    resolve_target,
    still_matches,
)
from lance_core.dml.column_sources import with_given_columns
from lance_core.dml.key_join import check_key_type
from lance_core.dml.row_addresses import address_conflict, check_addresses_stay
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Merge, Update
from lance_core.scan.system_columns import ROW_ADDRESS
from lance_core.table.base import Committed
from lance_core.tasks.columns.broadcast_join import (
    BROADCAST_BYTES_MAX,
    BroadcastJoinTask,
    estimate_row_bytes,
    fits_in_broadcast,
    staged_files,
    staging_task,
)
from lance_core.tasks.columns.fill_by_address import FillTask, KeysTask, Missing, is_packed_vector, missing_value_error
from lance_core.tasks.driver import TableRef, WriteOptions, partition_count, run_change
from lance_core.tasks.partitioning import Task, VersionHeader, collect_results, partition_fragments
from lance_core.tasks.rows.staged import StagedFiles
from lance_core.tasks.rows.write import WriteTask, collect_fragments
from lance_core.versions.snapshot import Snapshot, load_at

_TASKS_PER_SLOT = 4
_ESTIMATE_TOLERANCE = 4
"""Factor by which the estimate of a source may exceed its real size."""
_KEY_BYTES = 8
"""Minimum size of a key; an address has the same size."""


class SourceFrame(Protocol):
    """The source rows, and the engine that can sort, join and distribute them."""

    @property
    def schema(self) -> pa.Schema:
        """Schema in which a new table would store the rows."""

    @property
    def slots(self) -> int:
        """Number of tasks that run concurrently."""

    def transport(self, schema: pa.Schema) -> pa.Schema:
        """Return the types that the engine can hold, for types that the table stores."""

    def run(self, task: Task, partitions: int) -> pa.Table:
        """Run tasks as a `Runner` does."""

    def estimated_bytes(self) -> int | None:
        """Return the estimated size of all rows; `None` if it is unknown."""

    def stage(self, keys: Sequence[str], values: Sequence[str], task: WriteTask) -> pa.Table:
        """Run the task over these columns, under the names in its plan."""

    def fill_by_address(self, values: Sequence[str], task: FillTask) -> pa.Table:
        """Run the task over the address and these columns, sorted by address, with all rows of a fragment in one
        call."""

    def fill_by_key(self, keys: Sequence[str], values: Sequence[str], key_task: KeysTask, task: FillTask) -> pa.Table:
        """Join the rows with the output of `key_task` for all its partitions by equal keys, then run the task as
        above."""


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Parameters of a merge."""

    on: tuple[str, ...]
    schema: pa.Schema | None
    """Schema of the new columns; `None` takes it from the source."""
    missing: Missing
    version: int | None
    """Version to which the addresses belong; `None` is the newest."""
    replace: bool = False
    """True if columns that exist get new values."""

    @classmethod
    def of(
        cls, on: object, schema: pa.Schema | None, missing: str | None, version: int | None, *, replace: bool = False
    ) -> "MergeRequest":
        keys = validation.check_key_columns(on, "on")
        by_address = keys == (ROW_ADDRESS,)
        if missing not in (None, "error", "null"):
            raise InvalidInput(f"missing={missing!r}: it must be 'error', or 'null' for rows without a value")
        if ROW_ADDRESS in keys and not by_address:
            raise InvalidInput(f"on= joins by {ROW_ADDRESS} or by keys of the table, not by both; give one of them")
        if not by_address and (missing == "error" or version is not None):
            raise InvalidInput(f"missing='error' and version= need on={ROW_ADDRESS!r}; leave them out to join by keys")
        if validation.check_flag(replace, "replace") and missing == "null":
            raise InvalidInput(
                "missing='null' and replace=True contradict each other: rows without a value keep theirs. Leave "
                "missing= out, or give the rows that become null a null value"
            )
        default: Missing = "error" if by_address and not replace else "null"
        chosen: Missing = default if missing is None else "null" if missing == "null" else "error"
        checked = None if schema is None else validation.check_schema(schema, "schema")
        pinned = None if version is None else validation.check_version_number(version)
        return cls(keys, checked, chosen, pinned, replace)

    @property
    def by_address(self) -> bool:
        return self.on == (ROW_ADDRESS,)


def merge_columns(table: TableRef, source: SourceFrame, request: MergeRequest, *, options: WriteOptions) -> Committed:
    """Add the columns of the source, or replace their values, as one version."""
    columns = _given_columns(source.schema, request, what=table.uri)
    broadcast = _BroadcastSource(source, request, columns)
    merge = (_AddressMerge if request.by_address else _KeyMerge)(source, request, columns, broadcast)
    try:
        return run_change(
            table, options, "merge_columns", merge.plan, operation=(Update if request.replace else Merge).name
        )
    finally:
        broadcast.discard()


@dataclass
class _BroadcastSource:
    """Stages the source rows once, if each worker can hold all of them."""

    source: SourceFrame
    request: MergeRequest
    columns: pa.Schema
    _staged: tuple[Snapshot, StagedFiles] | None = None
    _is_too_large: bool = False

    def fill(self, base: Snapshot, fragments: Sequence[Fragment], task: FillTask) -> dict[int, FilledFragment] | None:
        """Return the filled fragments; `None` if the rows are too many."""
        staged = self._stage_once(base)
        if staged is None:
            return None
        partitions = partition_fragments(fragments, partition_count(fragments, self.source.slots))
        return _decode_filled(
            self.source.run(BroadcastJoinTask(task, partitions, staged), len(partitions)), base, fragments
        )

    def discard(self) -> None:
        """Delete the staged files."""
        if self._staged is not None:
            base, staged = self._staged
            staged.delete_files(base.location)

    def _stage_once(self, base: Snapshot) -> StagedFiles | None:
        """Stage the rows on the first call; `None` if they are too many."""
        if self._is_too_large or self._staged is not None:
            return self._staged[1] if self._staged else None
        on, names = self.request.on, self.columns.names
        values = [self.source.schema.field(name) for name in names]
        keys = (
            [pa.field(ROW_ADDRESS, pa.int64())] if self.request.by_address else list(map(self.source.schema.field, on))
        )
        estimate = self._estimate_bytes(base, pa.schema([*keys, *values]))
        if estimate is None or estimate > BROADCAST_BYTES_MAX * (1 if self.request.by_address else _ESTIMATE_TOLERANCE):
            self._is_too_large = True
            return None
        task = staging_task(base, pa.schema(keys), pa.schema(values))
        staged = staged_files(collect_fragments(self.source.stage(on, names, task)), task)
        if fits_in_broadcast(staged):
            self._staged = base, staged
            return staged
        staged.delete_files(base.location)
        self._is_too_large = True
        return None

    def _estimate_bytes(self, base: Snapshot, schema: pa.Schema) -> int | None:
        """Return the estimated size. By address, there are at most as many rows as the table has."""
        if self.request.by_address:
            return base.manifest.row_count() * estimate_row_bytes(schema)
        return self.source.estimated_bytes()


@dataclass
class _AddressMerge:
    """Merge by row address, for the rows of one pinned version."""

    source: SourceFrame
    request: MergeRequest
    columns: pa.Schema
    broadcast: _BroadcastSource
    pinned: Snapshot | None = None
    filled: dict[int, FilledFragment] = field(default_factory=dict)

    def plan(self, base: Snapshot) -> Planned | None:
        """Fill the columns on the first call, and return the operation that puts them into `base`."""
        columns = _stored_columns(base, self.columns, self.request)
        _check_columns(base, self.source.schema, columns, self.request)
        if self.pinned is None:
            self._fill(
                base if self.request.version is None else load_at(base.location, _requested_version(self.request)),
                columns,
            )
        assert self.pinned is not None
        self._check_addresses_valid(base, self.pinned)
        target = resolve_target(base, columns, replace=self.request.replace)
        current: dict[int, Fragment] = {fragment.id: fragment for fragment in base.manifest.fragments}
        if any(not is_still_valid(base, each, current[number], target, ()) for number, each in self.filled.items()):
            self._fill(base, columns)  # another writer changed values of rows without a new one
        return with_given_columns(base, plan_fill(base, target, self.filled), columns.names)

    def _fill(self, pinned: Snapshot, columns: pa.Schema) -> None:
        self.pinned = pinned
        fragments = pinned.manifest.fragments
        if fragments:
            task = _fill_task(pinned, fragments, columns, self.request)
            filled = self.broadcast.fill(pinned, fragments, task)
            if filled is None:
                filled = _decode_filled(self.source.fill_by_address(self.columns.names, task), pinned, fragments)
            self.filled = filled
        without_value = [fragment for fragment in fragments if fragment.id not in self.filled and fragment.live_rows]
        if without_value and self.request.missing == "error":
            raise missing_value_error(f"{pinned.location.uri} ({pinned.manifest.path})", without_value[0].id, 0)
        _check_nullable(pinned, columns, without_value)

    def _check_addresses_valid(self, base: Snapshot, pinned: Snapshot) -> None:
        """Raise if a commit since the pinned version has moved rows that have a value, or has added rows that need
        one."""
        if base.version == pinned.version:
            return
        check_addresses_stay(base, pinned, self.filled if self.request.replace else None)
        now: dict[int, Fragment] = {fragment.id: fragment for fragment in base.manifest.fragments}
        if self.request.missing == "error" and (now.keys() - {each.id for each in pinned.manifest.fragments}):
            reason = "rows were added that have no value; missing='null' would allow them"
            raise address_conflict(base, None, base.version, reason)
        for number in list(self.filled):
            if number not in now:  # all of its rows were deleted
                del self.filled[number]
            elif now[number].physical_rows != self.filled[number].fragment.physical_rows:
                raise address_conflict(base, None, base.version, f"fragment {number} was replaced")
        if not self.request.replace:
            pinned_fragments: dict[int, Fragment] = {each.id: each for each in pinned.manifest.fragments}
            for number in now.keys() & pinned_fragments.keys():
                if not still_matches(base, pinned_fragments[number], now[number], ()):
                    raise address_conflict(base, None, base.version, f"fragment {number} was replaced")


@dataclass
class _KeyMerge:
    """Merge by key. Fragments that are unchanged keep their files across replans."""

    source: SourceFrame
    request: MergeRequest
    columns: pa.Schema
    broadcast: _BroadcastSource
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    read_ids: tuple[int, ...] | None = None
    """Ids of the key fields in the last plan."""

    def plan(self, base: Snapshot) -> Planned | None:
        """Fill the fragments that have no valid file, and return the operation that puts the columns into `base`."""
        columns = _stored_columns(base, self.columns, self.request)
        _check_columns(base, self.source.schema, columns, self.request)
        keys = self._checked_keys(base)
        target = resolve_target(base, columns, replace=self.request.replace)
        ids = read_field_ids(base, self.request.on)
        self.filled = keep_valid(base, self.filled, target, self.request.on) if self.read_ids in (None, ids) else {}
        self.read_ids = ids
        unfilled = [fragment for fragment in base.manifest.fragments if fragment.id not in self.filled]
        if unfilled:
            task = _fill_task(base, unfilled, columns, self.request)
            filled = self.broadcast.fill(base, unfilled, task)
            if filled is None:
                filled = self._fill_by_shuffle(base, unfilled, task, keys)
            self.filled |= {fragment.id: FilledFragment.unchanged(fragment, target) for fragment in unfilled} | filled
        without_value = [
            each.fragment for each in self.filled.values() if each.file is None and each.fragment.live_rows
        ]
        _check_nullable(base, columns, without_value)
        return with_given_columns(base, plan_fill(base, target, self.filled), columns.names)

    def _fill_by_shuffle(
        self, base: Snapshot, fragments: Sequence[Fragment], task: FillTask, keys: pa.Schema
    ) -> dict[int, FilledFragment]:
        partitions = partition_fragments(fragments, self.source.slots * _TASKS_PER_SLOT)
        row_bytes = _KEY_BYTES * (len(keys) + 1)
        size = sum(fragment.live_rows for fragment in fragments) * row_bytes
        key_task = KeysTask(task.header, partitions, self.request.on, keys, size)
        return _decode_filled(
            self.source.fill_by_key(self.request.on, self.columns.names, key_task, task), base, fragments
        )

    def _checked_keys(self, base: Snapshot) -> pa.Schema:
        """Return the schema in which the keys travel. Raises if they cannot be joined."""
        stored, what = base.manifest.schema.arrow, base.location.uri
        for name in self.request.on:
            if name not in stored.names:
                raise InvalidInput(
                    f"{what}: cannot join on {name!r}, for in the table {unknown_column_message(name, stored.names)}"
                )
            expected, got = stored.field(name).type, self.source.schema.field(name).type
            check_key_type(name, expected, what=what)
            if find_type_mismatch(got, expected, name):
                raise SchemaMismatch(
                    f"{what}: the key {name!r} has type {expected} in the table and {got} in the data; cast it",
                    column=name,
                    expected=str(expected),
                    got=str(got),
                )
        return self.source.transport(pa.schema([stored.field(name) for name in self.request.on]))


def _given_columns(source: pa.Schema, request: MergeRequest, *, what: str) -> pa.Schema:
    """Return the schema of the columns that the source has besides its keys."""
    for name in request.on:
        if name not in source.names:
            raise InvalidInput(
                f"{what}: cannot join on {name!r}, for in the data {unknown_column_message(name, source.names)}"
            )
    names = [name for name in source.names if name not in request.on]
    if duplicates := sorted({name for name in source.names if source.names.count(name) > 1}):
        raise InvalidInput(f"{what}: the data has two columns named {duplicates[0]!r}")
    if not names:
        raise InvalidInput(f"{what}: the data has only the key columns {', '.join(request.on)}, and no column to merge")
    if request.schema is None:
        return pa.schema([source.field(name) for name in names])
    if sorted(request.schema.names) != sorted(names):
        raise InvalidInput(
            f"{what}: schema= has the columns {', '.join(request.schema.names)}, but the data has {', '.join(names)}"
        )
    return request.schema


def _stored_columns(base: Snapshot, columns: pa.Schema, request: MergeRequest) -> pa.Schema:
    """Return the columns with the types that the table stores, if they are replaced. A `schema=` keeps its types, so
    that a mismatch is reported."""
    stored = base.manifest.schema.arrow
    if not request.replace or request.schema is not None:
        return columns
    return pa.schema([stored.field(each.name) if each.name in stored.names else each for each in columns])


def _check_columns(base: Snapshot, source: pa.Schema, columns: pa.Schema, request: MergeRequest) -> None:
    """Raise if the columns are invalid, before a task runs."""
    target = resolve_target(base, columns, replace=request.replace).columns
    incoming = []
    for name in columns.names:
        given, stored = source.field(name), target.arrow.field(name)
        incoming.append(pa.field(name, stored.type) if is_packed_vector(given.type, stored.type) else given)
    columns_to_write(
        schema_to_stored(pa.schema(incoming), target), target, conversion=Conversion.CAST, what=base.location.uri
    )


def _check_nullable(base: Snapshot, columns: pa.Schema, without_value: Sequence[Fragment]) -> None:
    """Raise if a new column needs a value in rows that have none."""
    existing = base.manifest.schema.arrow.names
    for column in columns:
        if without_value and not column.nullable and column.name not in existing:
            raise InvalidInput(
                f"column {column.name!r} is not nullable, but no row of fragment {without_value[0].id} has a value; "
                "give one for every row"
            )


def _fill_task(base: Snapshot, fragments: Sequence[Fragment], columns: pa.Schema, request: MergeRequest) -> FillTask:
    encoded = {int(fragment.id): fragment.encode() for fragment in fragments}
    keys = () if request.by_address else request.on
    return FillTask(VersionHeader.of(base), encoded, columns, request.missing, keys, request.replace)


def _decode_filled(rows: pa.Table, base: Snapshot, fragments: Sequence[Fragment]) -> dict[int, FilledFragment]:
    id_limit = max((int(fragment.id) for fragment in fragments), default=-1) + 1
    results = collect_results(rows, id_limit, uri=base.location.uri)
    filled = {}
    for number, fragment_results in results.items():
        (encoded,) = fragment_results  # one task has all rows of a fragment
        filled[number] = FilledFragment.decode(encoded)
    return filled


def _requested_version(request: MergeRequest) -> Version:
    assert request.version is not None
    return Version(request.version)
