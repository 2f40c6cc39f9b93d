"""Several appends as one transaction, and each of them found again in it.

    properties["lance_assets.together"] = [["<uuid of a part>", <how many of the fragments are its>], ...]

The parts keep their order and their uuids, so whoever looks for one of them in the history finds what became of it. All
of them have the same other properties: what a version says of where it comes from is true of all its rows. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction

TOGETHER = "lance_assets.together"
_PART_CHARACTERS = 80
"""More than a part takes, and each has a fragment at least: a longer text is not looked into."""


@dataclass(frozen=True, slots=True)
class Part:
    uuid: str
    append: Append


def can_fold(one: Transaction, other: Transaction) -> bool:
    return (
        isinstance(one.operation, Append)
        and isinstance(other.operation, Append)
        and bool(one.operation.fragments and other.operation.fragments)
        and one.uuid != other.uuid
        and one.properties == other.properties
        and TOGETHER not in one.properties
    )


def fold(ours: Sequence[Transaction], uuid: str) -> Transaction:
    """Planned on the oldest of what they were planned on: whatever stands beside it stands beside each of them."""
    appends = [each.operation for each in ours if isinstance(each.operation, Append)]
    parts = [[each.uuid, len(append.fragments)] for each, append in zip(ours, appends, strict=True)]
    return Transaction(
        read_version=min(each.read_version for each in ours),
        uuid=uuid,
        operation=Append(tuple(fragment for append in appends for fragment in append.fragments)),
        properties={**ours[0].properties, TOGETHER: json.dumps(parts, separators=(",", ":"))},
    )


def parts_of(transaction: Transaction) -> tuple[Part, ...]:
    """None of one that was made as a whole. What another writer put under our name and does not add up says nothing."""
    told, operation = transaction.properties.get(TOGETHER), transaction.operation
    if told is None or not isinstance(operation, Append) or len(told) > _PART_CHARACTERS * len(operation.fragments):
        return ()
    counts = _counts(told)
    if sum(counts.values()) != len(operation.fragments):
        return ()
    parts, at = [], 0
    for uuid, count in counts.items():
        parts.append(Part(uuid, Append(operation.fragments[at : at + count])))
        at += count
    return tuple(parts)


def uuids_of(transaction: Transaction) -> tuple[str, ...]:
    """Of everything that it is the landing of."""
    return transaction.uuid, *(part.uuid for part in parts_of(transaction))


def found_in(transaction: Transaction, uuid: str) -> Transaction | None:
    """What of it is the change with this uuid: all of it, a part, or nothing."""
    if transaction.uuid == uuid:
        return transaction
    for part in parts_of(transaction):
        if part.uuid == uuid:
            own = {name: value for name, value in transaction.properties.items() if name != TOGETHER}
            return replace(transaction, uuid=uuid, operation=part.append, properties=own)
    return None


def _counts(told: str) -> Mapping[str, int]:
    try:
        pairs = json.loads(told)
        counts = dict(pairs)
    except (ValueError, TypeError, RecursionError):
        return {}
    sound = all(isinstance(uuid, str) and type(count) is int and count > 0 for uuid, count in counts.items())
    return counts if sound and len(counts) == len(pairs) else {}
