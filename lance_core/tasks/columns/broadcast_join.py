"""Broadcast join: new columns from source rows that are few enough for every worker to hold, so that nothing is
shuffled.

    workers   stage the source rows in files of their own (`staged.py`)
    workers   BroadcastJoinTask: finds the source rows of its fragments, by address or by key, and writes the columns

`FillTask` decides what is written and which addresses are errors; its input is the same as after a shuffle. Keys are
compared as Lance compares them (`dml/key_join.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.fragment_reader import FragmentReader
from lance_core.dml.column_files import read_live_rows
from lance_core.dml.key_join import NO_ROW, SourceKeys
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.table.base import STORAGE_VERSION, parse_storage_version
from lance_core.tasks import remote_errors
from lance_core.tasks.columns.fill_by_address import ADDRESS_IS_NULL, FillTask
from lance_core.tasks.partitioning import RESULT
from lance_core.tasks.rows.staged import StagedFiles, plan_staging
from lance_core.tasks.rows.write import WriteTask
from lance_core.versions.snapshot import Snapshot

Addresses = npt.NDArray[np.int64]
BROADCAST_BYTES_MAX = 256 * 1024**2
"""Most bytes of source rows that one worker holds."""
_FRAGMENT_BITS = 32
_VARIABLE_WIDTH_BYTES = 32
"""Assumed size of a value of variable width. Files are no measure, since repetitive values take far less space in
them."""


def transport_names(keys: int, values: int) -> list[str]:
    """Return the column names in which staged rows travel, independent of the table's names."""
    return [*(f"key_{position}" for position in range(keys)), *(f"value_{position}" for position in range(values))]


def staging_task(base: Snapshot, keys: pa.Schema, values: pa.Schema) -> WriteTask:
    """Return the task that stages source rows in their own types. Values that do not fit the table are reported when
    they are written to it."""
    types = [*keys.types, *values.types]
    pairs = zip(transport_names(len(keys), len(values)), types, strict=True)
    schema = TableSchema.from_arrow(pa.schema([pa.field(name, type_) for name, type_ in pairs]))
    return WriteTask(plan_staging(base, schema, parse_storage_version(STORAGE_VERSION)))


def staged_files(encoded: Sequence[bytes], task: WriteTask) -> StagedFiles:
    """Return the description of the files that the staging task has written."""
    return StagedFiles.of(encoded, task.plan.schema, ())


def fits_in_broadcast(staged: StagedFiles) -> bool:
    """Return whether a worker can hold all rows."""
    fragments = staged.decode_fragments()
    rows = sum(fragment.physical_rows for fragment in fragments)
    in_files = sum(fragment.file_bytes for fragment in fragments)
    return max(in_files, rows * estimate_row_bytes(staged.schema.arrow)) <= BROADCAST_BYTES_MAX


def estimate_row_bytes(schema: pa.Schema) -> int:
    """Return the approximate size of a row."""
    return sum(_value_bytes(type_) for type_ in schema.types)


def _value_bytes(type_: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(type_):
        return int(type_.list_size) * _value_bytes(type_.value_type)
    try:
        return max(1, int(type_.bit_width) // 8)
    except ValueError:
        return _VARIABLE_WIDTH_BYTES


@dataclass(frozen=True, slots=True)
class BroadcastJoinTask:
    """Runs in a worker: partition numbers in, filled fragments out."""

    fill: FillTask
    partitions: tuple[tuple[bytes, ...], ...]
    """Encoded fragments of each partition."""
    staged: StagedFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: _BroadcastRows | None = None  # local to the task: worker processes are reused, and would keep the rows
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.fill.header.stamp.check()
                    snapshot = self.fill.header.snapshot_with(self.partitions[number])
                    rows = rows or _BroadcastRows(snapshot, self.staged, self.fill.keys)
                    matches = (
                        rows.by_key(snapshot)
                        if self.fill.keys
                        else rows.by_address(snapshot, self._all_fragments_once(number))
                    )
                except InvalidInput as error:
                    row = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([row], RESULT)
                    continue
                yield from self.fill(matches)

    def _all_fragments_once(self, number: int) -> Mapping[int, bytes] | None:
        """Return all fragments for one partition, which checks the addresses of fragments that do not exist; `None`
        for the others."""
        return self.fill.fragments if number == 0 else None


def _is_in_fragments(ids: Addresses, fragments: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return a mask of the ids that are among the fragments. These are mostly consecutive, which a range check
    decides."""
    first, last = min(fragments), max(fragments)
    mask = (ids >= first) & (ids <= last)
    if last - first + 1 > len(fragments):
        mask[mask] = np.isin(ids[mask], fragments)
    return mask


def _address_order(addresses: Addresses, fragments: Sequence[Fragment]) -> Addresses | None:
    """Return the order that sorts the addresses. Each is scattered to its position once, and none are compared.
    `None` if two are equal, or if one is beyond the rows of its fragment."""
    ids = np.array([int(fragment.id) for fragment in fragments], dtype=np.int64)
    sizes = np.array([fragment.physical_rows for fragment in fragments], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    indices, offsets = (addresses >> _FRAGMENT_BITS) - ids[0], addresses & ((1 << _FRAGMENT_BITS) - 1)
    if ids[-1] - ids[0] + 1 > len(ids):
        indices = np.searchsorted(ids, indices + ids[0])
    if (offsets >= sizes[indices]).any():
        return None
    scattered = np.full(int(sizes.sum()), NO_ROW, dtype=np.int64)
    scattered[starts[indices] + offsets] = np.arange(len(addresses))
    order = scattered[scattered != NO_ROW]
    return order if len(order) == len(addresses) else None


class _BroadcastRows:
    """All source rows, in one worker."""

    def __init__(self, partition: Snapshot, staged: StagedFiles, on: Sequence[str]) -> None:
        self._on, self._what = tuple(on), partition.location.uri
        location, schema = partition.location, staged.schema
        reader = FragmentReader(location.store, location.codec, schema, schema, path=f"{location.uri}, staged rows")
        batches = [rows.batch for fragment in staged.decode_fragments() for rows in reader.read_live(fragment, None)]
        table = pa.Table.from_batches(batches, reader.arrow).combine_chunks()
        keys = max(1, len(self._on))
        self._keys, self._values = table.select(range(keys)), table.select(range(keys, table.num_columns))
        self._stored = partition.manifest.schema.arrow

    def by_address(self, partition: Snapshot, all_fragments: Mapping[int, bytes] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition's fragments in address order. With `all_fragments`, also yield rows whose
        fragment does not exist."""
        addresses = self._addresses
        fragment_ids = addresses >> _FRAGMENT_BITS
        rows = np.flatnonzero(
            _is_in_fragments(fragment_ids, [int(fragment.id) for fragment in partition.manifest.fragments])
        )
        strays = (
            np.empty(0, dtype=np.int64)
            if all_fragments is None
            else np.flatnonzero(~_is_in_fragments(fragment_ids, list(all_fragments)))
        )
        order = None if len(strays) else _address_order(addresses[rows], partition.manifest.fragments)
        if order is None:  # an address is invalid, which `FillTask` reports from the sorted rows
            rows = np.concatenate([rows, strays])
            order = np.argsort(addresses[rows])
        return self._batches_of(rows[order])

    def by_key(self, partition: Snapshot) -> Iterator[pa.RecordBatch]:
        """Yield the rows that match keys of the partition, with the addresses of their matches."""
        keys = self._key_index  # evaluated here, so that invalid keys are reported before the first row
        return (
            batch
            for fragment in partition.manifest.fragments
            for batch in self._join_fragment(partition, fragment, keys)
        )

    def _join_fragment(self, partition: Snapshot, fragment: Fragment, keys: SourceKeys) -> Iterator[pa.RecordBatch]:
        for rows in read_live_rows(partition, fragment, self._on, partition.manifest.schema):
            probe = [pa.chunked_array([rows.batch.column(name)]) for name in self._on]
            matches = keys.find_rows(probe)
            matched = np.flatnonzero(matches != NO_ROW)
            if len(matched):
                yield self._batch(rows.offsets[matched] | (fragment.id << _FRAGMENT_BITS), matches[matched])

    def _batches_of(self, rows: Addresses) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), BATCH_ROWS):
            batch_rows = rows[start : start + BATCH_ROWS]
            yield self._batch(self._addresses[batch_rows], batch_rows)

    def _batch(self, addresses: Addresses, rows: Addresses) -> pa.RecordBatch:
        values = self._values.take(pa.array(rows)).combine_chunks()
        columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in values.columns]
        return pa.RecordBatch.from_arrays([pa.array(addresses), *columns], names=["address", *values.column_names])

    @cached_property
    def _addresses(self) -> Addresses:
        addresses = self._keys.column(0)
        if addresses.null_count:
            raise InvalidInput(ADDRESS_IS_NULL)
        return np.asarray(addresses.cast(pa.int64()))

    @cached_property
    def _key_index(self) -> SourceKeys:
        """Lookup of source rows by key, in the types of the table. Raises if a key is duplicate or cannot be cast."""
        columns = []
        for name, column in zip(self._on, self._keys.columns, strict=True):
            expected = self._stored.field(name).type
            try:
                columns.append(column if column.type == expected else column.cast(expected))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f"{self._what}: the key {name!r} has type {expected} in the table, but the data has values that "
                    f"cannot be cast to it: {error}",
                    column=name,
                    expected=str(expected),
                    got=str(column.type),
                ) from error
        return SourceKeys(pa.Table.from_arrays(columns, names=list(self._on)), self._on, what=self._what)
