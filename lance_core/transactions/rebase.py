"""Rebase: adapts a compatible change to the version after which it is committed.

    required_deletions(ours, base, head)  ->  fragments   whose deletion vectors the caller has to fetch first
    rebase(...)                           ->  Rebased     the transaction to commit, and files to write before it

A change whose base is still the newest version is committed as it was planned, without this module.
Ids, row ids and versions are assigned when a change is applied, so most changes need no adaptation. Removed rows are
merged with those that other commits removed from the same fragments; an index stops covering values that others
changed; columns that others dropped are not added again. This module is pure: the caller passes the fetched data and
fresh file numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from lance_core.errors import RetryableConflict
from lance_core.format import index_metadata
from lance_core.format import operations as op
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import TOMBSTONE, Fragment
from lance_core.format.ids import FragmentId
from lance_core.format.index_metadata import SYSTEM_INDICES, IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Operation
from lance_core.format.row_sets import bitmap_of
from lance_core.format.schema import Field, TableSchema
from lance_core.format.transaction import PLANNED_ON, Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.footprint import rewrites_columns, updated_fragments
from lance_core.transactions.index_coverage import LiveFragments, remove_coverage


@dataclass(frozen=True, slots=True)
class FetchedDeletions:
    """Deletion vectors of the head, and a fresh number for each deletion file that may have to be written."""

    vectors: Mapping[FragmentId, DeletionVector] = field(default_factory=dict)
    file_numbers: Mapping[FragmentId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rebased:
    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Content by path, to be written before the transaction is committed."""


def required_deletions(ours: Transaction, base: Manifest, head: Manifest) -> tuple[Fragment, ...]:
    """Return the fragments of the head whose deletion vectors have to be fetched before a rebase."""
    if not updated_fragments(ours.operation):
        return ()
    before, after = _fragments_before_and_now(ours.operation, base, head)
    changed = (each for each in after.values() if each.id in before and not before[each.id].has_same_deletions(each))
    return tuple(fragment for fragment in changed if fragment.deletion_file)


def rebase(
    ours: Transaction,
    base: Manifest,
    head: Manifest,
    others: Sequence[CommittedTransaction],
    deletions: FetchedDeletions,
) -> Rebased:
    """Rebase `ours`, planned on `base`, onto `head`. `others` are the transactions committed between the two
    versions."""
    operation = ours.operation
    match operation:
        case op.Append():
            fragments = _tombstone_dropped_columns(operation.fragments, base.schema, head.schema, operation, head)
            return Rebased(replace(ours, operation=replace(operation, fragments=fragments)))
        case op.Rewrite():
            return Rebased(replace(ours, operation=_rebase_rewrite(operation, base, head)))
        case op.CreateIndex():
            return Rebased(replace(ours, operation=_rebase_create_index(operation, base, head, others)))
        case op.Delete() | op.Update():
            return _rebase_deletions(ours, operation, base, head, deletions)
        case _:
            return Rebased(ours)


def _rebase_deletions(
    ours: Transaction, operation: op.Delete | op.Update, base: Manifest, head: Manifest, deletions: FetchedDeletions
) -> Rebased:
    if isinstance(operation, op.Update) and operation.new:
        new = _tombstone_dropped_columns(operation.new, base.schema, head.schema, operation, head)
        operation = replace(operation, new=new)
    before, after = _fragments_before_and_now(operation, base, head)
    files: dict[str, bytes] = {}
    updated: list[Fragment] = []
    removed = list(operation.removed_ids)
    for fragment in operation.updated:
        old, theirs = before.get(fragment.id), after.get(fragment.id)
        if old is None or theirs is None:
            raise _conflict(operation, head, f"fragment {fragment.id} was removed", "fragments_are_there")
        if old.is_same(theirs):
            updated.append(fragment)
            continue
        fragment = _with_files_of_head(fragment, old, theirs, operation, head)
        if old.has_same_deletions(theirs):
            updated.append(fragment)
            continue
        affected = (operation.affected or {}).get(fragment.id)
        vector = deletions.vectors.get(fragment.id)
        if affected is None or vector is None:
            raise _conflict(operation, head, f"rows of fragment {fragment.id} were removed or restored", "same_rows")
        rows = BitMap.deserialize(affected)
        deleted_by_others = bitmap_of(vector.offsets)
        if both := rows & deleted_by_others:
            what = f"row {both.min()} of fragment {fragment.id}, one of {len(both):,}, was changed or removed"
            raise _conflict(operation, head, what, "same_rows")
        if rewrites_columns(operation):  # rows change in place, and none is removed
            updated.append(fragment.with_deletions_of(theirs))
            continue
        deleted = vector.union(DeletionVector.of(rows.to_array()))
        if len(deleted) == fragment.physical_rows:
            removed.append(fragment.id)
            continue
        number = deletions.file_numbers[fragment.id]
        data = deleted.encode(as_bitmap=True)
        fragment = fragment.with_deletion_file(
            is_bitmap=True,
            read_version=head.version,
            number=number,
            rows=len(deleted),
            checksum=FileChecksum.of(data),
        )
        assert fragment.deletion_file is not None
        files[fragment.deletion_file.path] = data
        updated.append(fragment)
    rebased = replace(operation, updated=tuple(updated), removed_ids=tuple(removed))
    if not files:
        return Rebased(replace(ours, operation=rebased))
    properties = {**ours.properties, PLANNED_ON: str(ours.read_version)}
    return Rebased(replace(ours, operation=rebased, read_version=head.version, properties=properties), files)


def _with_files_of_head(
    fragment: Fragment, old: Fragment, theirs: Fragment, operation: op.Delete | op.Update, head: Manifest
) -> Fragment:
    """Return our fragment with the files of the head, which may have fewer than the base since a column was dropped.
    Raise if the head has other files."""
    if old.has_same_files(theirs):
        return fragment
    head_files = {(file.path, file.base_id) for file in theirs.files}
    base_files = {(file.path, file.base_id) for file in old.files}
    if not head_files <= base_files:
        raise _conflict(operation, head, f"the files of fragment {fragment.id} were replaced", "same_fragments")
    if not rewrites_columns(operation):
        return fragment.with_files(theirs.files)
    removed = base_files - head_files
    return fragment.with_files([file for file in fragment.files if (file.path, file.base_id) not in removed])


def _rebase_rewrite(operation: op.Rewrite, base: Manifest, head: Manifest) -> op.Rewrite:
    groups = tuple(
        replace(group, new=_tombstone_dropped_columns(group.new, base.schema, head.schema, operation, head))
        for group in operation.groups
    )
    return replace(operation, groups=groups)


def _rebase_create_index(
    operation: op.CreateIndex, base: Manifest, head: Manifest, others: Sequence[CommittedTransaction]
) -> op.CreateIndex:
    new = operation.new
    live: LiveFragments | None = None
    for committed in others:
        theirs = committed.transaction.operation if committed.transaction else None
        if isinstance(theirs, op.Update) and theirs.fields_modified:
            if live is None:
                section = index_metadata.decode_section(head.index_section, path=head.path)
                live = LiveFragments.of(section, (fragment.id for fragment in head.message.fragments))
            changed = [fragment.id for fragment in theirs.updated]
            new = remove_coverage(new, changed, live, on_fields=frozenset(theirs.fields_modified))
    if any(committed.transaction and isinstance(committed.transaction.operation, op.Merge) for committed in others):
        new = tuple(_remove_refiled_fragments(index, base, head) for index in new)
    return replace(operation, new=new, removed=(*operation.removed, *_superseded_system_segments(operation, head)))


def _remove_refiled_fragments(index: IndexMetadata, base: Manifest, head: Manifest) -> IndexMetadata:
    """Remove fragments whose indexed column is in another file now: a Merge does not record whether its values
    changed."""
    covered, fields = index.covers, set(index.field_ids)
    if not covered or index.is_system:
        return index

    def files(manifest: Manifest) -> dict[int, set[str]]:
        return {
            fragment.id: {file.path for file in fragment.files if not fields.isdisjoint(file.fields)}
            for fragment in manifest.message.fragments
            if fragment.id in covered
        }

    after = files(head)
    changed = BitMap(number for number, paths in files(base).items() if after.get(number, paths) != paths)
    return index.with_coverage(covered - changed) if changed else index


def _superseded_system_segments(operation: op.CreateIndex, head: Manifest) -> Iterator[IndexMetadata]:
    """Yield the system index entries that our new ones replace, since each system index has exactly one entry."""
    names = {index.name for index in operation.new} & SYSTEM_INDICES
    if not names:
        return
    known = {index.uuid for index in (*operation.new, *operation.removed)}
    for index in index_metadata.decode_section(head.index_section, path=head.path):
        if index.name in names and index.uuid not in known:
            yield index


def _tombstone_dropped_columns(
    fragments: Sequence[Fragment], before: TableSchema, after: TableSchema, operation: Operation, head: Manifest
) -> tuple[Fragment, ...]:
    """Mark columns that others dropped as dead, so that no later column can be mistaken for them. If another column
    has the name of a dropped one now, for example after a cast, the fragments are refused instead, since their values
    would be lost."""
    known, current = _field_paths(before), _field_paths(after)
    dropped = known.keys() - current.keys()
    if not dropped:
        return tuple(fragments)
    renewed = {current[field_id] for field_id in current.keys() - known.keys()} & {
        known[field_id] for field_id in dropped
    }
    result = []
    for fragment in fragments:
        for field_id in (each for file in fragment.files for each in file.field_ids):
            if field_id in dropped and known[field_id] in renewed:
                what = f"the column {'.'.join(known[field_id])} was replaced by another one of that name"
                raise _conflict(operation, head, what, "columns_are_there")
        files = [file.without_fields(dropped) if dropped & set(file.field_ids) else file for file in fragment.files]
        live_files = [file for file in files if set(file.field_ids) != {TOMBSTONE}]
        if not live_files or any(file.version.is_legacy for file in files if TOMBSTONE in file.field_ids):
            raise _conflict(operation, head, "all of its columns were dropped", "columns_are_there")
        result.append(fragment.with_files(live_files))
    return tuple(result)


def _fragments_before_and_now(
    operation: Operation, base: Manifest, head: Manifest
) -> tuple[dict[FragmentId, Fragment], dict[FragmentId, Fragment]]:
    """Return the fragments that the operation updates, as of the base and as of the head."""
    ids = updated_fragments(operation).keys()

    def of(manifest: Manifest) -> dict[FragmentId, Fragment]:
        messages = manifest.message.fragments
        return {FragmentId(message.id): Fragment(message) for message in messages if message.id in ids}

    return of(base), of(head)


def _field_paths(schema: TableSchema) -> dict[int, tuple[str, ...]]:
    """Return the names that lead to every field, by field id."""
    paths: dict[int, tuple[str, ...]] = {}
    pending: list[tuple[Field, tuple[str, ...]]] = [(field, (field.name,)) for field in schema.fields]
    while pending:
        field, path = pending.pop()
        paths[field.id] = path
        pending += [(child, (*path, child.name)) for child in field.children]
    return paths


def _conflict(operation: Operation, head: Manifest, what: str, rule: str) -> RetryableConflict:
    return RetryableConflict(
        f"this {operation.name} cannot be rebased onto version {head.version}: {what} since it was planned; reopen "
        "the table and repeat the operation on the new version",
        ours=operation.name,
        theirs="an earlier commit",
        version=head.version,
        rule=rule,
    )
