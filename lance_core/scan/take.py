"""Take: reads rows by offset among the live rows, by row id or by row address.

Rows are returned in the requested order, and as often as requested. Rows that do not exist raise an error that names
them. Each fragment that holds any of the rows is read once, concurrently with others. Start with `take`.
"""

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.open_fragment import rows_without_columns
from lance_core.errors import InvalidInput
from lance_core.format.manifest import Manifest
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.format.sorted_unique import sorted_unique
from lance_core.scan.morsels import LiveFragment, is_joined, manifest_path
from lance_core.scan.parallel import map_in_order, threads_of
from lance_core.scan.reader_cache import ReaderCache
from lance_core.storage.local import LocalStore
from lance_core.versions.location import Location

_LISTED_MAX = 5
_OFFSET_BITS = 32
_SEQUENTIAL_ROWS_MAX = 256
_JOINED_MAX = 32

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Group: TypeAlias = tuple[LiveFragment, Ints]
"""A fragment and the offsets of the rows that are read of it."""
RowNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer] | pa.Array | pa.ChunkedArray


class By(enum.Enum):
    """Meaning of row numbers."""

    OFFSET = "offset"
    ROW_ID = "row_id"
    ROW_ADDRESS = "row_address"

    @classmethod
    def of(cls, text: str) -> "By":
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(repr(each.value) for each in cls)
            raise InvalidInput(f"by={text!r} must be one of {known}") from None


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Positions of rows, in the requested order."""

    fragments: Ints
    """Index of the fragment in the version, for each row."""
    offsets: Ints
    """Physical offset in that fragment, for each row."""


def take(
    location: Location, manifest: Manifest, rows: RowNumbers, columns: Sequence[str] | None, *, by: By
) -> pa.Table:
    """Read the rows with these numbers."""
    return take_positions(location, manifest, locate_rows(location, manifest, rows, by=by), columns)


def take_positions(
    location: Location, manifest: Manifest, positions: RowPositions, columns: Sequence[str] | None
) -> pa.Table:
    """Read the live rows at these positions. The caller ensures that the positions exist."""
    cache = ReaderCache.of(location, manifest)
    plan = cache.plan_columns(columns)
    reader = cache.row_reader(plan, None)
    requested = scan_order_keys(positions)
    if not plan.output:
        return pa.Table.from_batches([rows_without_columns(len(requested))])
    is_ascending = bool((requested[1:] > requested[:-1]).all())
    keys = requested if is_ascending else sorted_unique(requested)
    groups = group_by_fragment(location, manifest, keys)
    if len(keys) <= _SEQUENTIAL_ROWS_MAX and isinstance(location.store, LocalStore):
        # Threads take longer to start than a local disk takes to return a few rows.
        pending = [reader.begin_pick(*each) for each in groups]
        batches: Iterable[pa.RecordBatch] = (finish() for finish in pending)
    else:
        batches = map_in_order(reader.pick_all, _joined_groups(groups), threads=threads_of(location.own_store))
    rows_table = pa.Table.from_batches(batches, plan.schema).combine_chunks()
    return rows_table if is_ascending else rows_table.take(pa.array(np.searchsorted(keys, requested)))


def _joined_groups(groups: Iterable[Group]) -> Iterator[list[Group]]:
    """Yield the fragments that are read together: small ones, up to a number of them."""
    for is_small, neighbours in itertools.groupby(groups, key=lambda group: is_joined(group[0].fragment)):
        remaining = iter(neighbours)
        while together := list(itertools.islice(remaining, _JOINED_MAX if is_small else 1)):
            yield together


def take_vectors(
    location: Location, manifest: Manifest, addresses: npt.NDArray[np.uint64], column: str
) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of the vectors at addresses of rows in scan order, one vector a row; `None` if a file does not
    store them unchanged, so that only `take` can read them."""
    cache = ReaderCache.of(location, manifest)
    reader = cache.row_reader(cache.plan_columns([column]), None)
    numbers, exists = _fragment_numbers(cache, (addresses >> np.uint64(_OFFSET_BITS)).astype(np.int64))
    assert exists.all()
    keys = scan_order_keys(RowPositions(numbers, (addresses & np.uint64((1 << _OFFSET_BITS) - 1)).astype(np.int64)))
    parts = []
    for fragment, offsets in group_by_fragment(location, manifest, keys):
        part = reader.pick_vectors(fragment, offsets)
        if part is None:
            return None
        parts.append(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else None


def locate_rows(location: Location, manifest: Manifest, rows: RowNumbers, *, by: By) -> RowPositions:
    """Return the positions of rows. Raises `InvalidInput`, which names those that do not exist."""
    numbers = _to_int64(rows)
    if by is By.OFFSET:
        return _locate_by_offset(location, manifest, numbers)
    if by is By.ROW_ID and manifest.has_stable_row_ids:
        return _locate_by_id(location, manifest, numbers)
    return _locate_by_address(location, manifest, numbers, "row address" if by is By.ROW_ADDRESS else "row id")


def rows_exist(location: Location, manifest: Manifest, rows: RowNumbers, *, by: By) -> Mask:
    """Return whether each row with these row ids or addresses exists."""
    numbers = _to_int64(rows)
    if by is By.ROW_ID and manifest.has_stable_row_ids:
        addresses = build_row_id_index(location, manifest).locate_rows(numbers.astype(np.uint64))
        return addresses.is_known & (numbers >= 0)
    return _find_addresses(location, manifest, numbers)[1]


def scan_order_keys(positions: RowPositions) -> Ints:
    """Return one number per position, ascending in scan order."""
    return (positions.fragments << _OFFSET_BITS) | positions.offsets


def group_by_fragment(location: Location, manifest: Manifest, keys: Ints) -> Iterator[tuple[LiveFragment, Ints]]:
    """Yield the fragments of ascending keys, each with the offsets in it."""
    numbers = keys >> _OFFSET_BITS
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, stop in itertools.pairwise([*starts, len(keys)]):
        fragment = manifest.fragments[int(numbers[start])]
        yield ReaderCache.of(location, manifest).fragment(fragment), keys[start:stop] & ((1 << _OFFSET_BITS) - 1)


def build_row_id_index(location: Location, manifest: Manifest) -> RowIdIndex:
    """Return an index from row id to address over all live rows."""
    manifest.check_ids()
    path = manifest_path(location, manifest)

    def row_ids_of(number: int) -> FragmentRowIds:
        fragment = LiveFragment(location, manifest, manifest.fragments[number])
        deleted = fragment.deletions
        return FragmentRowIds(
            fragment.fragment.id, fragment.system_columns.row_id_sequence, deleted.offsets if deleted else None
        )

    return RowIdIndex(list(map_in_order(row_ids_of, range(len(manifest.fragments)))), path=path)


def _locate_by_offset(location: Location, manifest: Manifest, numbers: Ints) -> RowPositions:
    ends = np.cumsum(ReaderCache.of(location, manifest).live_rows)
    total = int(ends[-1]) if len(ends) else 0
    _check_found(numbers, (numbers >= 0) & (numbers < total), "offset", location, manifest)
    number = np.searchsorted(ends, numbers, side="right")
    offsets = numbers - np.concatenate([[0], ends])[number]
    for each in np.unique(number):
        if manifest.fragments[int(each)].deletion_file is not None:
            deletions = LiveFragment(location, manifest, manifest.fragments[int(each)]).deletions
            is_here = number == each
            offsets[is_here] = (
                offsets[is_here] if deletions is None else deletions.to_physical_offsets(offsets[is_here])
            )
    return RowPositions(number, offsets)


def _locate_by_address(location: Location, manifest: Manifest, addresses: Ints, label: str) -> RowPositions:
    positions, exists = _find_addresses(location, manifest, addresses)
    _check_found(addresses, exists, label, location, manifest)
    return positions


def _find_addresses(location: Location, manifest: Manifest, addresses: Ints) -> tuple[RowPositions, Mask]:
    """Return the positions of addresses, and a mask of those that have a live row."""
    fragment_ids, offsets = addresses >> _OFFSET_BITS, addresses & ((1 << _OFFSET_BITS) - 1)
    cache = ReaderCache.of(location, manifest)
    number, exists = _fragment_numbers(cache, fragment_ids)
    rows = cache.physical_rows
    if len(rows):
        exists &= offsets < rows[number]
    for each in sorted_unique(number[exists]).tolist():
        deletions = cache.fragment(manifest.fragments[each]).deletions
        if deletions is not None:
            rows_here = np.flatnonzero(exists & (number == each))
            exists[rows_here] = ~np.isin(offsets[rows_here], deletions.offsets)
    return RowPositions(number, offsets), exists


def _locate_by_id(location: Location, manifest: Manifest, row_ids: Ints) -> RowPositions:
    addresses = build_row_id_index(location, manifest).locate_rows(row_ids.astype(np.uint64))
    _check_found(row_ids, addresses.is_known & (row_ids >= 0), "row id", location, manifest)
    number, _ = _fragment_numbers(ReaderCache.of(location, manifest), addresses.fragment_ids.astype(np.int64))
    return RowPositions(number, addresses.offsets.astype(np.int64))


def _fragment_numbers(cache: ReaderCache, fragment_ids: Ints) -> tuple[Ints, Mask]:
    """Return the index of each fragment id in the version, and a mask of the ids that exist."""
    ids = cache.ordered_fragment_ids
    if not len(ids):
        return np.zeros_like(fragment_ids), np.zeros(len(fragment_ids), dtype=np.bool_)
    places = np.minimum(np.searchsorted(ids, fragment_ids), len(ids) - 1)
    return cache.fragment_order[places], ids[places] == fragment_ids


def _to_int64(rows: RowNumbers) -> Ints:
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        if rows.null_count or not pa.types.is_integer(rows.type):
            problem = "one of them is null" if pa.types.is_integer(rows.type) else f"these are {rows.type}"
            raise InvalidInput(f"rows must be a list of integers; {problem}")
        rows = rows.to_numpy()
    try:
        numbers: npt.NDArray[np.integer] = np.asarray(rows)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"rows must be a list of integers: {error}") from error
    if not numbers.size:
        return np.zeros(0, dtype=np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidInput(f"rows must be a list of integers; these are {numbers.dtype}")
    if numbers.dtype == np.uint64 and (large := numbers[numbers >= 2**63]).size:
        raise InvalidInput(f"row {large[0]} does not exist")
    return numbers.astype(np.int64)


def _check_found(numbers: Ints, exists: Mask, label: str, location: Location, manifest: Manifest) -> None:
    if exists.all():
        return
    missing = list(dict.fromkeys(numbers[~exists].tolist()))
    more = f" and {len(missing) - _LISTED_MAX} more" if len(missing) > _LISTED_MAX else ""
    raise InvalidInput(
        f"{location.uri}: version {manifest.version} has no live row with {label} "
        f"{', '.join(map(str, missing[:_LISTED_MAX]))}{more}; it has {manifest.row_count()} live rows"
    )
