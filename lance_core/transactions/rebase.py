"""How a change that may stand is altered to fit the version it will follow.

    needs(ours, base, head)  ->  Wanted      what has to be read first
    rebase(...)              ->  Rebased     the transaction as it will be committed, and files to write before that

Ids, row ids and versions are given out when a change is applied, so most need nothing here. Rows that are removed are
joined with those that others removed from the same fragments; an index stops covering what others changed under it;
columns that others dropped are not brought back. Pure: what is read and what fresh numbers are called is handed in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from lance_core.errors import RetryableConflict
from lance_core.format import index_metadata
from lance_core.format import operations as op
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import TOMBSTONE, Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import SYSTEM_INDICES, IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Operation
from lance_core.format.schema import Field, TableSchema
from lance_core.format.transaction import PLANNED_ON, Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.footprint import updated_fragments, rewrites_columns
from lance_core.transactions.index_coverage import LiveFragments, remove_coverage


@dataclass(frozen=True, slots=True)
class RequiredInputs:
    """What a change has to be told before it can follow the head."""

    deletions: tuple[Fragment, ...] = ()
    """Fragments of the head whose deleted rows are asked for."""
    version: Version | None = None
    """Another version's manifest."""


@dataclass(frozen=True, slots=True)
class FetchedInputs:
    """The answer. A fresh number for each file that may have to be written comes with it."""

    deletions: Mapping[FragmentId, DeletionVector] = field(default_factory=dict)
    file_numbers: Mapping[FragmentId, int] = field(default_factory=dict)
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Rebased:
    transaction: Transaction
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> content, to be written before the transaction may be."""


def required_inputs(ours: Transaction, base: Manifest | None, head: Manifest | None) -> RequiredInputs:
    operation = ours.operation
    if isinstance(operation, op.Restore):
        return RequiredInputs(version=operation.version)
    if base is None or head is None or base.version == head.version or not updated_fragments(operation):
        return RequiredInputs()
    before, after = _fragments_before_and_now(operation, base, head)
    changed = (after[number] for number in before if _deletion_key(before[number]) != _deletion_key(after.get(number)))
    return RequiredInputs(deletions=tuple(fragment for fragment in changed if fragment.deletion_file))


def rebase(
    ours: Transaction,
    base: Manifest | None,
    head: Manifest | None,
    others: Sequence[CommittedTransaction],
    inputs: FetchedInputs,
) -> Rebased:
    """`base` is the version that `ours` was planned on, `others` what was committed between it and `head`."""
    if base is None or head is None or base.version == head.version:
        return Rebased(ours)
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
            return _rebase_deletions(ours, operation, base, head, inputs)
        case _:
            return Rebased(ours)


def _rebase_deletions(
    ours: Transaction, operation: op.Delete | op.Update, base: Manifest, head: Manifest, inputs: FetchedInputs
) -> Rebased:
    if isinstance(operation, op.Update) and operation.new:
        new = _tombstone_dropped_columns(operation.new, base.schema, head.schema, operation, head)
        operation = replace(operation, new=new)
    before, after = _fragments_before_and_now(operation, base, head)
    files: dict[str, bytes] = {}
    updated: list[Fragment] = []
    removed = list(operation.removed_ids)
    for mine in operation.updated:
        old, theirs = before.get(mine.id), after.get(mine.id)
        if old is None or theirs is None:
            raise _conflict(operation, head, f"fragment {mine.id} is gone", "fragments_are_there")
        if old == theirs:
            updated.append(mine)
            continue
        mine = _with_files_of_head(mine, old, theirs, operation, head)
        if _deletion_key(old) == _deletion_key(theirs):
            updated.append(mine)
            continue
        affected = (operation.affected or {}).get(mine.id)
        vector = inputs.deletions.get(mine.id)
        if affected is None or vector is None:
            raise _conflict(operation, head, f"rows of fragment {mine.id} were removed or restored", "same_rows")
        rows = BitMap.deserialize(affected)
        there = BitMap(vector.offsets)
        if both := rows & there:
            what = f"row {both.min()} of fragment {mine.id}, one of {len(both):,}, was changed or removed"
            raise _conflict(operation, head, what, "same_rows")
        if rewrites_columns(operation):  # its rows change where they are, and none of them goes
            updated.append(mine.with_deletions_of(theirs))
            continue
        deleted = vector.union(DeletionVector.of(rows.to_array()))
        if len(deleted) == mine.physical_rows:
            removed.append(mine.id)
            continue
        number = inputs.file_numbers[mine.id]
        mine = mine.with_deletion_file(is_bitmap=True, read_version=head.version, number=number, rows=len(deleted))
        assert mine.deletion_file is not None
        files[mine.deletion_file.path] = deleted.encode(as_bitmap=True)
        updated.append(mine)
    fitted = replace(operation, updated=tuple(updated), removed_ids=tuple(removed))
    if not files:
        return Rebased(replace(ours, operation=fitted))
    properties = {**ours.properties, PLANNED_ON: str(ours.read_version)}
    return Rebased(replace(ours, operation=fitted, read_version=head.version, properties=properties), files)


def _with_files_of_head(
    mine: Fragment, old: Fragment, theirs: Fragment, operation: op.Delete | op.Update, head: Manifest
) -> Fragment:
    """The head's files, where ours restates the ones it knew: a dropped column takes its files with it."""
    if old.files == theirs.files:
        return mine
    kept = {(file.path, file.base_id) for file in theirs.files}
    known = {(file.path, file.base_id) for file in old.files}
    if not kept <= known:
        raise _conflict(operation, head, f"the files of fragment {mine.id} were replaced", "same_fragments")
    if not rewrites_columns(operation):
        return mine.with_files(theirs.files)
    gone = known - kept
    return mine.with_files([file for file in mine.files if (file.path, file.base_id) not in gone])


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
    alive: LiveFragments | None = None
    for landed in others:
        theirs = landed.transaction.operation if landed.transaction else None
        if isinstance(theirs, op.Update) and theirs.fields_modified:
            if alive is None:
                section = index_metadata.decode_section(head.index_section, path=head.path)
                alive = LiveFragments.of(section, (fragment.id for fragment in head.message.fragments))
            changed = [fragment.id for fragment in theirs.updated]
            new = remove_coverage(new, changed, alive, on_fields=frozenset(theirs.fields_modified))
    if any(landed.transaction and isinstance(landed.transaction.operation, op.Merge) for landed in others):
        new = tuple(_remove_refiled_fragments(index, base, head) for index in new)
    return replace(operation, new=new, removed=(*operation.removed, *_superseded_system_segments(operation, head)))


def _remove_refiled_fragments(index: IndexMetadata, base: Manifest, head: Manifest) -> IndexMetadata:
    """Less the fragments where another file has its column now: a merge does not tell whether values are others."""
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
    changed = BitMap(number for number, held in files(base).items() if after.get(number, held) != held)
    return index.with_coverage(covered - changed) if changed else index


def _superseded_system_segments(operation: op.CreateIndex, head: Manifest) -> Iterator[IndexMetadata]:
    """Of an index of the library's own there is exactly one: what is there gives way."""
    brought = {index.name for index in operation.new} & SYSTEM_INDICES
    if not brought:
        return
    known = {index.uuid for index in (*operation.new, *operation.removed)}
    for index in index_metadata.decode_section(head.index_section, path=head.path):
        if index.name in brought and index.uuid not in known:
            yield index


def _tombstone_dropped_columns(
    fragments: Sequence[Fragment], before: TableSchema, after: TableSchema, operation: Operation, head: Manifest
) -> tuple[Fragment, ...]:
    """With columns dead that others dropped meanwhile, so that no later column can be mistaken for them. A column that
    was written anew under its name is not dropped: the values brought for it would be lost."""
    known, there = _field_paths(before), _field_paths(after)
    dropped = known.keys() - there.keys()
    if not dropped:
        return tuple(fragments)
    anew = {there[field_id] for field_id in there.keys() - known.keys()} & {known[field_id] for field_id in dropped}
    fitted = []
    for fragment in fragments:
        for field_id in (each for file in fragment.files for each in file.field_ids):
            if field_id in dropped and known[field_id] in anew:
                what = f"the column {'.'.join(known[field_id])} was written anew"
                raise _conflict(operation, head, what, "columns_are_there")
        files = [file.without_fields(dropped) if dropped & set(file.field_ids) else file for file in fragment.files]
        living = [file for file in files if set(file.field_ids) != {TOMBSTONE}]
        if not living or any(file.version.is_legacy for file in files if TOMBSTONE in file.field_ids):
            raise _conflict(operation, head, "all of its columns were dropped", "columns_are_there")
        fitted.append(fragment.with_files(living))
    return tuple(fitted)


def _fragments_before_and_now(
    operation: Operation, base: Manifest, head: Manifest
) -> tuple[dict[FragmentId, Fragment], dict[FragmentId, Fragment]]:
    """The fragments that the operation restates, before and now."""
    wanted = updated_fragments(operation).keys()

    def of(manifest: Manifest) -> dict[FragmentId, Fragment]:
        messages = manifest.message.fragments
        return {FragmentId(message.id): Fragment(message) for message in messages if message.id in wanted}

    return of(base), of(head)


def _deletion_key(fragment: Fragment | None) -> bytes | None:
    if fragment is None or fragment.deletion_file is None:
        return None
    return fragment.message.deletion_file.SerializeToString()


def _field_paths(schema: TableSchema) -> dict[int, tuple[str, ...]]:
    """Of every field, by its number: the names that lead to it."""
    found: dict[int, tuple[str, ...]] = {}
    left: list[tuple[Field, tuple[str, ...]]] = [(field, (field.name,)) for field in schema.fields]
    while left:
        field, path = left.pop()
        found[field.id] = path
        left += [(child, (*path, child.name)) for child in field.children]
    return found


def _conflict(operation: Operation, head: Manifest, what: str, rule: str) -> RetryableConflict:
    return RetryableConflict(
        f"this {operation.name} cannot follow version {head.version}: {what} since it was planned; open the table "
        "again and repeat the operation on the new version",
        ours=operation.name,
        theirs="an earlier commit",
        version=head.version,
        rule=rule,
    )
