"""Several appends as one transaction, and each of them found again in it.

    properties["lance_assets.together"] = [["<uuid of a part>", <how many of the fragments are its>], ...]

Parts may also be the rows of one fragment, of a file that they share. Those follow each other, tell how many of its
rows are theirs, and the first of them has the fragment: `["a",1,20],["b",0,5],["c",2]` are two parts of one fragment of
25 rows, and one part of two fragments.

The parts keep their order and their uuids, so whoever looks for one of them in the history finds what became of it. All
of them have the same other properties: what a version says of where it comes from is true of all its rows. Pure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lance_core.format.fragment import Fragment
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction

PARTS_PROPERTY = "lance_assets.together"
PARTS_MAX = 256
_PART_CHARACTERS = 80
"""More than a part takes: a longer text is not looked into."""
_PartEntry: TypeAlias = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class Part:
    uuid: str
    append: Append
    """As if it had come alone. Of a fragment that it shares this has its rows, and of the file's bytes as large a part
    as of its rows."""
    first_row: int | None = None
    """Of the fragment that it shares, where it does."""


@dataclass(frozen=True, slots=True)
class SharedFragment:
    """A fragment of rows that several appends brought, one after the other."""

    fragment: Fragment
    rows: tuple[int, ...]


def can_fold(one: Transaction, other: Transaction) -> bool:
    return (
        isinstance(one.operation, Append)
        and isinstance(other.operation, Append)
        and one.uuid != other.uuid
        and one.properties == other.properties
        and PARTS_PROPERTY not in one.properties
    )


def fold(ours: Sequence[Transaction], uuid: str, shared: SharedFragment | None = None) -> Transaction:
    """Planned on the oldest of what they were planned on: whatever stands beside it stands beside each of them. The
    first of them are those who have the shared fragment, and nothing else."""
    sharing = shared.rows if shared else ()
    own = [each.operation.fragments for each in ours[len(sharing) :] if isinstance(each.operation, Append)]
    parts: list[list[str | int]] = []
    for number, (each, rows) in enumerate(zip(ours, sharing, strict=False)):
        parts.append([each.uuid, 0 if number else 1, rows])
    for each, fragments in zip(ours[len(sharing) :], own, strict=True):
        parts.append([each.uuid, len(fragments)])
    return Transaction(
        read_version=min(each.read_version for each in ours),
        uuid=uuid,
        operation=Append((*((shared.fragment,) if shared else ()), *(each for fragments in own for each in fragments))),
        properties={**ours[0].properties, PARTS_PROPERTY: json.dumps(parts, separators=(",", ":"))},
    )


def parts_of(transaction: Transaction) -> tuple[Part, ...]:
    """None of one that was made as a whole. What another writer put under our name and does not add up says nothing."""
    told, operation = transaction.properties.get(PARTS_PROPERTY), transaction.operation
    if told is None or not isinstance(operation, Append) or len(told) > _PART_CHARACTERS * PARTS_MAX:
        return ()
    entries, fragments = _decode_entries(told), operation.fragments
    if not _is_consistent(entries, fragments):
        return ()
    parts: list[Part] = []
    at = row = 0
    for uuid, count, rows in entries:
        at += count
        if rows is None:
            parts.append(Part(uuid, Append(fragments[at - count : at])))
        else:
            row = 0 if count else row
            parts.append(Part(uuid, Append((_part_of_fragment(fragments[at - 1], row, rows),)), first_row=row))
            row += rows
    return tuple(parts)


def uuids_of(transaction: Transaction) -> tuple[str, ...]:
    """Of everything that it is the landing of."""
    return transaction.uuid, *(part.uuid for part in parts_of(transaction))


def part_with_uuid(transaction: Transaction, uuid: str) -> Transaction | None:
    """What of it is the change with this uuid: all of it, a part, or nothing."""
    if transaction.uuid == uuid:
        return transaction
    for part in parts_of(transaction):
        if part.uuid == uuid:
            own = {name: value for name, value in transaction.properties.items() if name != PARTS_PROPERTY}
            return replace(transaction, uuid=uuid, operation=part.append, properties=own)
    return None


def _is_consistent(entries: Sequence[_PartEntry], fragments: Sequence[Fragment]) -> bool:
    at, shared = 0, dict[int, int]()
    for _uuid, count, rows in entries:
        at += count
        if rows is not None:
            shared[at - 1] = shared.get(at - 1, 0) + rows
    return at == len(fragments) and all(fragments[each].physical_rows == rows for each, rows in shared.items())


def _part_of_fragment(fragment: Fragment, start: int, rows: int) -> Fragment:
    """Its bytes are dealt out so that those of all are the file's."""
    whole = fragment.physical_rows

    def until(size: int, row: int) -> int:
        return size * row // whole

    files = [
        file.with_size(until(file.size or 0, start + rows) - until(file.size or 0, start)) for file in fragment.files
    ]
    return Fragment.of(files=files, physical_rows=rows)


def _decode_entries(told: str) -> Sequence[_PartEntry]:
    """Empty where one of them cannot be."""
    try:
        entries = [_decode_entry(each) for each in json.loads(told)]
    except (ValueError, TypeError, RecursionError):
        return ()
    if len({uuid for uuid, _count, _rows in entries}) != len(entries):
        return ()
    shares = False
    for _uuid, count, rows in entries:
        if rows is not None and count == 0 and not shares:
            return ()
        shares = rows is not None
    return entries


def _decode_entry(told: object) -> _PartEntry:
    match told:
        case [str() as uuid, int() as count] if count > 0 and type(count) is int:
            return uuid, count, None
        case [str() as uuid, int() as count, int() as rows] if count in (0, 1) and rows > 0:
            if type(count) is int and type(rows) is int:
                return uuid, count, rows
    raise ValueError("not a part")
