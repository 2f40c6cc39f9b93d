"""Everything that can be asked of the bytes of a table's small files, and of what they say, with no table around them.

Each of `DECODERS` is handed bytes of one kind and goes on as readers and committers would: it decodes, looks at every
part, judges conflicts, applies changes. What it raises may be a `LanceError`, and the first one is raised only when all
has been asked.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

from lance_core import LanceError
from lance_core.coordination import idempotency
from lance_core.format import refs
from lance_core.format.base_path import by_id
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.fragment_reuse import FragmentReuse, content_of
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import FRAGMENT_REUSE, IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.mem_wal import progress_of
from lance_core.format.operations import (
    Append,
    Delete,
    MapUpdate,
    Merge,
    Operation,
    Overwrite,
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    Update,
    UpdateConfig,
)
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.fsck import manifests as fsck
from lance_core.storage.memory import MemoryStore
from lance_core.transactions.apply import CommitContext, apply
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import judge

Judge = Callable[[bytes], object]
UUID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
LINEAGE_ROWS = 4
"""Of the fragments whose row versions are tried."""
_ROWS = 1 << 16
_OCCASION = CommitContext(now_ns=1, library_version="0", transaction_file="1-x.txn")


def manifest(data: bytes) -> None:
    found = Manifest.decode(data, path="_versions/m")
    _all_of(
        lambda: found.schema.arrow,
        lambda: found.timestamp,
        lambda: (found.storage_version, found.branch, found.config, found.table_metadata, found.writer),
        lambda: by_id(found.base_paths, path="m"),
        lambda: transaction(found.inline_transaction) if found.inline_transaction is not None else None,
        lambda: _all_of(*(partial(_index, index) for index in found.indices)),
        lambda: _all_of(*(partial(_fragment, fragment) for fragment in found.fragments)),
        found.check_ids,
        found.check_last_fragment_id,
        found.row_count,
        lambda: list(fsck.check_version(found)),
        lambda: list(fsck.check_pair(found, found)),
        lambda: [finding for fragment in found.fragments for finding in fsck.check_fragment(found, fragment)],
        lambda: _all_of(*(partial(_applied, found, each) for each in _changes(found))),
        lambda: _all_of(*(partial(_applied, found, each) for each in _removals(found))),
    )


def _applied(head: Manifest, operation: Operation) -> Manifest:
    return apply(head, Transaction(head.version, UUID, operation), _OCCASION)


def transaction(data: bytes) -> None:
    """It comes back as it was, and stands or falls beside whatever somebody commits."""
    theirs = Transaction.decode(data, path="t")
    again = Transaction.decode(theirs.encode(), path="t")
    assert again.operation.name == theirs.operation.name
    landed = [CommittedTransaction(Version(2), theirs)]
    mine = Fragment.of(files=[_file()], physical_rows=3)
    schema = TableSchema((), {})
    ours: tuple[Operation, ...] = (
        Append((mine,)),
        Overwrite((mine,), schema),
        Delete((mine.with_id(0), mine.with_id(7)), (FragmentId(1),), "", {FragmentId(0): b""}),
        Update((FragmentId(1),), (mine.with_id(0),), (mine,), inserted_keys=b""),
        Rewrite((RewriteGroup((mine.with_id(0),), (mine,)),)),
        Merge((mine,), schema, preserves_nullability=False),
        UpdateConfig(MapUpdate({"a": "b"}), MapUpdate({}, replace=True)),
        theirs.operation,
    )
    _all_of(*(partial(judge, Transaction(Version(1), UUID, each), landed) for each in ours))


def deletions(*, as_bitmap: bool) -> Judge:
    def use(data: bytes) -> None:
        decode = DeletionVector.decode_bitmap if as_bitmap else DeletionVector.decode_arrow
        found = decode(data, path="d")
        assert all(before < after for before, after in pairwise(found.offsets.tolist()))
        assert decode(found.encode(as_bitmap=as_bitmap), path="d").offsets.tolist() == found.offsets.tolist()

    return use


def row_ids(data: bytes) -> None:
    found = RowIdSequence.decode_partial(data, rows_max=_ROWS, path="r")
    ids = found.to_numpy()
    assert len(ids) == len(found) <= _ROWS
    assert len(set(ids.tolist())) == len(ids)
    assert RowIdSequence.decode(found.encode(), rows=len(ids), path="r").to_numpy().tolist() == ids.tolist()


def row_versions(data: bytes) -> None:
    found = RowVersions.decode(data, rows=LINEAGE_ROWS, path="r", field="created_at")
    assert len(found.to_numpy()) == len(found) == LINEAGE_ROWS
    assert RowVersions.decode(found.encode(), rows=LINEAGE_ROWS, path="r", field="created_at").runs == found.runs


def fragment_reuse(data: bytes) -> None:
    found = FragmentReuse.decode(data, path="f")
    assert found.follow_coverage(found.new_fragments) is not None


def tag(data: bytes) -> None:
    found = refs.decode_tag(data, path="t")
    assert found.branch is None or refs.is_branch_name(found.branch)
    assert refs.decode_tag(refs.encode_tag(found), path="t") == found
    _ = (found.created_at, found.updated_at)


def branch(data: bytes) -> None:
    found = refs.decode_branch(data, name="b", path="b")
    assert found.parent_branch is None or refs.is_branch_name(found.parent_branch)
    assert refs.decode_branch(refs.encode_branch(found), name="b", path="b") == found
    _ = found.created_at


def intent(data: bytes) -> None:
    store = MemoryStore()
    store.put(idempotency.path_of("monday"), data)
    _all_of(
        lambda: idempotency.records(store, lambda _listed: True),
        lambda: idempotency.claim(store, "monday", verb="append", base=Version(1), uuid=UUID, now_ns=1),
    )


DECODERS: Mapping[str, Judge] = {
    "manifest": manifest,
    "transaction": transaction,
    "deletions as arrow": deletions(as_bitmap=False),
    "deletions as a bitmap": deletions(as_bitmap=True),
    "row ids": row_ids,
    "row versions": row_versions,
    "fragment reuse": fragment_reuse,
    "tag": tag,
    "branch": branch,
    "intent": intent,
}


def _all_of(*questions: Callable[[], object]) -> None:
    refused: LanceError | None = None
    for question in questions:
        try:
            question()
        except LanceError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def _fragment(fragment: Fragment) -> None:
    fragment.check(path="m")
    for file in fragment.files:
        _ = (file.qualified_path, file.version, file.size, file.field_ids, file.column_indices)
    if (deleted := fragment.deletion_file) is not None:
        _ = (deleted.qualified_path, deleted.deleted_rows, deleted.is_bitmap)
    _ = fragment.live_rows
    rows = fragment.physical_rows
    if fragment.row_ids is not None:
        RowIdSequence.decode(fragment.row_ids, rows=rows, path="m")
    for versions in (fragment.created_at, fragment.last_updated_at):
        assert len(RowVersions.decode(versions, rows=rows, path="m", field="v")) == rows


def _index(index: IndexMetadata) -> None:
    _ = (index.qualified_path, index.file_names, index.covers, index.kind, index.field_ids, index.stores_addresses)
    progress_of(index)
    if index.name == FRAGMENT_REUSE:
        content_of(index)


def _changes(found: Manifest) -> Iterator[Operation]:
    """What leaves the fragments alone."""
    yield Append(())
    yield Append((Fragment.of(files=[_file(found)], physical_rows=3),))
    yield UpdateConfig(MapUpdate({"a": "b"}), MapUpdate({"c": None}), MapUpdate({"d": "e"}))
    yield ReserveFragments(3)


def _removals(found: Manifest) -> Iterator[Operation]:
    for fragment in found.fragments[:1]:
        yield Delete((), (fragment.id,), "true")
        yield Update((fragment.id,), (), (Fragment.of(files=[_file(found)], physical_rows=3),))
    yield Overwrite((), found.schema)


def _file(of: Manifest | None = None) -> DataFile:
    ids = [node.id for top in of.schema.fields for node in top.walk()] if of else [0]
    version = of.storage_version if of else StorageVersion(2, 1)
    return DataFile.of(path="new.lance", field_ids=ids, column_indices=range(len(ids)), version=version, size=1)
