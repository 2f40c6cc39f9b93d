"""Duplicate detection: finds keys that occur more than once, in bounded memory, for any number of rows.

    fingerprints    64-bit hash of each row's key, in buckets by their first bits; spilled to disk if there are many
    suspects        fingerprints that occur more than once; each bucket is sorted by itself
    duplicates      the keys of suspects are read once more and compared by value

Equal keys have equal fingerprints, so no suspects means no duplicates; the last step separates different keys that
share a fingerprint. As in an upsert, a key that contains a null equals nothing, and a NaN equals every NaN.
"""

import itertools
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from lance_core import InvalidInput

_BUCKETS = 64
BUFFERED_MAX = 1 << 22
"""Fingerprints in memory: 32 MiB of them, and as much for one bucket of 250 million rows."""
SUSPECTS_PER_PASS = 10_000
_SECRET_LENGTH = 16

Fingerprints = npt.NDArray[np.uint64]
ReadBatches = Callable[[], Iterable[pa.RecordBatch]]
"""Function that reads the key columns from the beginning at each call."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Duplicate keys among a number of rows."""

    rows: int
    with_null: int
    """Rows whose key contains a null."""
    keys: tuple[tuple[object, ...], ...]
    """The first duplicate keys."""


def find_duplicates(read: ReadBatches, *, shown_max: int) -> Duplicates:
    """Return the first `shown_max` duplicate keys, and the number of rows read."""
    secret = secrets.token_hex(_SECRET_LENGTH // 2)  # prevents prepared keys that share a fingerprint
    rows = with_null = 0
    with tempfile.TemporaryDirectory(prefix="lance-keys-") as folder:
        buckets = _Buckets(Path(folder))
        for batch in read():
            fingerprints, _has_key = _fingerprints(batch, secret)
            rows += batch.num_rows
            with_null += batch.num_rows - len(fingerprints)
            buckets.add(fingerprints)
        keys: list[tuple[object, ...]] = []
        for suspects in buckets.suspects():
            keys += _confirm_duplicates(read(), suspects, secret, shown_max - len(keys))
            if len(keys) >= shown_max:
                break
    return Duplicates(rows, with_null, tuple(keys))


class _Buckets:
    """Fingerprints partitioned by their first bits, so that equal ones are in the same bucket."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / str(number) for number in range(_BUCKETS)]
        self._is_spilled = False
        self._buffered: list[Fingerprints] = []
        self._count = 0

    def add(self, fingerprints: Fingerprints) -> None:
        self._buffered.append(fingerprints)
        self._count += len(fingerprints)
        if self._count > BUFFERED_MAX:
            self._spill()

    def suspects(self) -> Iterator[Fingerprints]:
        """Yield fingerprints that occur more than once, in sorted arrays of bounded size."""
        pending = np.empty(0, np.uint64)
        for bucket in self._buckets():
            bucket.sort()
            repeated = np.unique(bucket[1:][bucket[1:] == bucket[:-1]])
            pending = np.concatenate([pending, repeated])
            while len(pending) >= SUSPECTS_PER_PASS:
                yield np.sort(pending[:SUSPECTS_PER_PASS])
                pending = pending[SUSPECTS_PER_PASS:]
        if len(pending):
            yield np.sort(pending)

    def _buckets(self) -> Iterator[Fingerprints]:
        if not self._is_spilled:
            yield np.concatenate([np.empty(0, np.uint64), *self._buffered])
            return
        self._spill()
        for file in self._files:
            yield np.fromfile(file, np.uint64)

    def _spill(self) -> None:
        self._is_spilled = True
        fingerprints = np.concatenate([np.empty(0, np.uint64), *self._buffered])
        self._buffered, self._count = [], 0
        numbers = (fingerprints >> np.uint64(58)).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        fingerprints, numbers = fingerprints[order], numbers[order]
        starts = np.searchsorted(numbers, np.arange(_BUCKETS + 1))
        for file, (start, stop) in zip(self._files, itertools.pairwise(starts.tolist()), strict=True):
            with open(file, "ab") as bucket:
                bucket.write(fingerprints[start:stop].tobytes())


def _confirm_duplicates(
    batches: Iterable[pa.RecordBatch], suspects: Fingerprints, secret: str, most: int
) -> list[tuple[object, ...]]:
    """Return keys of suspects that occur more than once, at most `most`, in the order of their second rows."""
    occurrences: dict[tuple[object, ...], int] = {}
    duplicates: list[tuple[object, ...]] = []
    for batch in batches:
        if not len(suspects):
            return duplicates
        fingerprints, has_key = _fingerprints(batch, secret)
        positions = np.minimum(np.searchsorted(suspects, fingerprints), len(suspects) - 1)
        is_suspect = suspects[positions] == fingerprints
        rows = np.flatnonzero(has_key)[is_suspect]
        if not len(rows):
            continue
        suspect_rows = batch.take(pa.array(rows))
        keys = zip(*(column.to_pylist() for column in suspect_rows.columns), strict=True)
        confirmed = set()
        for normalized, key, fingerprint in zip(
            _normalized_keys(suspect_rows), keys, fingerprints[is_suspect].tolist(), strict=True
        ):
            occurrences[normalized] = occurrences.get(normalized, 0) + 1
            if occurrences[normalized] == 2:
                duplicates.append(key)
                confirmed.add(fingerprint)
                if len(duplicates) == most:
                    return duplicates
        # A confirmed key may have any number of further rows, which need no comparison.
        suspects = np.setdiff1d(suspects, np.array(list(confirmed), np.uint64))
    return duplicates


def _normalized_keys(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    columns = [_normalize(column) for column in batch.columns]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _fingerprints(batch: pa.RecordBatch, secret: str) -> tuple[Fingerprints, npt.NDArray[np.bool_]]:
    """Return the fingerprints of the rows whose key has no null, and a mask of those rows."""
    has_key = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        if column.null_count:
            has_key &= np.asarray(column.is_valid())
    rows_with_key = batch if has_key.all() else batch.filter(pa.array(has_key))
    fingerprints = np.zeros(rows_with_key.num_rows, np.uint64)
    for column in rows_with_key.columns:
        hashed = _hash_column(_normalize(column), secret)
        fingerprints = mix_bits(fingerprints * np.uint64(3) + hashed)
    return fingerprints, has_key


def _hash_column(column: pa.Array, secret: str) -> Fingerprints:
    if pa.types.is_integer(column.type):
        numbers = column.cast(pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64())
        salt = np.uint64(int.from_bytes(secret[:8].encode()))
        return mix_bits(np.asarray(numbers).view(np.uint64) ^ salt)
    values = np.asarray(column.to_pylist(), dtype=object)
    return np.asarray(pd.util.hash_array(values, hash_key=secret, categorize=False))


def mix_bits(numbers: Fingerprints) -> Fingerprints:
    """Map each number to another one, far from those of its neighbours: the finalizer of splitmix64, which is a
    bijection."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)), dtype=np.uint64)


def _normalize(column: pa.Array) -> pa.Array:
    """Return the column as integers, texts or bytes that are equal if and only if the keys are."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _normalize(column.dictionary_decode())
    if pa.types.is_floating(kind):
        return _float_bits(column)
    if pa.types.is_boolean(kind):
        return column.cast(pa.uint8())
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32())
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return column.cast(pa.int64())
    if pa.types.is_integer(kind):
        return column
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    raise InvalidInput(f"a column of type {kind} cannot be a key; name columns of numbers, texts, dates or bytes")


def _float_bits(floats: pa.Array) -> pa.Array:
    values = np.asarray(floats.cast(pa.float64() if pa.types.is_float64(floats.type) else pa.float32()).fill_null(0))
    one_nan = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    bits = one_nan.view(np.uint64 if one_nan.dtype == np.float64 else np.uint32)
    return pa.array(bits, mask=np.asarray(floats.is_null()))


def check_key_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    """Raise `InvalidInput` if a column has a type that cannot be a key, before any row is read."""
    for name in names:
        if name in schema.names:
            _normalize(pa.nulls(0, schema.field(name).type))
