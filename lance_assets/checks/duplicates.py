"""Which keys are there twice, found in bounded memory, of any number of rows.

    fingerprints    64 bits of each row's key, in buckets by their first bits; on disk where they are many
    suspects        fingerprints that are there twice: each bucket is sorted by itself
    duplicates      the keys of suspects are read once more and compared themselves

Equal keys have equal fingerprints, so no suspects means no duplicates; different keys that share a fingerprint are told
apart in the end. As in an upsert, a key with a null in it equals nothing, and a NaN equals every NaN.
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
_BUFFERED_MAX = 1 << 22
"""Fingerprints in memory: 32 MiB of them, and as much for one bucket of 250 million rows."""
_SUSPECTS_PER_PASS = 10_000
_SECRET_LENGTH = 16

Fingerprints = npt.NDArray[np.uint64]
ReadBatches = Callable[[], Iterable[pa.RecordBatch]]
"""The key columns, from the beginning each time."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    rows: int
    with_null: int
    """Rows whose key has a null."""
    keys: tuple[tuple[object, ...], ...]
    """The first of those that are there more than once."""


def find_duplicates(read: ReadBatches, *, shown_max: int) -> Duplicates:
    secret = secrets.token_hex(_SECRET_LENGTH // 2)  # nobody can prepare keys that share a fingerprint
    rows = with_null = 0
    with tempfile.TemporaryDirectory(prefix="lance-keys-") as folder:
        buckets = _Buckets(Path(folder))
        for batch in read():
            fingerprints, _there = _fingerprints(batch, secret)
            rows += batch.num_rows
            with_null += batch.num_rows - len(fingerprints)
            buckets.add(fingerprints)
        found: list[tuple[object, ...]] = []
        for suspects in buckets.suspects():
            found += _confirm_duplicates(read(), suspects, secret, shown_max - len(found))
            if len(found) >= shown_max:
                break
    return Duplicates(rows, with_null, tuple(found))


class _Buckets:
    """Fingerprints by their first bits, so that equal ones meet."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / str(number) for number in range(_BUCKETS)]
        self._is_spilled = False
        self._buffered: list[Fingerprints] = []
        self._count = 0

    def add(self, fingerprints: Fingerprints) -> None:
        self._buffered.append(fingerprints)
        self._count += len(fingerprints)
        if self._count > _BUFFERED_MAX:
            self._spill()

    def suspects(self) -> Iterator[Fingerprints]:
        """Those that are there twice, a bounded number at a time, sorted."""
        waiting = np.empty(0, np.uint64)
        for bucket in self._buckets():
            bucket.sort()
            twice = np.unique(bucket[1:][bucket[1:] == bucket[:-1]])
            waiting = np.concatenate([waiting, twice])
            while len(waiting) >= _SUSPECTS_PER_PASS:
                yield np.sort(waiting[:_SUSPECTS_PER_PASS])
                waiting = waiting[_SUSPECTS_PER_PASS:]
        if len(waiting):
            yield np.sort(waiting)

    def _buckets(self) -> Iterator[Fingerprints]:
        if not self._is_spilled:
            yield np.concatenate([np.empty(0, np.uint64), *self._buffered])
            return
        self._spill()
        for file in self._files:
            yield np.fromfile(file, np.uint64)

    def _spill(self) -> None:
        self._is_spilled = True
        together = np.concatenate([np.empty(0, np.uint64), *self._buffered])
        self._buffered, self._count = [], 0
        numbers = (together >> np.uint64(58)).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        together, numbers = together[order], numbers[order]
        starts = np.searchsorted(numbers, np.arange(_BUCKETS + 1))
        for file, (start, stop) in zip(self._files, itertools.pairwise(starts.tolist()), strict=True):
            with open(file, "ab") as bucket:
                bucket.write(together[start:stop].tobytes())


def _confirm_duplicates(
    batches: Iterable[pa.RecordBatch], suspects: Fingerprints, secret: str, most: int
) -> list[tuple[object, ...]]:
    """Keys that are there twice, in the order in which their second row comes."""
    seen: dict[tuple[object, ...], int] = {}
    found: list[tuple[object, ...]] = []
    for batch in batches:
        if not len(suspects):
            return found
        fingerprints, there = _fingerprints(batch, secret)
        at = np.minimum(np.searchsorted(suspects, fingerprints), len(suspects) - 1)
        is_suspect = suspects[at] == fingerprints
        rows = np.flatnonzero(there)[is_suspect]
        if not len(rows):
            continue
        picked = batch.take(pa.array(rows))
        shown = zip(*(column.to_pylist() for column in picked.columns), strict=True)
        proven = set()
        each = zip(_normalized_keys(picked), shown, fingerprints[is_suspect].tolist(), strict=True)
        for compared, key, fingerprint in each:
            seen[compared] = seen.get(compared, 0) + 1
            if seen[compared] == 2:
                found.append(key)
                proven.add(fingerprint)
                if len(found) == most:
                    return found
        # The other rows of a key that was found need not be looked at, however many there are.
        suspects = np.setdiff1d(suspects, np.array(list(proven), np.uint64))
    return found


def _normalized_keys(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    columns = [_normalize(column) for column in batch.columns]
    return zip(*(each.to_pylist() for each in columns), strict=True)


def _fingerprints(batch: pa.RecordBatch, secret: str) -> tuple[Fingerprints, npt.NDArray[np.bool_]]:
    """Of the rows whose key has no null, and which rows those are."""
    there = np.ones(batch.num_rows, np.bool_)
    for column in batch.columns:
        if column.null_count:
            there &= np.asarray(column.is_valid())
    kept = batch if there.all() else batch.filter(pa.array(there))
    together = np.zeros(kept.num_rows, np.uint64)
    for column in kept.columns:
        hashed = _hash_column(_normalize(column), secret)
        together = _mix_bits(together * np.uint64(3) + hashed)
    return together, there


def _hash_column(column: pa.Array, secret: str) -> Fingerprints:
    if pa.types.is_integer(column.type):
        numbers = column.cast(pa.uint64() if pa.types.is_unsigned_integer(column.type) else pa.int64())
        salt = np.uint64(int.from_bytes(secret[:8].encode()))
        return _mix_bits(np.asarray(numbers).view(np.uint64) ^ salt)
    values = np.asarray(column.to_pylist(), dtype=object)
    return np.asarray(pd.util.hash_array(values, hash_key=secret, categorize=False))


def _mix_bits(numbers: Fingerprints) -> Fingerprints:
    """Each number to another, far from its neighbours: the finalizer of splitmix64, which loses nothing."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)), dtype=np.uint64)


def _normalize(column: pa.Array) -> pa.Array:
    """As whole numbers, or as bytes, that are equal where keys are."""
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
    raise InvalidInput(f"a column of type {kind} is no key; name columns of numbers, texts, dates or bytes")


def _float_bits(floats: pa.Array) -> pa.Array:
    values = np.asarray(floats.cast(pa.float64() if pa.types.is_float64(floats.type) else pa.float32()).fill_null(0))
    alike = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    bits = alike.view(np.uint64 if alike.dtype == np.float64 else np.uint32)
    return pa.array(bits, mask=np.asarray(floats.is_null()))


def check_key_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    """That these columns can be keys, before any is read."""
    for name in names:
        if name in schema.names:
            _normalize(pa.nulls(0, schema.field(name).type))
