"""Apply: computes the manifest after a change from the head and the operation.

This module is pure: the caller passes time, names, the library version and, for a Restore, the older version.
`format/manifest_builder.py` stores the result; `apply_rows.py` holds the operations on rows and columns. Start with
`apply`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from lance_core.errors import InvalidInput, Unsupported
from lance_core.format import base_path, ingest_records, key_metadata, mem_wal, view_records
from lance_core.format import operations as op
from lance_core.format.base_path import BasePath
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion
from lance_core.format.ids import Version
from lance_core.format.manifest import PARENT_BYTES_MAX, Manifest
from lance_core.format.manifest_builder import ManifestBuilder
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import MapUpdate, Operation
from lance_core.format.schema import Field, TableSchema
from lance_core.format.transaction import INLINE_BYTES_MAX, Transaction
from lance_core.transactions import apply_rows, invariants

_CHANGES_VALUES = (op.Delete, op.Update, op.Rewrite, op.Merge, op.Project, op.DataReplacement)
_OWN_KEY_PREFIX = "lance_assets."


@dataclass(frozen=True, slots=True)
class NewTable:
    """Choices that are made once, when a table is created."""

    storage_version: StorageVersion
    stable_row_ids: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """A table, or a branch of one, that begins as a version of another branch, under the same number."""

    source: Manifest
    base: BasePath | None
    """The location of the source's files; `None` if they were copied."""
    branch: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    """Config entries that differ from those of the source."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The inputs of one commit attempt that are neither in the transaction nor in the head."""

    now_ns: int
    library_version: str
    transaction_file: str
    scheme: NamingScheme = NamingScheme.V2
    version: Version | None = None
    """The number of a detached version; `None` for the version after the head."""
    checksums: Mapping[str, FileChecksum] = field(default_factory=dict)
    """Checksums that the head dropped, by qualified path."""


def apply(
    head: Manifest | NewTable | Fork, ours: Transaction, context: CommitContext, *, restored: Manifest | None = None
) -> Manifest:
    """Return the manifest of the version after `head`, or of the first version for a `NewTable` or a `Fork`."""
    before = None
    match head:
        case NewTable():
            builder = ManifestBuilder.for_new_table(
                head.storage_version, stable_row_ids=head.stable_row_ids, version=context.version
            )
        case Fork():
            builder = _builder_for_fork(head)
        case _:
            head.check_writable()
            before = head
            builder = ManifestBuilder.for_successor(head, version=context.version)
            if isinstance(ours.operation, op.Restore):
                builder = _builder_for_restore(head, ours.operation, restored, context.version)
    if not isinstance(head, Fork):
        _check_added_fragments(before, ours.operation)
        if not builder.has_stable_row_ids:
            invariants.check_no_row_ids(op.new_fragments(ours.operation))
        _apply_operation(builder, ours, context)
        if context.checksums:
            builder.record_checksums(context.checksums)
        _record_ingested_files(builder, ours)
        _record_view(builder, ours)
    record = _with_parent(ours, head).encode()
    after = builder.finish(
        now_ns=context.now_ns,
        library_version=context.library_version,
        transaction_file=context.transaction_file,
        transaction=record if len(record) <= INLINE_BYTES_MAX else None,
        scheme=context.scheme,
    )
    number = head.source.version if isinstance(head, Fork) else context.version
    invariants.check(before, after, added=builder.added_fragments, number=number)
    return after


def encode_transaction_file(head: Manifest | NewTable | Fork, ours: Transaction) -> bytes:
    """Return the content of the transaction's own file.

    The inline copy in the manifest records the parent hash and is encoded for each attempt. The file omits it, so
    that it stays the same when the change is rebased onto another head, unless the transaction is too large for an
    inline copy.
    """
    record = ours.encode()
    return record if len(record) <= INLINE_BYTES_MAX - PARENT_BYTES_MAX else _with_parent(ours, head).encode()


def _with_parent(ours: Transaction, head: Manifest | NewTable | Fork) -> Transaction:
    match head:
        case NewTable():
            return ours
        case Fork():
            return replace(ours, parent=head.source.as_parent)
        case _:
            return replace(ours, parent=head.as_parent)


def _check_added_fragments(head: Manifest | None, operation: Operation) -> None:
    if isinstance(operation, op.Append):
        if head:
            head.check_last_fragment_id()
        invariants.check_fields(operation.fragments, head.schema if head else TableSchema((), {}))
        invariants.check_files_once(operation.fragments, head)
    elif isinstance(operation, op.Merge | op.Project):
        operation.schema.check_keys()
    elif isinstance(operation, op.Overwrite):
        invariants.check_schema(operation.schema)
        invariants.check_fields(operation.fragments, operation.schema)
        invariants.check_files_once(operation.fragments, None)


def _apply_operation(builder: ManifestBuilder, ours: Transaction, context: CommitContext) -> None:
    operation = ours.operation
    if builder.has_overlays and isinstance(operation, _CHANGES_VALUES):
        apply_rows.uncover_overlaid_fragments(builder)
    match operation:
        case op.Append():
            _check_ids(builder, operation)
            builder.add_fragments(operation.fragments, keep_ids=True)
        case op.Overwrite():
            if any(fragment.deletion_file for fragment in operation.fragments):
                raise InvalidInput("an Overwrite cannot contain fragments with deleted rows")
            builder.replace_contents(operation.schema)
            builder.set_config({**builder.config, **operation.config_upserts})
            builder.add_fragments(operation.fragments, keep_ids=False)
        case op.Delete():
            apply_rows.delete(builder, operation)
        case op.Update():
            apply_rows.update(builder, operation, read_version=ours.read_version)
            _record_progress(builder, operation.progress, ours, context)
        case op.Rewrite():
            apply_rows.rewrite(builder, operation)
        case op.Merge():
            apply_rows.merge(builder, operation)
        case op.Project():
            apply_rows.project(builder, operation)
        case op.DataReplacement():
            apply_rows.replace_data(builder, operation, read_version=ours.read_version)
        case op.CreateIndex():
            _create_index(builder, operation)
        case op.UpdateConfig():
            _update_config(builder, operation)
        case op.ReserveFragments():
            builder.reserve_fragment_ids(operation.count)
        case op.Restore():
            pass  # the builder started from the restored version
        case op.UpdateBases():
            builder.set_base_paths(base_path.add_bases(builder.base_paths, operation.new))
        case op.UpdateMemWalState():
            _record_progress(builder, operation.progress, ours, context)
        case op.Clone() | op.DataOverlay() | op.AppendFragmentReuseTransitions() | op.Other():
            raise Unsupported(f"{operation.name} can be read, but not committed to an existing table")


def _record_ingested_files(builder: ManifestBuilder, ours: Transaction) -> None:
    if ingest_records.INGESTED not in ours.properties:
        return
    name, version = ours.operation.name, builder.version - 1
    config = ingest_records.config_after(builder.config, ours.properties, ours=name, version=version)
    if config is not None:
        builder.set_config(config)


def _record_view(builder: ManifestBuilder, ours: Transaction) -> None:
    if view_records.VIEW not in ours.properties:
        return
    name, version = ours.operation.name, builder.version - 1
    config = view_records.config_after(builder.config, ours.properties, ours=name, version=version)
    if config is not None:
        builder.set_config(config)


def _check_ids(builder: ManifestBuilder, append: op.Append) -> None:
    last = builder.max_fragment_id
    for fragment in append.fragments:
        if fragment.id and fragment.id <= last:
            raise InvalidInput(
                f"this Append contains a fragment with id {fragment.id}, but ids up to {last} are already assigned; "
                "append fragments as their writer returned them, without ids"
            )
        last = fragment.id or last + 1


def _builder_for_fork(head: Fork) -> ManifestBuilder:
    head.source.check_writable()
    builder = ManifestBuilder.for_other_location(head.source, base=head.base, branch=head.branch)
    builder.set_config({**builder.config, **head.config})
    return builder


def _builder_for_restore(
    head: Manifest, operation: op.Restore, restored: Manifest | None, version: Version | None
) -> ManifestBuilder:
    assert restored is not None
    assert restored.version == operation.version, "the caller passes the version to restore"
    restored.check_writable()
    if head.has_stable_row_ids and not restored.has_stable_row_ids:
        raise InvalidInput(
            f"version {operation.version} cannot be restored, because it has no stable row ids and the table has them "
            "now; read that version by its number and overwrite the table with its rows"
        )
    return ManifestBuilder.for_successor(head, contents=restored, version=version)


def _create_index(builder: ManifestBuilder, operation: op.CreateIndex) -> None:
    replaced = {index.uuid for index in (*operation.removed, *operation.new)}
    retained = [index for index in builder.indices if index.uuid not in replaced]
    builder.set_indices([*retained, *operation.new])


def _record_progress(
    builder: ManifestBuilder, progress: Sequence[op.Progress], ours: Transaction, context: CommitContext
) -> None:
    """Update the MemWAL entry. It gets the uuid of the transaction, which no other entry has."""
    if progress:
        identity, created_ms = UUID(ours.uuid), context.now_ns // 1_000_000
        indices = builder.indices
        builder.set_indices(
            mem_wal.with_progress(indices, progress, identity=identity, version=builder.version, created_ms=created_ms)
        )


def _update_config(builder: ManifestBuilder, operation: op.UpdateConfig) -> None:
    if operation.config is not None:
        after = operation.config.applied_to(builder.config)
        # The library's own entries survive a replacement, even those written since it was planned.
        ours = {key: value for key, value in builder.config.items() if key.startswith(_OWN_KEY_PREFIX)}
        updated = operation.config.entries.keys()
        builder.set_config(after | {key: value for key, value in ours.items() if key not in updated})
    if operation.table_metadata is not None:
        builder.set_table_metadata(operation.table_metadata.applied_to(builder.table_metadata))
    if operation.checksums:
        builder.record_checksums(operation.checksums)
    if operation.schema_metadata is not None or operation.field_metadata:
        builder.set_schema(_with_metadata(builder.schema, operation))


def _with_metadata(schema: TableSchema, operation: op.UpdateConfig) -> TableSchema:
    metadata = dict(schema.metadata)
    if operation.schema_metadata is not None:
        metadata = _apply_metadata_update(operation.schema_metadata, metadata)
    known = {field.id for top in schema.fields for field in top.walk()}
    if unknown := sorted(set(operation.field_metadata) - known):
        raise InvalidInput(f"no field has the id {unknown[0]}; set metadata only on existing fields")
    changed = TableSchema(tuple(_with_field_metadata(field, operation) for field in schema.fields), metadata)
    key_metadata.check_update(
        _metadata_by_id(schema),
        {id: update.entries for id, update in operation.field_metadata.items()},
        _metadata_by_id(changed),
    )
    changed.check_keys()
    return changed


def _metadata_by_id(schema: TableSchema) -> dict[int, Mapping[bytes, bytes]]:
    return {field.id: field.metadata for top in schema.fields for field in top.walk()}


def _with_field_metadata(field: Field, operation: op.UpdateConfig) -> Field:
    children = tuple(_with_field_metadata(child, operation) for child in field.children)
    metadata = dict(field.metadata)
    if field.id in operation.field_metadata:
        metadata = _apply_metadata_update(operation.field_metadata[field.id], metadata)
    return Field(field.id, field.name, field.logical_type, field.nullable, metadata, children)


def _apply_metadata_update(update: MapUpdate, current: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Apply an update of string values. Values that are not updated keep their bytes."""
    after = {} if update.replace else current
    for key, value in update.entries.items():
        if value is None:
            after.pop(key.encode(), None)
        else:
            after[key.encode()] = value.encode()
    return after
