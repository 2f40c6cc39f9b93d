"""What must hold between any two consecutive versions, and for every fragment a change brings.

Checked before a version is put, in production too: a violation is our own mistake, and it must not reach the
table.
"""

from collections.abc import Sequence

from lance_core.errors import InvalidInput
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest


class InvariantViolation(AssertionError):
    """A change would have broken the table. Nothing was written; please report it."""


def check(
    before: Manifest | None, after: Manifest, *, added: Sequence[Fragment], number: Version | None = None
) -> None:
    """`number` is the version that is meant where it is not the one after `before`: of a clone, or beside the line."""
    _check_version_number(before, after, number)
    _check_counters(before, after)
    _check_new_ids(before, after, added)
    for fragment in added:
        _check_fragment(fragment, after)


def _check_version_number(before: Manifest | None, after: Manifest, number: Version | None) -> None:
    expected = number or (1 if before is None else before.version + 1)
    if after.version != expected:
        raise InvariantViolation(f"version {after.version} would follow, expected {expected}")


def _check_counters(before: Manifest | None, after: Manifest) -> None:
    if before is None:
        return
    if after.max_fragment_id < before.max_fragment_id:
        raise InvariantViolation(f"max_fragment_id went from {before.max_fragment_id} to {after.max_fragment_id}")
    if after.next_row_id < before.next_row_id:
        raise InvariantViolation(f"next_row_id went from {before.next_row_id} to {after.next_row_id}")


def _check_new_ids(before: Manifest | None, after: Manifest, added: Sequence[Fragment]) -> None:
    """Above all that were given out; or given out before, to be used now, and then no fragment has them."""
    given_out = -1 if before is None else before.max_fragment_id
    last = given_out
    taken: set[int] | None = None
    for fragment in added:
        if fragment.id > last:
            last = fragment.id
            continue
        if taken is None:
            taken = set() if before is None else {each.id for each in before.message.fragments}
        if fragment.id > given_out or fragment.id in taken:
            raise InvariantViolation(f"fragment id {fragment.id} is not above {last}: ids ascend and are never reused")
        taken.add(fragment.id)
    if added and after.max_fragment_id != last:
        raise InvariantViolation(f"max_fragment_id {after.max_fragment_id} does not name the last fragment {last}")


def _check_fragment(fragment: Fragment, after: Manifest) -> None:
    fragment.check(path=after.path)
    if fragment.physical_rows < 1:
        raise InvalidInput(f"fragment {fragment.id} has no rows; leave it out")
    if not fragment.files:
        raise InvalidInput(f"fragment {fragment.id} has no data files")
    for file in fragment.files:
        if not any(field_id >= 0 for field_id in file.field_ids):
            raise InvalidInput(f"data file {file.path} stores no field")
        if file.version.is_legacy != after.storage_version.is_legacy:
            raise InvalidInput(
                f"data file {file.path} is of version {file.version}, the table of {after.storage_version}"
            )
    if after.has_stable_row_ids and fragment.message.WhichOneof("row_id_sequence") is None:
        raise InvariantViolation(f"fragment {fragment.id} has no row ids, the table promises them")
