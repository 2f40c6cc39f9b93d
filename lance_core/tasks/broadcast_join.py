"""New columns from rows that are few enough for each worker to hold: they come to the fragments, nothing is shuffled.

    workers   the rows that came, in files of their own (`staged.py`)
    workers   HeldTask: each part of the table finds its rows among them, by address or by key, and has them written

What is written, and what is wrong with addresses, is decided by `FillTask`, which is given what it would be given by
a shuffle. What counts as an equal key is what Lance counts (`dml/key_join.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.fragment_reader import FragmentReader
from lance_core.dml.column_files import live_rows
from lance_core.dml.key_join import NOTHING, SourceKeys
from lance_core.errors import InvalidInput, SchemaMismatch
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.schema import TableSchema
from lance_core.table.table import STORAGE_VERSION
from lance_core.tasks import remote_errors
from lance_core.tasks.fill_by_address import ADDRESS_IS_NULL, FillTask
from lance_core.tasks.partitioning import RESULT
from lance_core.tasks.staged import StagedFiles, plan_staging
from lance_core.tasks.write import WriteTask
from lance_core.versions.snapshot import Snapshot

Addresses = npt.NDArray[np.int64]
BROADCAST_BYTES_MAX = 256 * 1024**2
"""Of rows that came, in one worker."""
_FRAGMENT_BITS = 32
_TEXT_BYTES = 32
"""Of what may have any length: files can be far smaller than what they hold, where much is alike."""


def transport_names(keys: int, values: int) -> list[str]:
    """What columns are called on their way, whatever they are called in the table."""
    return [*(f"key_{place}" for place in range(keys)), *(f"value_{place}" for place in range(values))]


def staging_task(base: Snapshot, keys: pa.Schema, values: pa.Schema) -> WriteTask:
    """Types are those in which the rows come; what does not fit the table is told when it is written there."""
    kinds = [*keys.types, *values.types]
    named = zip(transport_names(len(keys), len(values)), kinds, strict=True)
    fields = TableSchema.from_arrow(pa.schema([pa.field(name, kind) for name, kind in named]))
    return WriteTask(plan_staging(base, fields, StorageVersion.parse(STORAGE_VERSION)))


def staged_files(encoded: Sequence[bytes], task: WriteTask) -> StagedFiles:
    return StagedFiles.of(encoded, task.plan.schema, ())


def fits_in_broadcast(staged: StagedFiles) -> bool:
    """Whether a worker can hold all of them."""
    fragments = staged.decode_fragments()
    rows = sum(each.physical_rows for each in fragments)
    in_files = sum(each.file_bytes for each in fragments)
    return max(in_files, rows * estimate_row_bytes(staged.schema.arrow)) <= BROADCAST_BYTES_MAX


def estimate_row_bytes(schema: pa.Schema) -> int:
    """About."""
    return sum(_width(kind) for kind in schema.types)


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _TEXT_BYTES


@dataclass(frozen=True, slots=True)
class BroadcastJoinTask:
    """Runs in a worker: numbers of parts in, filled fragments out."""

    fill: FillTask
    partitions: tuple[tuple[bytes, ...], ...]
    """Encoded fragments, of each part."""
    staged: StagedFiles

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: _BroadcastRows | None = None  # for as long as this task: workers live on, and would keep them
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    self.fill.header.stamp.check()
                    part = self.fill.header.snapshot_with(self.partitions[number])
                    rows = rows or _BroadcastRows(part, self.staged, self.fill.keys)
                    found = rows.by_key(part) if self.fill.keys else rows.by_address(part, self._strays(number))
                except InvalidInput as error:
                    told = {"part": number, "refusal": remote_errors.encode_error(error)}
                    yield pa.RecordBatch.from_pylist([told], RESULT)
                    continue
                yield from self.fill(found)

    def _strays(self, number: int) -> Mapping[int, bytes] | None:
        """One part looks at the addresses of fragments that are not there."""
        return self.fill.fragments if number == 0 else None


def _are_of(numbers: Addresses, fragments: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Mostly they follow each other."""
    first, last = min(fragments), max(fragments)
    between = (numbers >= first) & (numbers <= last)
    if last - first + 1 > len(fragments):
        between[between] = np.isin(numbers[between], fragments)
    return between


def _address_order(addresses: Addresses, fragments: Sequence[Fragment]) -> Addresses | None:
    """Which of them comes first, and so on: put where it belongs, each is looked at once, and none compared. None where
    two are the same, or one is of no row."""
    ids = np.array([int(each.id) for each in fragments], dtype=np.int64)
    sizes = np.array([each.physical_rows for each in fragments], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    number, offsets = (addresses >> _FRAGMENT_BITS) - ids[0], addresses & ((1 << _FRAGMENT_BITS) - 1)
    if ids[-1] - ids[0] + 1 > len(ids):
        number = np.searchsorted(ids, number + ids[0])
    if (offsets >= sizes[number]).any():
        return None
    there = np.full(int(sizes.sum()), NOTHING, dtype=np.int64)
    there[starts[number] + offsets] = np.arange(len(addresses))
    order = there[there != NOTHING]
    return order if len(order) == len(addresses) else None


class _BroadcastRows:
    """All that came, in one worker."""

    def __init__(self, part: Snapshot, staged: StagedFiles, on: Sequence[str]) -> None:
        self._on, self._what = tuple(on), part.location.uri
        location, fields = part.location, staged.schema
        reader = FragmentReader(
            location.store, location.codec, fields, fields, path=f"{location.uri}, what came for it"
        )
        batches = [rows.batch for fragment in staged.decode_fragments() for rows in reader.read_live(fragment, None)]
        table = pa.Table.from_batches(batches, reader.arrow).combine_chunks()
        keys = max(1, len(self._on))
        self._keys, self._values = table.select(range(keys)), table.select(range(keys, table.num_columns))
        self._stored = part.manifest.schema.arrow

    def by_address(self, part: Snapshot, others: Mapping[int, bytes] | None) -> Iterator[pa.RecordBatch]:
        """Those of the part's fragments, in order; with `others`, those of fragments besides them too."""
        addresses = self._addresses
        numbers = addresses >> _FRAGMENT_BITS
        mine = np.flatnonzero(_are_of(numbers, [int(each.id) for each in part.manifest.fragments]))
        strays = np.empty(0, dtype=np.int64) if others is None else np.flatnonzero(~_are_of(numbers, list(others)))
        order = None if len(strays) else _address_order(addresses[mine], part.manifest.fragments)
        if order is None:  # something is wrong with them, which is told by who is given them in order
            mine = np.concatenate([mine, strays])
            order = np.argsort(addresses[mine])
        return self._given(mine[order])

    def by_key(self, part: Snapshot) -> Iterator[pa.RecordBatch]:
        found = self._found  # what is wrong with the keys is told before the first row
        return (batch for each in part.manifest.fragments for batch in self._of(part, each, found))

    def _of(self, part: Snapshot, fragment: Fragment, keys: SourceKeys) -> Iterator[pa.RecordBatch]:
        for rows in live_rows(part, fragment, self._on, part.manifest.schema):
            sought = [pa.chunked_array([rows.batch.column(name)]) for name in self._on]
            its = keys.rows_for(sought)
            there = np.flatnonzero(its != NOTHING)
            if len(there):
                yield self._batch(rows.offsets[there] | (fragment.id << _FRAGMENT_BITS), its[there])

    def _given(self, rows: Addresses) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), BATCH_ROWS):
            some = rows[start : start + BATCH_ROWS]
            yield self._batch(self._addresses[some], some)

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
    def _found(self) -> SourceKeys:
        columns = []
        for name, column in zip(self._on, self._keys.columns, strict=True):
            expected = self._stored.field(name).type
            try:
                columns.append(column if column.type == expected else column.cast(expected))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(
                    f"{self._what}: the key {name!r} is a {expected} in the table, and the data has values that are "
                    f"none: {error}",
                    column=name,
                    expected=str(expected),
                    got=str(column.type),
                ) from error
        return SourceKeys(pa.Table.from_arrays(columns, names=list(self._on)), self._on, what=self._what)
