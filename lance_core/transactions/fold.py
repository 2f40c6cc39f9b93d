"""Group commit transactions: folds several appends into one transaction, and finds each of them in it again.

    properties["lance_assets.together"] = [["<uuid of a part>", <number of its fragments>], ...]

Parts may also be ranges of rows in one fragment, whose file they share. Such parts are adjacent and record their
number of rows, and the first of them owns the fragment: `["a",1,20],["b",0,5],["c",2]` are two parts of one fragment
of 25 rows, and one part of two fragments.

The parts keep their order and their uuids, so that a writer finds its part in the history. All parts have the same
other properties, so that the properties of a version are true of all its rows. This module does no I/O.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lance_core.format.fragment import Fragment
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction

PARTS_PROPERTY = "lance_assets.together"
"""The transaction property that lists the parts."""
PARTS_MAX = 256
_PART_CHARACTERS = 80
"""The maximum length of an encoded part; a longer property is not parsed."""
_PartEntry: TypeAlias = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class Part:
    """One append of a folded transaction."""

    uuid: str
    append: Append
    """The append, as if it had been committed alone. If it shares a fragment, this fragment has its rows, and a share
    of the file's bytes in proportion to them."""
    first_row: int | None = None
    """The first row in the shared fragment; `None` if it shares none."""


@dataclass(frozen=True, slots=True)
class SharedFragment:
    """A fragment that holds the rows of several appends, one after the other."""

    fragment: Fragment
    rows: tuple[int, ...]
    """The number of rows of each append."""


def can_fold(one: Transaction, other: Transaction) -> bool:
    """Return whether two transactions can be folded: both are appends with the same properties."""
    return (
        isinstance(one.operation, Append)
        and isinstance(other.operation, Append)
        and one.uuid != other.uuid
        and one.properties == other.properties
        and one.verb == other.verb
        and PARTS_PROPERTY not in one.properties
    )


def fold(ours: Sequence[Transaction], uuid: str, shared: SharedFragment | None = None) -> Transaction:
    """Fold appends into one transaction, planned on the oldest of their versions, so that whatever is compatible with
    it is compatible with each of them. The first appends are those in the shared fragment, and have no other
    fragments."""
    shared_rows = shared.rows if shared else ()
    own_fragments = [
        transaction.operation.fragments
        for transaction in ours[len(shared_rows) :]
        if isinstance(transaction.operation, Append)
    ]
    parts: list[list[str | int]] = []
    for number, (transaction, rows) in enumerate(zip(ours, shared_rows, strict=False)):
        parts.append([transaction.uuid, 0 if number else 1, rows])
    for transaction, fragments in zip(ours[len(shared_rows) :], own_fragments, strict=True):
        parts.append([transaction.uuid, len(fragments)])
    return Transaction(
        read_version=min(transaction.read_version for transaction in ours),
        uuid=uuid,
        operation=Append(
            (
                *((shared.fragment,) if shared else ()),
                *(fragment for fragments in own_fragments for fragment in fragments),
            )
        ),
        properties={**ours[0].properties, PARTS_PROPERTY: json.dumps(parts, separators=(",", ":"))},
        verb=ours[0].verb,
    )


def parts_of(transaction: Transaction) -> tuple[Part, ...]:
    """Return the parts of a folded transaction. The result is empty for a transaction that was not folded, or if
    another writer set the property to an inconsistent value."""
    value, operation = transaction.properties.get(PARTS_PROPERTY), transaction.operation
    if value is None or not isinstance(operation, Append) or len(value) > _PART_CHARACTERS * PARTS_MAX:
        return ()
    entries, fragments = _decode_entries(value), operation.fragments
    if not _is_consistent(entries, fragments):
        return ()
    parts: list[Part] = []
    end = row = 0
    for uuid, count, rows in entries:
        end += count
        if rows is None:
            parts.append(Part(uuid, Append(fragments[end - count : end])))
        else:
            row = 0 if count else row
            parts.append(Part(uuid, Append((_part_of_fragment(fragments[end - 1], row, rows),)), first_row=row))
            row += rows
    return tuple(parts)


def uuids_of(transaction: Transaction) -> tuple[str, ...]:
    """Return the uuids of all changes that this transaction commits."""
    return transaction.uuid, *(part.uuid for part in parts_of(transaction))


def part_with_uuid(transaction: Transaction, uuid: str) -> Transaction | None:
    """Return the change with this uuid: the whole transaction, a part of it, or `None`."""
    if transaction.uuid == uuid:
        return transaction
    for part in parts_of(transaction):
        if part.uuid == uuid:
            properties = {name: value for name, value in transaction.properties.items() if name != PARTS_PROPERTY}
            return replace(transaction, uuid=uuid, operation=part.append, properties=properties)
    return None


def _is_consistent(entries: Sequence[_PartEntry], fragments: Sequence[Fragment]) -> bool:
    end, shared_rows = 0, dict[int, int]()
    for _uuid, count, rows in entries:
        end += count
        if rows is not None:
            shared_rows[end - 1] = shared_rows.get(end - 1, 0) + rows
    return end == len(fragments) and all(fragments[index].physical_rows == rows for index, rows in shared_rows.items())


def _part_of_fragment(fragment: Fragment, start: int, rows: int) -> Fragment:
    """Return the rows of a part as a fragment. The file sizes of all parts add up to those of the fragment."""
    whole = fragment.physical_rows

    def until(size: int, row: int) -> int:
        return size * row // whole

    files = [
        file.with_size(until(file.size or 0, start + rows) - until(file.size or 0, start)) for file in fragment.files
    ]
    return Fragment.of(files=files, physical_rows=rows)


def _decode_entries(value: str) -> Sequence[_PartEntry]:
    """Decode the property. The result is empty if any entry is invalid."""
    try:
        entries = [_decode_entry(item) for item in json.loads(value)]
    except (ValueError, TypeError, RecursionError):
        return ()
    if len({uuid for uuid, _count, _rows in entries}) != len(entries):
        return ()
    can_continue = False
    for _uuid, count, rows in entries:
        if rows is not None and count == 0 and not can_continue:
            return ()
        can_continue = rows is not None
    return entries


def _decode_entry(value: object) -> _PartEntry:
    match value:
        case [str() as uuid, int() as count] if count > 0 and type(count) is int:
            return uuid, count, None
        case [str() as uuid, int() as count, int() as rows] if count in (0, 1) and rows > 0:
            if type(count) is int and type(rows) is int:
                return uuid, count, rows
    raise ValueError("not a part")
