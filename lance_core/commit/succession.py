"""Succession: decides by their contents whether later versions are based on a version.

A version that was put late may fill a gap: a cleanup removed the version that had its number before, and the next
version is based on the removed one. Times do not decide which case holds: a copy of a table sets modification times in
the order of copying, a clock can be set, and some file systems store whole seconds. The contents decide:

    the next version was written by this library     its parent hash is the hash of this version
    the next version was written by another library  it has all fragments of this version, except those that its own
                                                     operation changed
    the next version was removed                     a later version references a file that this version added

Without such evidence, no version counts as based on this one. Start with `find_unrelated_successor`.
"""

from collections.abc import Iterator

from lance_core.errors import NotFound
from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.manifest_builder import LIBRARY
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction
from lance_core.transactions.footprint import touched_fragments, updated_fragments
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_transaction


def find_unrelated_successor(snapshot: Snapshot) -> Version | None:
    """Return the first later version if it is not based on this one; `None` if it is, or if there is none."""
    location, manifest = snapshot.location, snapshot.manifest
    later = _load_later_versions(location, manifest.version)
    first = next(later, None)
    if first is None:
        return None
    if first.version == manifest.version + 1:
        return None if _is_based_on(first, load_transaction(location, first), manifest) else first.version
    added = _files_added(load_transaction(location, manifest))
    if any(not added.isdisjoint(_files_of(version)) for version in (first, *later)):
        return None
    return first.version


def _load_later_versions(location: Location, version: Version) -> Iterator[Manifest]:
    for number in list_versions(location).numbers:
        if number > version:
            try:
                yield load_at(location, number).manifest
            except NotFound:  # a cleanup removed it since the listing
                continue


def _is_based_on(after: Manifest, transaction: Transaction | None, before: Manifest) -> bool:
    if transaction is None:
        return not _files_of(before) or not _files_of(before).isdisjoint(_files_of(after))
    if after.library == LIBRARY and transaction.parent is not None and transaction.parent.version:
        return transaction.parent == before.as_parent
    operation = transaction.operation
    if isinstance(operation, op.Overwrite | op.Restore | op.Clone):
        return True  # it keeps nothing of the version before it, so it may follow any version
    return _keeps_fragments(after, operation, before) and _keeps_settings(after, operation, before)


def _keeps_fragments(after: Manifest, operation: Operation, before: Manifest) -> bool:
    """Return whether all fragments that the operation changed are fragments of `before`, and `after` has all others
    with the same deleted rows. A fragment is recognized by its id and one of its data files."""
    existing = {fragment.id: fragment for fragment in before.fragments}
    named = [*updated_fragments(operation).values(), *_rewritten_fragments(operation)]
    touched = touched_fragments(operation)
    if not existing.keys() >= touched:
        return False
    fragments_after = {fragment.id: fragment for fragment in after.fragments}
    untouched = [fragment for fragment in before.fragments if fragment.id not in touched]
    return all(_has_a_file_of(existing[fragment.id], fragment) for fragment in named) and all(
        fragment.id in fragments_after
        and _has_a_file_of(fragments_after[fragment.id], fragment)
        and fragments_after[fragment.id].has_same_deletions(fragment)
        for fragment in untouched
    )


def _rewritten_fragments(operation: Operation) -> tuple[Fragment, ...]:
    groups = operation.groups if isinstance(operation, op.Rewrite) else ()
    return tuple(fragment for group in groups for fragment in group.old)


def _has_a_file_of(fragment: Fragment, other: Fragment) -> bool:
    return not {file.path for file in fragment.files}.isdisjoint(file.path for file in other.files)


def _keeps_settings(after: Manifest, operation: Operation, before: Manifest) -> bool:
    if not isinstance(operation, op.UpdateConfig) and dict(after.config) != dict(before.config):
        return False
    changes_indices = not isinstance(operation, op.Append | op.UpdateConfig | op.ReserveFragments)
    return changes_indices or {index.uuid for index in after.indices} == {index.uuid for index in before.indices}


def _files_added(transaction: Transaction | None) -> frozenset[str]:
    """Return the data files that an operation added; none for a merge, which lists all files of the table."""
    if transaction is None or isinstance(transaction.operation, op.Merge):
        return frozenset()
    touched = touched_fragments(transaction.operation)
    listed = op.new_fragments(transaction.operation)
    added = (fragment for fragment in listed if not fragment.id or fragment.id not in touched)
    return frozenset(file.path for fragment in added for file in fragment.files)


def _files_of(manifest: Manifest) -> frozenset[str]:
    return frozenset(file.path for fragment in manifest.fragments for file in fragment.files)
