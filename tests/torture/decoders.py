"""Decoder checks: use every part of the bytes of a table's small files, without a table around them.

Each entry of `DECODERS` takes bytes of one kind and uses them as readers and committers do: it decodes them, reads
every part, judges conflicts and applies changes. A check may raise a `LanceError`; the first one is raised only after
all parts were used.
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
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.fsck import manifests as fsck
from lance_core.storage.memory import MemoryStore
from lance_core.transactions.apply import CommitContext, apply
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import judge

DecoderCheck = Callable[[bytes], object]
UUID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
LINEAGE_ROWS = 4
"""Number of rows of the fragments whose row versions are decoded."""
_ROWS = 1 << 16
_COMMIT_CONTEXT = CommitContext(now_ns=1, library_version="0", transaction_file="1-x.txn")


def check_manifest(data: bytes) -> None:
    decoded = Manifest.decode(data, path="_versions/m")
    _run_all(
        lambda: decoded.schema.arrow,
        lambda: decoded.timestamp,
        lambda: (decoded.storage_version, decoded.branch, decoded.config, decoded.table_metadata, decoded.writer),
        lambda: by_id(decoded.base_paths, path="m"),
        lambda: check_transaction(decoded.inline_transaction) if decoded.inline_transaction is not None else None,
        lambda: _run_all(*(partial(_check_index, index) for index in decoded.indices)),
        lambda: _run_all(*(partial(_check_fragment, fragment) for fragment in decoded.fragments)),
        decoded.check_ids,
        decoded.check_last_fragment_id,
        decoded.row_count,
        lambda: list(fsck.check_version(decoded)),
        lambda: list(fsck.check_pair(decoded, decoded)),
        lambda: [finding for fragment in decoded.fragments for finding in fsck.check_fragment(decoded, fragment)],
        lambda: _run_all(
            *(partial(_apply_operation, decoded, each) for each in _operations_keeping_fragments(decoded))
        ),
        lambda: _run_all(
            *(partial(_apply_operation, decoded, each) for each in _operations_removing_fragments(decoded))
        ),
    )


def _apply_operation(head: Manifest, operation: Operation) -> Manifest:
    return apply(head, Transaction(head.version, UUID, operation), _COMMIT_CONTEXT)


def check_transaction(data: bytes) -> None:
    """Check that the transaction survives a round trip, and judge it against each of our operations."""
    theirs = Transaction.decode(data, path="t")
    again = Transaction.decode(theirs.encode(), path="t")
    assert again.operation.name == theirs.operation.name
    committed = [CommittedTransaction(Version(2), theirs)]
    new_fragment = Fragment.of(files=[_new_data_file()], physical_rows=3)
    schema = TableSchema((), {})
    ours: tuple[Operation, ...] = (
        Append((new_fragment,)),
        Overwrite((new_fragment,), schema),
        Delete((new_fragment.with_id(0), new_fragment.with_id(7)), (FragmentId(1),), "", {FragmentId(0): b""}),
        Update((FragmentId(1),), (new_fragment.with_id(0),), (new_fragment,), inserted_keys=b""),
        Rewrite((RewriteGroup((new_fragment.with_id(0),), (new_fragment,)),)),
        Merge((new_fragment,), schema, preserves_nullability=False),
        UpdateConfig(MapUpdate({"a": "b"}), MapUpdate({}, replace=True)),
        theirs.operation,
    )
    _run_all(*(partial(judge, Transaction(Version(1), UUID, each), committed) for each in ours))


def deletion_check(*, as_bitmap: bool) -> DecoderCheck:
    def use(data: bytes) -> None:
        decode = DeletionVector.decode_bitmap if as_bitmap else DeletionVector.decode_arrow
        decoded = decode(data, path="d")
        assert all(before < after for before, after in pairwise(decoded.offsets.tolist()))
        assert decode(decoded.encode(as_bitmap=as_bitmap), path="d").offsets.tolist() == decoded.offsets.tolist()

    return use


def check_row_ids(data: bytes) -> None:
    decoded = RowIdSequence.decode_partial(data, rows_max=_ROWS, path="r")
    ids = decoded.to_numpy()
    assert len(ids) == len(decoded) <= _ROWS
    assert len(set(ids.tolist())) == len(ids)
    assert RowIdSequence.decode(decoded.encode(), rows=len(ids), path="r").to_numpy().tolist() == ids.tolist()


def check_row_versions(data: bytes) -> None:
    decoded = RowVersions.decode(data, rows=LINEAGE_ROWS, path="r", field="created_at")
    assert len(decoded.to_numpy()) == len(decoded) == LINEAGE_ROWS
    assert RowVersions.decode(decoded.encode(), rows=LINEAGE_ROWS, path="r", field="created_at").runs == decoded.runs


def check_fragment_reuse(data: bytes) -> None:
    decoded = FragmentReuse.decode(data, path="f")
    assert decoded.follow_coverage(decoded.new_fragments) is not None


def check_tag(data: bytes) -> None:
    decoded = refs.decode_tag(data, path="t")
    assert decoded.branch is None or refs.is_branch_name(decoded.branch)
    assert refs.decode_tag(refs.encode_tag(decoded), path="t") == decoded
    _ = (decoded.created_at, decoded.updated_at)


def check_branch(data: bytes) -> None:
    decoded = refs.decode_branch(data, name="b", path="b")
    assert decoded.parent_branch is None or refs.is_branch_name(decoded.parent_branch)
    assert refs.decode_branch(refs.encode_branch(decoded), name="b", path="b") == decoded
    _ = decoded.created_at


def check_intent(data: bytes) -> None:
    store = MemoryStore()
    store.put(idempotency.path_of("monday"), data)
    _run_all(
        lambda: idempotency.read_records(store, lambda _listed: True),
        lambda: idempotency.claim(store, "monday", verb="append", base=Version(1), uuid=UUID, now_ns=1),
    )


DECODERS: Mapping[str, DecoderCheck] = {
    "manifest": check_manifest,
    "transaction": check_transaction,
    "deletions as arrow": deletion_check(as_bitmap=False),
    "deletions as a bitmap": deletion_check(as_bitmap=True),
    "row ids": check_row_ids,
    "row versions": check_row_versions,
    "fragment reuse": check_fragment_reuse,
    "tag": check_tag,
    "branch": check_branch,
    "intent": check_intent,
}


def _run_all(*checks: Callable[[], object]) -> None:
    first_error: LanceError | None = None
    for check in checks:
        try:
            check()
        except LanceError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _check_fragment(fragment: Fragment) -> None:
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


def _check_index(index: IndexMetadata) -> None:
    _ = (index.qualified_path, index.file_names, index.covers, index.kind, index.field_ids, index.stores_addresses)
    progress_of(index)
    if index.name == FRAGMENT_REUSE:
        content_of(index)


def _operations_keeping_fragments(decoded: Manifest) -> Iterator[Operation]:
    """Yield operations that change no existing fragment."""
    yield Append(())
    yield Append((Fragment.of(files=[_new_data_file(decoded)], physical_rows=3),))
    yield UpdateConfig(MapUpdate({"a": "b"}), MapUpdate({"c": None}), MapUpdate({"d": "e"}))
    yield ReserveFragments(3)


def _operations_removing_fragments(decoded: Manifest) -> Iterator[Operation]:
    for fragment in decoded.fragments[:1]:
        yield Delete((), (fragment.id,), "true")
        yield Update((fragment.id,), (), (Fragment.of(files=[_new_data_file(decoded)], physical_rows=3),))
    yield Overwrite((), decoded.schema)


def _new_data_file(of: Manifest | None = None) -> DataFile:
    ids = [node.id for top in of.schema.fields for node in top.walk()] if of else [0]
    version = of.storage_version if of else StorageVersion(2, 1)
    return DataFile.of(path="new.lance", field_ids=ids, column_indices=range(len(ids)), version=version, size=1)
