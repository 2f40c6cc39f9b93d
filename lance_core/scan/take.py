"""Rows picked by where they are: by offset among the live rows, by row id, by row address.

They come in the order asked for, as often as asked for. A row that is not there is an error that names it. Each
fragment that holds any of them is read once, by a few threads.
"""

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.open_fragment import rows_without_columns
from lance_core.errors import Corrupt, InvalidInput
from lance_core.format.manifest import Manifest
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.scan.morsels import LiveFragment, manifest_path
from lance_core.scan.parallel import map_in_order
from lance_core.scan.plan import plan_columns
from lance_core.scan.row_reader import RowReader
from lance_core.versions.location import Location

_LISTED_MAX = 5
_OFFSET_BITS = 32
_ROWS_MAX = 2**_OFFSET_BITS - 1
"""Of one fragment."""

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
RowNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer] | pa.Array | pa.ChunkedArray


class By(enum.Enum):
    """What the numbers of rows mean."""

    OFFSET = "offset"
    ROW_ID = "row_id"
    ROW_ADDRESS = "row_address"

    @classmethod
    def of(cls, text: str) -> "By":
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(repr(each.value) for each in cls)
            raise InvalidInput(f"by={text!r}: rows are picked by one of {known}") from None


@dataclass(frozen=True, slots=True)
class RowPositions:
    """Where rows are, in the order asked for."""

    fragments: Ints
    """By their number in the version."""
    offsets: Ints
    """Physical."""


def take(
    location: Location, manifest: Manifest, rows: RowNumbers, columns: Sequence[str] | None, *, by: By
) -> pa.Table:
    plan = plan_columns(manifest, columns)
    reading = RowReader(location, plan)
    places = locate_rows(location, manifest, rows, by=by)
    keys, order = np.unique(scan_order_keys(places), return_inverse=True)
    if not plan.output:
        return pa.Table.from_batches([rows_without_columns(len(order))])
    batches = map_in_order(lambda each: reading.pick(*each), group_by_fragment(location, manifest, keys))
    found = pa.Table.from_batches(batches, plan.schema).combine_chunks()
    return found if len(order) == len(keys) and (order[1:] > order[:-1]).all() else found.take(pa.array(order))


def locate_rows(location: Location, manifest: Manifest, rows: RowNumbers, *, by: By) -> RowPositions:
    """Raises `InvalidInput` that names those that are not there."""
    wanted = _to_int64(rows)
    if by is By.OFFSET:
        return _locate_by_offset(location, manifest, wanted)
    if by is By.ROW_ID and manifest.has_stable_row_ids:
        return _locate_by_id(location, manifest, wanted)
    return _locate_by_address(location, manifest, wanted, "row address" if by is By.ROW_ADDRESS else "row id")


def scan_order_keys(places: RowPositions) -> Ints:
    """A number for each place, in the order of a scan."""
    return (places.fragments << _OFFSET_BITS) | places.offsets


def group_by_fragment(location: Location, manifest: Manifest, keys: Ints) -> Iterator[tuple[LiveFragment, Ints]]:
    """The fragments of ascending keys, each with the offsets in it."""
    numbers = keys >> _OFFSET_BITS
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for start, stop in itertools.pairwise([*starts, len(keys)]):
        fragment = manifest.fragments[int(numbers[start])]
        yield LiveFragment(location, manifest, fragment), keys[start:stop] & ((1 << _OFFSET_BITS) - 1)


def build_row_id_index(location: Location, manifest: Manifest) -> RowIdIndex:
    """Over all live rows."""
    manifest.check_ids()
    path = manifest_path(location, manifest)

    def known(number: int) -> FragmentRowIds:
        each = LiveFragment(location, manifest, manifest.fragments[number])
        deleted = each.deletions
        return FragmentRowIds(each.fragment.id, each.system_columns.row_id_sequence, deleted.offsets if deleted else None)

    return RowIdIndex(list(map_in_order(known, range(len(manifest.fragments)))), path=path)


def _locate_by_offset(location: Location, manifest: Manifest, wanted: Ints) -> RowPositions:
    ends = np.cumsum(_row_counts(manifest, live=True))
    total = int(ends[-1]) if len(ends) else 0
    _check_found(wanted, (wanted >= 0) & (wanted < total), "offset", location, manifest)
    number = np.searchsorted(ends, wanted, side="right")
    offsets = wanted - np.concatenate([[0], ends])[number]
    for each in np.unique(number):
        if manifest.fragments[int(each)].deletion_file is not None:
            deletions = LiveFragment(location, manifest, manifest.fragments[int(each)]).deletions
            here = number == each
            offsets[here] = offsets[here] if deletions is None else deletions.to_physical_offsets(offsets[here])
    return RowPositions(number, offsets)


def _locate_by_address(location: Location, manifest: Manifest, wanted: Ints, what: str) -> RowPositions:
    fragment_ids, offsets = wanted >> _OFFSET_BITS, wanted & ((1 << _OFFSET_BITS) - 1)
    number, found = _fragment_numbers(manifest, fragment_ids)
    rows = _row_counts(manifest, live=False)
    if len(rows):
        found &= offsets < rows[number]
    for each in np.unique(number[found]):
        deletions = LiveFragment(location, manifest, manifest.fragments[int(each)]).deletions
        if deletions is not None:
            here = np.flatnonzero(found & (number == each))
            found[here] = ~np.isin(offsets[here], deletions.offsets)
    _check_found(wanted, found, what, location, manifest)
    return RowPositions(number, offsets)


def _locate_by_id(location: Location, manifest: Manifest, wanted: Ints) -> RowPositions:
    places = build_row_id_index(location, manifest).locate_rows(wanted.astype(np.uint64))
    _check_found(wanted, places.is_known & (wanted >= 0), "row id", location, manifest)
    number, _ = _fragment_numbers(manifest, places.fragment_ids.astype(np.int64))
    return RowPositions(number, places.offsets.astype(np.int64))


def _fragment_numbers(manifest: Manifest, fragment_ids: Ints) -> tuple[Ints, Mask]:
    """The number of each fragment in the version, and whether it is there at all."""
    manifest.check_ids()
    ids = np.fromiter((each.id for each in manifest.message.fragments), dtype=np.int64)
    if not len(ids):
        return np.zeros_like(fragment_ids), np.zeros(len(fragment_ids), dtype=np.bool_)
    order = np.argsort(ids, kind="stable")
    number = order[np.minimum(np.searchsorted(ids[order], fragment_ids), len(ids) - 1)]
    return number, ids[number] == fragment_ids


def _row_counts(manifest: Manifest, *, live: bool) -> Ints:
    fragments = manifest.message.fragments
    if live:
        counts = [each.physical_rows - each.deletion_file.num_deleted_rows for each in fragments]
    else:
        counts = [each.physical_rows for each in fragments]
    for count in (min(counts, default=0), max(counts, default=0)):
        if not 0 <= count <= _ROWS_MAX:
            broken = fragments[counts.index(count)].id
            what = f"fragment {broken} would have {count} rows; examine the table with fsck()"
            raise Corrupt(what, path=manifest.path, field=f"fragments[id={broken}]")
    return np.array(counts, dtype=np.int64)


def _to_int64(rows: RowNumbers) -> Ints:
    if isinstance(rows, pa.Array | pa.ChunkedArray):
        if rows.null_count or not pa.types.is_integer(rows.type):
            kind = "one of these is null" if pa.types.is_integer(rows.type) else f"these are {rows.type}"
            raise InvalidInput(f"rows are picked by whole numbers, a list of them; {kind}")
        rows = rows.to_numpy()
    try:
        numbers: npt.NDArray[np.integer] = np.asarray(rows)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"rows are picked by whole numbers, a list of them: {error}") from error
    if not numbers.size:
        return np.zeros(0, dtype=np.int64)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidInput(f"rows are picked by whole numbers, a list of them; these are {numbers.dtype}")
    if numbers.dtype == np.uint64 and (large := numbers[numbers >= 2**63]).size:
        raise InvalidInput(f"there is no row {large[0]}")
    return numbers.astype(np.int64)


def _check_found(wanted: Ints, found: Mask, what: str, location: Location, manifest: Manifest) -> None:
    if found.all():
        return
    missing = list(dict.fromkeys(wanted[~found].tolist()))
    more = f" and {len(missing) - _LISTED_MAX} more" if len(missing) > _LISTED_MAX else ""
    raise InvalidInput(
        f"{location.uri}: version {manifest.version} has no live row with {what} "
        f"{', '.join(map(str, missing[:_LISTED_MAX]))}{more}; it has {manifest.row_count()} live rows"
    )
