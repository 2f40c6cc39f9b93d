"""Invariants: what must hold between any two consecutive versions, and for every fragment that a change adds.

The commit loop checks them before each put, in production too: a violation is a bug of this library and must not
reach the table.
"""

from collections.abc import Sequence

from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest


class InvariantViolation(AssertionError):
    """A change would have damaged the table. Nothing was written. Please report it."""


def check(
    before: Manifest | None, after: Manifest, *, added: Sequence[Fragment], number: Version | None = None
) -> None:
    """Check all invariants. `number` is the expected version if it is not the one after `before`: that of a clone or
    a detached version."""
    _check_version_number(before, after, number)
    _check_counters(before, after)
    _check_new_ids(before, after, added)
    for fragment in added:
        _check_fragment(fragment, after)


def _check_version_number(before: Manifest | None, after: Manifest, number: Version | None) -> None:
    expected = number or (1 if before is None else before.version + 1)
    if after.version != expected:
        raise InvariantViolation(f"the next version would be {after.version}, expected {expected}")


def _check_counters(before: Manifest | None, after: Manifest) -> None:
    if before is None:
        return
    if after.max_fragment_id < before.max_fragment_id:
        raise InvariantViolation(f"max_fragment_id decreased from {before.max_fragment_id} to {after.max_fragment_id}")
    if after.next_row_id < before.next_row_id:
        raise InvariantViolation(f"next_row_id decreased from {before.next_row_id} to {after.next_row_id}")


def _check_new_ids(before: Manifest | None, after: Manifest, added: Sequence[Fragment]) -> None:
    """Check the ids of added fragments. Each id is above all assigned ids, or was reserved before and belongs to no
    fragment."""
    assigned_max = -1 if before is None else before.max_fragment_id
    last = assigned_max
    taken: set[int] | None = None
    for fragment in added:
        if fragment.id > last:
            last = fragment.id
            continue
        if taken is None:
            taken = set() if before is None else {message.id for message in before.message.fragments}
        if fragment.id > assigned_max or fragment.id in taken:
            raise InvariantViolation(f"fragment id {fragment.id} is not above {last}: ids ascend and are never reused")
        taken.add(fragment.id)
    if added and after.max_fragment_id != last:
        raise InvariantViolation(f"max_fragment_id is {after.max_fragment_id}, but the last fragment is {last}")


def _check_fragment(fragment: Fragment, after: Manifest) -> None:
    fragment.check(path=after.path)
    if fragment.physical_rows < 1:
        raise InvalidInput(f"fragment {fragment.id} has no rows; omit it")
    if not fragment.files:
        raise InvalidInput(f"fragment {fragment.id} has no data files")
    for file in fragment.files:
        if not any(field_id >= 0 for field_id in file.field_ids):
            raise InvalidInput(f"data file {file.path} stores no live field")
        if file.version.is_legacy != after.storage_version.is_legacy:
            raise InvalidInput(
                f"data file {file.path} has storage version {file.version}, the table has {after.storage_version}"
            )
    if after.has_stable_row_ids and fragment.message.WhichOneof("row_id_sequence") is None:
        raise InvariantViolation(f"fragment {fragment.id} has no row ids, but the table has stable row ids")
