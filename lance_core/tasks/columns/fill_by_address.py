"""Fill by address: writes new columns for rows that are identified by row address.

    FillTask(batches in address order, all rows of a fragment in one task)  ->  the fragments, each with one more file
    KeysTask(partition numbers)                                             ->  keys of the table, with addresses

A file covers every physical row of its fragment in order, so the task looks nothing up and holds only one batch. It
verifies that the addresses are those of live rows and that each occurs once, and never relies on the sort for that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pa_types

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.column_files import PositionedBatch, read_live_rows, write_column_file
from lance_core.dml.column_fill import FilledFragment, resolve_target
from lance_core.dml.replaced_columns import fill_fragment
from lance_core.errors import InvalidInput, SchemaMismatch, StorageError
from lance_core.format.fragment import Fragment
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.system_columns import ROW_ADDRESS
from lance_core.tasks import remote_errors
from lance_core.tasks.partitioning import RESULT, VersionHeader
from lance_core.versions.snapshot import Snapshot

Missing = Literal["error", "null"]
Offsets = npt.NDArray[np.int64]
_FRAGMENT_BITS = 32
_OFFSET_MASK = (1 << _FRAGMENT_BITS) - 1
ADDRESS_IS_NULL = f"the data has a row whose {ROW_ADDRESS} is null; leave the row out, or give its address"


@dataclass(frozen=True, slots=True)
class FillTask:
    """Runs in a worker: the address and the new columns in, filled fragments out."""

    header: VersionHeader
    fragments: Mapping[int, bytes]
    """Encoded fragments. An address in any other fragment is an error."""
    columns: pa.Schema
    missing: Missing
    """Treatment of live rows of a fragment that get no value."""
    keys: tuple[str, ...] = ()
    """Key columns, if addresses were found by key. An address that occurs twice then means a duplicate key."""
    replace: bool = False
    """True if columns that exist get new values; rows without one keep theirs."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = -1
        try:
            self.header.stamp.check()
            for number, fragment_rows in groupby(_split_by_fragment(batches), key=lambda rows: rows.fragment):
                last = number
                filled = self._fill_fragment(number, fragment_rows)
                yield pa.RecordBatch.from_pylist([{"part": number, "result": filled.encode()}], RESULT)
        except InvalidInput as error:
            yield pa.RecordBatch.from_pylist(
                [{"part": max(last, 0), "refusal": remote_errors.encode_error(error)}], RESULT
            )
        except _DuplicateAddress as duplicate:
            refusal = remote_errors.encode_error(self._duplicate_error(duplicate.address))
            yield pa.RecordBatch.from_pylist(
                [{"part": duplicate.address >> _FRAGMENT_BITS, "refusal": refusal}], RESULT
            )

    def _fill_fragment(self, number: int, fragment_rows: Iterable["_FragmentRows"]) -> FilledFragment:
        if number not in self.fragments:
            raise InvalidInput(
                f"{self._version_label}: the data has addresses in fragment {number}, which does not exist. They are "
                "of another version: read the rows again, or name that version with version="
            )
        snapshot = self.header.snapshot_with([self.fragments[number]])
        (fragment,) = snapshot.manifest.fragments
        positioned = self._position_rows(snapshot, fragment, fragment_rows)
        target = resolve_target(snapshot, self.columns, replace=self.replace)
        if self.replace:
            return fill_fragment(snapshot, fragment, target, positioned, runtime=SYSTEM_RUNTIME)
        file = write_column_file(
            snapshot, fragment, positioned, target.columns, conversion=Conversion.CAST, runtime=SYSTEM_RUNTIME
        )
        return FilledFragment(fragment, file)

    def _position_rows(
        self, snapshot: Snapshot, fragment: Fragment, fragment_rows: Iterable["_FragmentRows"]
    ) -> Iterator[PositionedBatch]:
        """Yield all live rows of the fragment with their offsets. Rows without a value have nulls; they are left out if
        columns are replaced."""
        deleted, rows = load_deletions(snapshot.location.store, fragment), fragment.physical_rows
        live = np.ones(rows, dtype=np.bool_) if deleted is None else deleted.live_mask(0, rows)
        position = 0
        for rows_read in fragment_rows:
            offsets, batch = rows_read.offsets, _unpack_vectors(rows_read.batch, self.columns)
            end = int(offsets[-1]) + 1
            if end > rows:
                raise self._invalid_row_error(fragment, end - 1, f"the fragment has {rows} rows")
            if not (is_live := live[offsets]).all():
                raise self._invalid_row_error(fragment, int(offsets[~is_live][0]), "the row is deleted")
            expected = np.flatnonzero(live[position:end]) + position
            position = end
            if len(expected) == len(offsets):
                yield PositionedBatch(batch, offsets)
                continue
            indices = np.searchsorted(offsets, expected)
            is_missing = offsets[indices] != expected
            self._check_missing(fragment, expected[is_missing])
            if self.replace:
                yield PositionedBatch(batch, offsets)
                continue
            values = batch.take(pa.array(indices, mask=is_missing))
            yield PositionedBatch(values, expected)
        remaining = np.flatnonzero(live[position:]) + position
        self._check_missing(fragment, remaining)
        for start in range(0, 0 if self.replace else len(remaining), BATCH_ROWS):
            offsets_without_value = remaining[start : start + BATCH_ROWS]
            nulls = [pa.nulls(len(offsets_without_value), field.type) for field in self.columns]
            yield PositionedBatch(pa.RecordBatch.from_arrays(nulls, names=self.columns.names), offsets_without_value)

    def _check_missing(self, fragment: Fragment, offsets: Offsets) -> None:
        """Raise if these rows have no value and every row needs one."""
        if self.missing == "error" and len(offsets):
            raise missing_value_error(self._version_label, fragment.id, int(offsets[0]))

    def _invalid_row_error(self, fragment: Fragment, offset: int, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._version_label}: the data has a value for row {offset} of fragment {fragment.id} ({ROW_ADDRESS} "
            f"{_address(fragment.id, offset)}), but {why}. If the address is of another version, read the "
            "rows again, or name that version with version="
        )

    def _duplicate_error(self, address: int) -> InvalidInput:
        """Return the error for an address that occurs twice. It names the key, if addresses were found by key."""
        number, offset = address >> _FRAGMENT_BITS, address & _OFFSET_MASK
        if self.keys and number in self.fragments:
            snapshot = self.header.snapshot_with([self.fragments[number]])
            (fragment,) = snapshot.manifest.fragments
            for rows in read_live_rows(snapshot, fragment, self.keys, snapshot.manifest.schema):
                if len(found := np.flatnonzero(rows.offsets == offset)):
                    (key,) = rows.batch.slice(int(found[0]), 1).to_pylist()
                    key_text = " and ".join(f"{name} = {value!r}" for name, value in key.items())
                    return InvalidInput(
                        f"{self._version_label}: the data has the key {key_text} more than once, so its value is "
                        "ambiguous; keep one row per key"
                    )
        return InvalidInput(
            f"{self._version_label}: the data has row {offset} of fragment {number} ({ROW_ADDRESS} {address}) more "
            "than once, so its value is ambiguous; keep one"
        )

    @property
    def _version_label(self) -> str:
        return f"{self.header.uri} ({self.header.path})"


@dataclass(frozen=True, slots=True)
class KeysTask:
    """Runs in a worker: partition numbers in, keys of live rows with their addresses out."""

    header: VersionHeader
    partitions: tuple[tuple[bytes, ...], ...]
    keys: tuple[str, ...]
    transport: pa.Schema
    """Schema in which the keys travel."""
    memory_bytes: int
    """Estimated size of the output."""

    @property
    def schema(self) -> pa.Schema:
        return self.transport.append(pa.field(ROW_ADDRESS, pa.int64()))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.header.stamp.check()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                snapshot = self.header.snapshot_with(self.partitions[number])
                for fragment in snapshot.manifest.fragments:
                    yield from self._read_keys(snapshot, fragment)

    def _read_keys(self, snapshot: Snapshot, fragment: Fragment) -> Iterator[pa.RecordBatch]:
        for rows in read_live_rows(snapshot, fragment, self.keys, snapshot.manifest.schema):
            if rows.batch.num_rows:
                keys = conform(rows.batch, self.transport, conversion=Conversion.OUTWARD, what=self.header.uri)
                addresses = pa.array(rows.offsets | (fragment.id << _FRAGMENT_BITS))
                yield pa.RecordBatch.from_arrays([*keys.columns, addresses], schema=self.schema)


def missing_value_error(version: str, fragment: int, offset: int) -> InvalidInput:
    """Return the error for a row without a value."""
    return InvalidInput(
        f"{version}: the data has no value for row {offset} of fragment {fragment} ({ROW_ADDRESS} "
        f"{_address(fragment, offset)}). Give a value for every row, or set missing='null'"
    )


def consecutive_runs(fragments: Sequence[int]) -> list[tuple[int, int, int]]:
    """Group numbers into consecutive runs: first number, last number, and count of the numbers before the run.

    >>> consecutive_runs([0, 1, 2, 7, 9, 10])
    [(0, 2, 0), (7, 7, 3), (9, 10, 4)]
    """
    runs: list[tuple[int, int, int]] = []
    for count, number in enumerate(sorted(fragments)):
        if runs and runs[-1][1] + 1 == number:
            runs[-1] = (runs[-1][0], number, runs[-1][2])
        else:
            runs.append((number, number, count))
    return runs


def is_packed_vector(source: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether vectors are given as the bytes of their numbers, which travel many times faster than lists."""
    if not (pa_types.is_binary(source) or pa_types.is_large_binary(source)) or not pa_types.is_fixed_size_list(stored):
        return False
    return bool(pa_types.is_integer(stored.value_type) or pa_types.is_floating(stored.value_type))


@dataclass(frozen=True, slots=True)
class _FragmentRows:
    """Source rows of one fragment, in row order."""

    fragment: int
    offsets: Offsets
    batch: pa.RecordBatch
    """Values without the addresses."""


class _DuplicateAddress(Exception):
    """Two source rows have the same address."""

    def __init__(self, address: int) -> None:
        super().__init__(address)
        self.address = address


def _split_by_fragment(batches: Iterable[pa.RecordBatch]) -> Iterator[_FragmentRows]:
    """Yield the source rows by fragment. Raises if the addresses are invalid, duplicate or not sorted."""
    previous = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.column(0).null_count:
            raise InvalidInput(ADDRESS_IS_NULL)
        addresses = batch.column(0).to_numpy().astype(np.int64)
        steps = np.diff(addresses, prepend=previous)
        if int(addresses[0]) < 0:
            raise InvalidInput(f"the data has the {ROW_ADDRESS} {addresses[0]}, which is not a valid row address")
        if (steps == 0).any():
            raise _DuplicateAddress(int(addresses[steps == 0][0]))
        if (steps < 0).any():
            raise StorageError("a worker received rows that are not sorted by their address")
        previous = int(addresses[-1])
        values = batch.drop_columns([batch.schema.names[0]])
        fragment_ids = addresses >> _FRAGMENT_BITS
        ends = [*(np.flatnonzero(np.diff(fragment_ids)) + 1).tolist(), len(fragment_ids)]
        start = 0
        for end in ends:
            offsets = addresses[start:end] & _OFFSET_MASK
            yield _FragmentRows(int(fragment_ids[start]), offsets, values.slice(start, end - start))
            start = end


def _unpack_vectors(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the values in the order of the columns, with packed vectors as lists."""
    arrays = []
    for array, field in zip(batch.columns, columns, strict=True):
        arrays.append(_unpack_vector(array, field) if is_packed_vector(array.type, field.type) else array)
    return pa.RecordBatch.from_arrays(arrays, names=columns.names)


def _unpack_vector(array: pa.Array, field: pa.Field) -> pa.Array:
    vector = field.type
    width = vector.list_size * vector.value_type.bit_width // 8
    try:
        fixed = array.cast(pa.binary(width))
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"column {field.name!r} holds vectors of {vector.list_size} {vector.value_type}, {width} bytes each; some "
            f"values have another length: {error}",
            column=field.name,
            expected=f"{width} bytes",
            got="others",
        ) from error
    count = (len(fixed) + fixed.offset) * vector.list_size
    numbers = pa.Array.from_buffers(vector.value_type, count, [None, fixed.buffers()[1]])
    numbers = numbers.slice(fixed.offset * vector.list_size)
    mask = fixed.is_null() if fixed.null_count else None
    return pa.FixedSizeListArray.from_arrays(numbers, type=vector, mask=mask)


def _address(fragment: int, offset: int) -> int:
    return fragment << _FRAGMENT_BITS | offset
