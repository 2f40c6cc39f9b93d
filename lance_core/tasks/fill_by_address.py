"""Values for rows that are named by their address: what a worker does with them.

    FillTask(batches, ascending by address, all of a fragment in one task)  ->  the fragments, with a file more each
    KeysTask(numbers of parts)                                              ->  keys of the table, with addresses

A file covers every physical row of its fragment, in their order, so nothing is looked up and nothing held but a batch.
That the addresses are those of live rows, each once, is made sure here, and never left to who sorted them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.column_files import PositionedBatch, live_rows, with_columns
from lance_core.dml.new_columns import new_fields
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
_OFFSETS = (1 << _FRAGMENT_BITS) - 1
ADDRESS_IS_NULL = f"the data has a row whose {ROW_ADDRESS} is null; leave it out, or find its row"


@dataclass(frozen=True, slots=True)
class FillTask:
    """Runs in a worker: the address and then the new columns in, filled fragments out."""

    header: VersionHeader
    fragments: Mapping[int, bytes]
    """Encoded; no other rows may be named."""
    columns: pa.Schema
    missing: Missing
    """What is done about live rows of a fragment that nothing is there for."""
    keys: tuple[str, ...] = ()
    """Where addresses were found by key: a row that is named twice has a key that is there twice."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = -1
        try:
            self.header.stamp.check()
            for number, pieces in groupby(_pieces(batches), key=lambda piece: piece.fragment):
                last = number
                filled = self._filled(number, pieces)
                yield pa.RecordBatch.from_pylist([{"part": number, "result": filled.encode()}], RESULT)
        except InvalidInput as error:
            yield pa.RecordBatch.from_pylist(
                [{"part": max(last, 0), "refusal": remote_errors.encode_error(error)}], RESULT
            )
        except _NamedTwice as twice:
            told = remote_errors.encode_error(self._about_twice(twice.address))
            yield pa.RecordBatch.from_pylist([{"part": twice.address >> _FRAGMENT_BITS, "refusal": told}], RESULT)

    def _filled(self, number: int, pieces: Iterable["_FragmentRows"]) -> Fragment:
        if number not in self.fragments:
            raise InvalidInput(
                f"{self._version}: there is no fragment {number}, and the data has addresses in it. They are of "
                "another version: read the rows again, or say of which version they are with version="
            )
        part = self.header.snapshot_with([self.fragments[number]])
        (fragment,) = part.manifest.fragments
        placed = self._placed(part, fragment, pieces)
        return with_columns(
            part, fragment, placed, new_fields(part, self.columns), conversion=Conversion.CAST, runtime=SYSTEM_RUNTIME
        )

    def _placed(
        self, part: Snapshot, fragment: Fragment, pieces: Iterable["_FragmentRows"]
    ) -> Iterator[PositionedBatch]:
        """All live rows; those without values have nulls."""
        deleted, rows = load_deletions(part.location.store, fragment), fragment.physical_rows
        alive = np.ones(rows, dtype=np.bool_) if deleted is None else deleted.live_mask(0, rows)
        position = 0
        for piece in pieces:
            offsets, batch = piece.offsets, _as_given(piece.batch, self.columns)
            end = int(offsets[-1]) + 1
            if end > rows:
                raise self._no_such_row(fragment, end - 1, f"the fragment has {rows} rows")
            if not (there := alive[offsets]).all():
                raise self._no_such_row(fragment, int(offsets[~there][0]), "the row is deleted")
            wanted = np.flatnonzero(alive[position:end]) + position
            position = end
            if len(wanted) == len(offsets):
                yield PositionedBatch(batch, offsets)
                continue
            at = np.searchsorted(offsets, wanted)
            lacking = offsets[at] != wanted
            self._check_missing(fragment, wanted[lacking])
            taken = batch.take(pa.array(at, mask=lacking))
            yield PositionedBatch(taken, wanted)
        rest = np.flatnonzero(alive[position:]) + position
        self._check_missing(fragment, rest)
        for start in range(0, len(rest), BATCH_ROWS):
            some = rest[start : start + BATCH_ROWS]
            nulls = [pa.nulls(len(some), field.type) for field in self.columns]
            yield PositionedBatch(pa.RecordBatch.from_arrays(nulls, names=self.columns.names), some)

    def _check_missing(self, fragment: Fragment, offsets: Offsets) -> None:
        if self.missing == "error" and len(offsets):
            raise missing_value_error(self._version, fragment.id, int(offsets[0]))

    def _no_such_row(self, fragment: Fragment, offset: int, why: str) -> InvalidInput:
        return InvalidInput(
            f"{self._version}: the data has a value for row {offset} of fragment {fragment.id} ({ROW_ADDRESS} "
            f"{_address(fragment.id, offset)}), and {why}. Is the address of another version? Then read the rows "
            "again, or say of which version they are with version="
        )

    def _about_twice(self, address: int) -> InvalidInput:
        number, offset = address >> _FRAGMENT_BITS, address & _OFFSETS
        if self.keys and number in self.fragments:
            part = self.header.snapshot_with([self.fragments[number]])
            (fragment,) = part.manifest.fragments
            for rows in live_rows(part, fragment, self.keys, part.manifest.schema):
                if len(at := np.flatnonzero(rows.offsets == offset)):
                    (key,) = rows.batch.slice(int(at[0]), 1).to_pylist()
                    named = " and ".join(f"{name} = {value!r}" for name, value in key.items())
                    return InvalidInput(
                        f"{self._version}: the data has the key {named} more than once. Which of its rows is meant "
                        "cannot be told; keep one of each"
                    )
        return InvalidInput(
            f"{self._version}: the data has row {offset} of fragment {number} ({ROW_ADDRESS} {address}) more than "
            "once. Which of the values is meant cannot be told; keep one of each"
        )

    @property
    def _version(self) -> str:
        return f"{self.header.uri} ({self.header.path})"


@dataclass(frozen=True, slots=True)
class KeysTask:
    """Runs in a worker: numbers of parts in, keys of live rows and where these are out."""

    header: VersionHeader
    partitions: tuple[tuple[bytes, ...], ...]
    keys: tuple[str, ...]
    transport: pa.Schema
    """The types of the keys on their way."""
    memory_bytes: int
    """About how much comes out."""

    @property
    def schema(self) -> pa.Schema:
        return self.transport.append(pa.field(ROW_ADDRESS, pa.int64()))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.header.stamp.check()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = self.header.snapshot_with(self.partitions[number])
                for fragment in part.manifest.fragments:
                    yield from self._of(part, fragment)

    def _of(self, part: Snapshot, fragment: Fragment) -> Iterator[pa.RecordBatch]:
        for rows in live_rows(part, fragment, self.keys, part.manifest.schema):
            if rows.batch.num_rows:
                keys = conform(rows.batch, self.transport, conversion=Conversion.OUTWARD, what=self.header.uri)
                addresses = pa.array(rows.offsets | (fragment.id << _FRAGMENT_BITS))
                yield pa.RecordBatch.from_arrays([*keys.columns, addresses], schema=self.schema)


def missing_value_error(version: str, fragment: int, offset: int) -> InvalidInput:
    return InvalidInput(
        f"{version}: the data has no value for row {offset} of fragment {fragment} ({ROW_ADDRESS} "
        f"{_address(fragment, offset)}). Give one for every row, or say missing='null'"
    )


def consecutive_runs(fragments: Sequence[int]) -> list[tuple[int, int, int]]:
    """Numbers that follow each other, as first, last and how many were before them.

    >>> runs([0, 1, 2, 7, 9, 10])
    [(0, 2, 0), (7, 7, 3), (9, 10, 4)]
    """
    found: list[tuple[int, int, int]] = []
    for place, number in enumerate(sorted(fragments)):
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number, found[-1][2])
        else:
            found.append((number, number, place))
    return found


def is_packed_vector(given: pa.DataType, stored: pa.DataType) -> bool:
    """Vectors may come as the bytes of their numbers, which travel many times faster than lists."""
    if not (kinds.is_binary(given) or kinds.is_large_binary(given)) or not kinds.is_fixed_size_list(stored):
        return False
    return bool(kinds.is_integer(stored.value_type) or kinds.is_floating(stored.value_type))


@dataclass(frozen=True, slots=True)
class _FragmentRows:
    """Rows of one fragment, ascending."""

    fragment: int
    offsets: Offsets
    batch: pa.RecordBatch
    """Without the addresses."""


class _NamedTwice(Exception):
    def __init__(self, address: int) -> None:
        super().__init__(address)
        self.address = address


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[_FragmentRows]:
    before = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.column(0).null_count:
            raise InvalidInput(ADDRESS_IS_NULL)
        addresses = batch.column(0).to_numpy().astype(np.int64)
        steps = np.diff(addresses, prepend=before)
        if int(addresses[0]) < 0:
            raise InvalidInput(f"the data has the {ROW_ADDRESS} {addresses[0]}, which no row can have")
        if (steps == 0).any():
            raise _NamedTwice(int(addresses[steps == 0][0]))
        if (steps < 0).any():
            raise StorageError("rows came to a worker out of order, and should have been sorted by their address")
        before = int(addresses[-1])
        values = batch.drop_columns([batch.schema.names[0]])
        numbers = addresses >> _FRAGMENT_BITS
        ends = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        start = 0
        for end in ends:
            offsets = addresses[start:end] & _OFFSETS
            yield _FragmentRows(int(numbers[start]), offsets, values.slice(start, end - start))
            start = end


def _as_given(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """In the order of the columns, with vectors that came as bytes."""
    arrays = []
    for array, field in zip(batch.columns, columns, strict=True):
        arrays.append(_unpacked(array, field) if is_packed_vector(array.type, field.type) else array)
    return pa.RecordBatch.from_arrays(arrays, names=columns.names)


def _unpacked(array: pa.Array, field: pa.Field) -> pa.Array:
    vector = field.type
    width = vector.list_size * vector.value_type.bit_width // 8
    try:
        fixed = array.cast(pa.binary(width))
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(
            f"column {field.name!r} is of {vector.list_size} {vector.value_type} each, which take {width} bytes; some "
            f"values have more or less: {error}",
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
