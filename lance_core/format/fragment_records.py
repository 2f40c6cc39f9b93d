"""Fragment records: the encoded fragments of a version, which are found, compared and replaced without being parsed.

A protobuf message is a sequence of records, and a parser keeps a field of the type `bytes` as it is. `FragmentRecords`
declares the fragments of a manifest as such fields, so fifty thousand of them are split in half a millisecond, where
parsing them takes twenty and a Python object for each takes two hundred. A change of a few fragments parses only these,
and the others pass through as bytes: the work of a commit follows what it changes, not the size of the table.

Ids and flags of all fragments are read at once: a parser that expects a single fragment merges its occurrences, so the
ids become one array, and the merged message has a deletion file if any fragment has one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as FieldType
from google.protobuf.message import DecodeError, Message

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId

_EDITED_IN_PLACE_MAX = 16
"""Removing a record from a list moves all records after it, so more of them are removed by copying the list."""
_SEARCHES_MAX = 100
"""More searches than these are made in a dictionary of all ids."""
_BLOCK_BYTES = 1 << 20
_FRAGMENTS = table_pb2.Manifest.DESCRIPTOR.fields_by_name["fragments"].number
_Ids = npt.NDArray[np.uint64]


class FragmentRecords:
    """Encoded fragments of a version, in scan order; never changed in place."""

    def __init__(self, manifest: bytes, *, path: str) -> None:
        """`manifest` is an encoded manifest message, or the result of `encode`."""
        self.path = path
        self._searches = 0
        try:
            message: Any = _RECORDS_TYPE.FromString(manifest)
        except DecodeError as error:
            raise unparsable_fragment_error(path) from error
        message.DiscardUnknownFields()  # all other fields of the manifest
        self._message = message

    def __len__(self) -> int:
        return len(self._message.records)

    def __iter__(self) -> Iterator[Fragment]:
        return (self[position] for position in range(len(self)))

    def encode(self) -> bytes:
        """Return the fragments as they stand in a manifest message."""
        return cast(bytes, self._message.SerializeToString())

    def __getitem__(self, position: int) -> Fragment:
        """Return the fragment at a position."""
        return _parse(self._message.records[position], self.path)

    @cached_property
    def _merged(self) -> Any:
        """All fragments, merged into one message."""
        try:
            return cast(Any, _MERGED_TYPE.FromString(self.encode())).merged
        except DecodeError as error:
            raise unparsable_fragment_error(self.path) from error

    @cached_property
    def has_deletion_files(self) -> bool:
        """True if any fragment has one."""
        return bool(self._merged.HasField("deletion_file"))

    @cached_property
    def has_overlays(self) -> bool:
        """True if any fragment has one."""
        return bool(self._merged.HasField("overlays"))

    @cached_property
    def ids(self) -> _Ids:
        """Ids of the fragments, in scan order."""
        listed = self._merged.ids
        ids = np.fromiter(listed, np.uint64, len(listed))
        if len(ids) + 1 == len(self) and self[0].id == 0:  # an encoder omits zero
            return np.concatenate([np.zeros(1, np.uint64), ids])
        if len(ids) != len(self):
            ids = np.fromiter((self[position].id for position in range(len(self))), np.uint64, len(self))
        return ids

    def count_rows(self) -> int | None:
        """Return the number of rows; `None` if rows are deleted, a fragment does not record its rows, or ids do not
        ascend, so that the fragments have to be counted one by one."""
        listed = self._merged.physical_rows
        if self.has_deletion_files or len(listed) != len(self) or not all(listed) or not self.are_ascending:
            return None
        return int(sum(listed))

    @cached_property
    def are_ascending(self) -> bool:
        """True if each fragment has a higher id than the one before it, as writers list them."""
        return bool((self.ids[1:] > self.ids[:-1]).all())

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.ids, kind="stable")

    def find_repeated_id(self) -> int | None:
        """Return an id that several fragments have; `None` if there is none."""
        if self.are_ascending:
            return None
        ordered = self.ids[self._order]
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        return int(repeated[0]) if len(repeated) else None

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {fragment_id: position for position, fragment_id in enumerate(self.ids.tolist())}

    def position_of(self, fragment_id: int) -> int | None:
        """Return the position of the fragment with an id; `None` if there is none."""
        self._searches += 1
        if self._searches > _SEARCHES_MAX:
            return self._positions.get(fragment_id)
        if fragment_id < 0:
            return None
        wanted = np.uint64(fragment_id)
        order = None if self.are_ascending else self._order
        found = int(np.searchsorted(self.ids, wanted, sorter=order))
        if found == len(self):
            return None
        position = found if order is None else int(order[found])
        return position if self.ids[position] == wanted else None

    def find(self, fragment_id: int) -> Fragment | None:
        """Return the fragment with an id; `None` if there is none."""
        position = self.position_of(fragment_id)
        if position is None:
            return None
        fragment = self[position]
        if fragment.id != fragment_id:  # the fragment has its id twice
            raise unparsable_fragment_error(self.path)
        return fragment

    def with_edits(
        self, changed: Mapping[int, Fragment], removed: Iterable[int], added: Sequence[table_pb2.DataFragment]
    ) -> "FragmentRecords":
        """Return records with the changed fragments in place of those at their positions, without those at the removed
        positions, and with the added ones. They are in ascending order of their ids."""
        edited = FragmentRecords(self.encode(), path=self.path)
        records = edited._message.records
        for position, fragment in changed.items():
            records[position] = fragment.encode()
        ids, positions = self.ids, sorted(removed)
        if positions:
            ids = np.delete(ids, positions)
            if len(positions) <= _EDITED_IN_PLACE_MAX:
                for position in reversed(positions):
                    del records[position]
            else:
                kept = np.delete(np.arange(len(self)), positions).tolist()
                records[:] = [records[position] for position in kept]
        records.extend(fragment.SerializeToString() for fragment in added)
        ids = np.concatenate([ids, np.fromiter((fragment.id for fragment in added), np.uint64, len(added))])
        if not (ids[1:] > ids[:-1]).all():
            ordered = np.argsort(ids, kind="stable").tolist()
            records[:] = [records[position] for position in ordered]
            ids = np.sort(ids)
        edited.ids = ids
        new = [*(fragment.message for fragment in changed.values()), *added]
        if not self.has_deletion_files:
            edited.has_deletion_files = any(fragment.HasField("deletion_file") for fragment in new)
        if not self.has_overlays:
            edited.has_overlays = any(fragment.overlays for fragment in new)
        return edited

    def _boundaries(self) -> npt.NDArray[np.int64]:
        """Return the positions in the encoding at which a record begins, and the end of the encoding."""
        sizes = np.fromiter(map(len, self._message.records), np.int64, len(self))
        digits = np.ones(len(self), np.int64)
        for shift in (7, 14, 21, 28):
            digits += sizes >> shift > 0
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes + digits + 1)])


class EditedFragments(Mapping[FragmentId, Fragment]):
    """Fragments of a version, by id, and the changes that the next version makes to them."""

    def __init__(self, records: FragmentRecords) -> None:
        self.records = records
        self._changed: dict[int, Fragment] = {}
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self.records) - len(self._removed)

    def __iter__(self) -> Iterator[FragmentId]:
        ids = np.delete(self.records.ids, sorted(self._removed)) if self._removed else self.records.ids
        return map(FragmentId, ids.tolist())

    def __contains__(self, fragment_id: object) -> bool:
        return isinstance(fragment_id, int) and self._position_of(fragment_id) is not None

    def __getitem__(self, fragment_id: FragmentId) -> Fragment:
        position = self._position_of(fragment_id)
        if position is None:
            raise KeyError(fragment_id)
        changed = self._changed.get(position)
        if changed is not None:
            return changed
        fragment = self.records.find(fragment_id)
        assert fragment is not None
        return fragment

    def copy(self) -> "EditedFragments":
        """Return the fragments as they are now."""
        duplicate = EditedFragments(self.records)
        duplicate._changed, duplicate._removed = dict(self._changed), set(self._removed)
        return duplicate

    def replace(self, fragment: Fragment) -> None:
        """Set the new state of a fragment."""
        position = self._position_of(fragment.id)
        assert position is not None, f"fragment {fragment.id} does not exist"
        self._changed[position] = fragment

    def remove(self, fragment_id: FragmentId) -> None:
        """Remove a fragment, if it exists."""
        if (position := self._position_of(fragment_id)) is not None:
            self._changed.pop(position, None)
            self._removed.add(position)

    def with_added(self, added: Sequence[table_pb2.DataFragment]) -> FragmentRecords:
        """Return the changed fragments together with new ones, by ascending ids."""
        return self.records.with_edits(self._changed, self._removed, added)

    def _position_of(self, fragment_id: int) -> int | None:
        position = self.records.position_of(fragment_id)
        return None if position in self._removed else position


@dataclass(frozen=True, slots=True)
class Difference:
    """Fragments that only one of two versions has. A changed fragment is in both lists."""

    removed: tuple[Fragment, ...]
    added: tuple[Fragment, ...]


def find_difference(before: FragmentRecords, after: FragmentRecords) -> Difference:
    """Return the fragments that differ. Only what lies between the first and the last difference is parsed, and equal
    fragments there are left out, whatever their order."""
    old, new = before.encode(), after.encode()
    start = _equal_bytes(old, new)
    if start == len(old):  # the common case: nothing differs, or fragments were appended
        appended = FragmentRecords(new[start:], path=after.path)
        return Difference((), tuple(appended))
    boundaries = after._boundaries()
    # The bytes before the first difference are equal, so both versions have the same records there.
    start = int(boundaries[np.searchsorted(boundaries, start, side="right") - 1])
    tail = _equal_bytes_at_end(old, new, min(len(old), len(new)) - start)
    tail = len(new) - int(boundaries[np.searchsorted(boundaries, len(new) - tail)])
    try:
        unmatched_old = FragmentRecords(old[start : len(old) - tail], path=before.path)
    except Corrupt:  # the equal bytes at the end do not begin with a record of the older version
        tail, unmatched_old = 0, FragmentRecords(old[start:], path=before.path)
    unmatched_new = FragmentRecords(new[start : len(new) - tail], path=after.path)
    known_old, known_new = set(unmatched_old._message.records), set(unmatched_new._message.records)
    return Difference(
        tuple(_parse(record, before.path) for record in unmatched_old._message.records if record not in known_new),
        tuple(_parse(record, after.path) for record in unmatched_new._message.records if record not in known_old),
    )


def _parse(record: bytes, path: str) -> Fragment:
    try:
        return Fragment(table_pb2.DataFragment.FromString(record))
    except DecodeError as error:
        raise unparsable_fragment_error(path) from error


def _equal_bytes(first: bytes, second: bytes) -> int:
    """Return the number of bytes at the beginning that are equal."""
    shorter = min(len(first), len(second))
    for start in range(0, shorter, _BLOCK_BYTES):
        end = min(start + _BLOCK_BYTES, shorter)
        if first[start:end] != second[start:end]:
            block, other = (np.frombuffer(data, np.uint8, end - start, start) for data in (first, second))
            return start + int(np.argmax(block != other))
    return shorter


def _equal_bytes_at_end(first: bytes, second: bytes, at_most: int) -> int:
    """Return the number of bytes at the end that are equal."""
    for start in range(0, at_most, _BLOCK_BYTES):
        size = min(_BLOCK_BYTES, at_most - start)
        blocks = [data[len(data) - start - size : len(data) - start] for data in (first, second)]
        if blocks[0] != blocks[1]:
            block, other = (np.frombuffer(data, np.uint8)[::-1] for data in blocks)
            return start + int(np.argmax(block != other))
    return max(0, at_most)


def unparsable_fragment_error(path: str) -> Corrupt:
    return Corrupt("a fragment of the manifest does not parse", path=path, field="fragments")


def _declare_types() -> tuple[type[Message], type[Message]]:
    """Declare a manifest whose fragments are bytes, and one with a single fragment that has only some fields."""
    package = "lance.table.fragment_records"
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/format/fragment_records", package=package)
    records, merged, fragment = (file.message_type.add(name=name) for name in ("Records", "Merged", "Fragment"))
    records.field.add(name="records", number=_FRAGMENTS, label=FieldType.LABEL_REPEATED, type=FieldType.TYPE_BYTES)
    merged.field.add(
        name="merged",
        number=_FRAGMENTS,
        label=FieldType.LABEL_OPTIONAL,
        type=FieldType.TYPE_MESSAGE,
        type_name=f".{package}.Fragment",
    )
    numbers = table_pb2.DataFragment.DESCRIPTOR.fields_by_name
    for name, of in (("ids", "id"), ("physical_rows", "physical_rows")):
        fragment.field.add(
            name=name, number=numbers[of].number, label=FieldType.LABEL_REPEATED, type=FieldType.TYPE_UINT64
        )
    for name in ("deletion_file", "overlays"):
        fragment.field.add(
            name=name, number=numbers[name].number, label=FieldType.LABEL_OPTIONAL, type=FieldType.TYPE_BYTES
        )
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    pool.AddSerializedFile(file.SerializeToString())
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Records")),
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Merged")),
    )


_RECORDS_TYPE, _MERGED_TYPE = _declare_types()
