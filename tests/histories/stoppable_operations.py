"""Catalogue of stoppable operations: every operation that changes something, in a process that can be stopped at any
call. The operations of `table_operations.py` have an intent; references, clones, detached versions and cleanup have
none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lance_core import AlreadyExists, Audit, Committed, LanceError, NotFound, Table
from lance_core.format import naming
from lance_core.format.naming import NamingScheme
from lance_core.operations import Append
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from tests.histories.storage_backends import StorageBackend
from tests.histories.table_operations import OPERATION_PROPERTIES, ROWS_PER_FRAGMENT, TABLE_OPERATIONS, make_rows
from tests.lance_core.concurrent_appends import commit_together
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.transactions.example_operations import write_new_fragments

INTENT = "the same every time"


@dataclass(frozen=True)
class ProcessContext:
    """Storage backend and manifest store of one simulated process."""

    backend: StorageBackend
    manifest_store: ManifestStore | None

    @property
    def uri(self) -> str:
        return self.backend.uri

    @property
    def clone_uri(self) -> str:
        return f"{self.uri}-clone"

    def open_table(self, *, version: int | None = None, branch: str | None = None) -> Table:
        return Table.open(self.uri, version=version, branch=branch, manifest_store=self.manifest_store, durable=False)

    def table_exists(self, uri: str) -> bool:
        return Table.exists(uri, manifest_store=self.manifest_store)

    def list_manifest_names(self) -> list[str]:
        store = self.open_table()._location.own_store
        return [info.path.rpartition("/")[2] for info in store.list(naming.VERSIONS)]


def do_nothing(_context: ProcessContext) -> None:
    """Leave the table unchanged."""


@dataclass(frozen=True)
class StoppableOperation:
    run: Callable[[ProcessContext], Committed | object]
    prepare: Callable[[ProcessContext], object] = do_nothing
    is_idempotent: bool = True
    """`True` if the operation has an intent."""
    repetition_errors: tuple[type[LanceError], ...] = ()
    """Errors of a repetition that has nothing left to do."""
    has_visible_steps: bool = False
    """`True` if readers can see a part of the result before all of it is done."""
    creates_table: bool = False
    follow_up: Callable[[ProcessContext], object] = do_nothing
    """Operation that must be possible afterwards."""
    excludes_manifest_store: bool = False
    """`True` if the operation requires a table without a manifest store."""

    def supports_backend(self, name: str) -> bool:
        return not self.excludes_manifest_store or name in ("memory", "disk", "bucket", "bucket of an emulator")


def audit_row_count(table: Table, base: Table | None) -> None:
    """Audit that accepts a table whose rows can be read."""
    assert table.to_table().num_rows == table.count_rows()
    assert base is None or base.version < table.version


def _create_table(context: ProcessContext, audit: Audit | None = None) -> object:
    return Table.create(
        context.uri,
        make_rows(0, ROWS_PER_FRAGMENT),
        manifest_store=context.manifest_store,
        intent=INTENT,
        properties=OPERATION_PROPERTIES,
        audit=audit,
        durable=False,
    )


def _table_operation(name: str) -> StoppableOperation:
    return StoppableOperation(lambda context: TABLE_OPERATIONS[name](context.open_table(), INTENT))


def _audited_operation(
    run: Callable[[Table, dict[str, Any]], Committed], audit: Audit | None = audit_row_count
) -> StoppableOperation:
    options = {"intent": INTENT, "properties": OPERATION_PROPERTIES, "audit": audit}
    return StoppableOperation(lambda context: run(context.open_table(), options))


def _commit_detached(context: ProcessContext) -> Committed:
    table = context.open_table()
    append = Append(write_new_fragments(table._snapshot, make_rows(700, 1)))
    return table.commit(append, detached=True, properties=OPERATION_PROPERTIES)


def _publish_detached(context: ProcessContext) -> Committed:
    (number,) = filter(None, map(naming.parse_detached_name, context.list_manifest_names()))
    return context.open_table().publish(number)


def _revert_manifest_names(context: ProcessContext) -> None:
    """Give all manifests the names of the old scheme."""
    table = context.open_table()
    store = table._location.own_store
    for number in table.version_numbers():
        path = naming.manifest_path(number)
        store.put(naming.manifest_path(number, NamingScheme.V1), store.read(path))
        store.delete(path)


def _append_to_branch(context: ProcessContext) -> Committed:
    branch = context.open_table(branch="dev")
    return branch.append(make_rows(800, 1), intent=INTENT, properties=OPERATION_PROPERTIES)


def _commit_append_group(context: ProcessContext) -> object:
    """Commit three appends, each with its own intent, as one group that shares a file."""
    appends = [make_rows(800 + number, 1 + number) for number in (0, 10, 20)]
    return commit_together(context.open_table(), *appends, intent=INTENT, properties=OPERATION_PROPERTIES)


def _clean_up(context: ProcessContext) -> object:
    return clean_up(context.open_table())


def _create_branch(context: ProcessContext) -> Table:
    return context.open_table().branches.create("dev")


def _create_branch_with_rows(context: ProcessContext) -> Committed:
    return _create_branch(context).append(make_rows(800, 1))


def _create_tag(context: ProcessContext) -> None:
    context.open_table().tags.create("t", 1)


STOPPABLE_OPERATIONS: Mapping[str, StoppableOperation] = {
    "create": StoppableOperation(_create_table, creates_table=True),
    **{name: _table_operation(name) for name in (
        "append", "append several files", "overwrite", "delete row 0", "delete fragment 0", "update row 0",
        "update v of fragment 0", "update v everywhere", "upsert keys 0 and 100", "upsert v of fragment 0",
        "upsert deletes rows 1 and 6", "add z of nulls", "add z from v", "merge z", "drop v", "reorder", "rename v",
        "recast v", "make v mandatory", "config a=1", "metadata a=1", "schema metadata a", "field metadata v",
        "restore 1", "compact", "add base x",
    )},
    "group commit of appends": StoppableOperation(_commit_append_group, has_visible_steps=True),
    "create, audited": StoppableOperation(lambda context: _create_table(context, audit_row_count), creates_table=True),
    "append, audited": _audited_operation(lambda table, options: table.append(make_rows(700, 3), **options)),
    "delete, audited": _audited_operation(lambda table, options: table.delete("id = 3", **options)),
    "overwrite a slice": _audited_operation(
        lambda table, options: table.overwrite(make_rows(3, 2), where="id in (3, 4)", **options), audit=None
    ),
    "append to a branch": StoppableOperation(_append_to_branch, prepare=_create_branch),
    "tag": StoppableOperation(
        lambda context: context.open_table().tags.create("good", 2),
        is_idempotent=False,
        repetition_errors=(AlreadyExists,),
    ),
    "move a tag": StoppableOperation(
        lambda context: context.open_table().tags.update("t", 3), prepare=_create_tag, is_idempotent=False
    ),
    "delete a tag": StoppableOperation(
        lambda context: context.open_table().tags.delete("t"),
        prepare=_create_tag,
        is_idempotent=False,
        repetition_errors=(NotFound,),
        follow_up=lambda context: context.open_table().tags.create("t", 2),
    ),
    "branch": StoppableOperation(
        _create_branch, is_idempotent=False, repetition_errors=(AlreadyExists,), follow_up=_append_to_branch
    ),
    "delete a branch": StoppableOperation(
        lambda context: context.open_table().branches.delete("dev"),
        prepare=_create_branch_with_rows,
        is_idempotent=False,
        repetition_errors=(NotFound,),
        follow_up=_create_branch,
    ),
    "shallow clone": StoppableOperation(
        lambda context: context.open_table().clone(context.clone_uri),
        is_idempotent=False,
        repetition_errors=(AlreadyExists,),
    ),
    "deep clone": StoppableOperation(
        lambda context: context.open_table().clone(context.clone_uri, shallow=False),
        is_idempotent=False,
        repetition_errors=(AlreadyExists,),
    ),
    "detached": StoppableOperation(_commit_detached, is_idempotent=False, has_visible_steps=True),
    "publish": StoppableOperation(_publish_detached, prepare=_commit_detached, is_idempotent=False),
    "cleanup": StoppableOperation(_clean_up, is_idempotent=False, has_visible_steps=True),
    "migrate names": StoppableOperation(
        lambda context: context.open_table(version=1).migrate_manifest_names(),
        prepare=_revert_manifest_names,
        is_idempotent=False,
        has_visible_steps=True,
        excludes_manifest_store=True,
    ),
}  # fmt: skip
"""Operations by a description of what they do."""
