"""Transaction: the version that was read, the operation, free properties and, once applied, the parent's hash; and the
codec of operations, which decodes the forms of older writers to their current meaning.

`uuid` identifies the intended change and is the same in every attempt of a commit. A writer that finds its uuid in
the history knows that one of its earlier puts succeeded. Start with `Transaction`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]
from pyroaring import BitMap

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import base_path, size_guard
from lance_core.format import operations as op
from lance_core.format._pb import file_pb2, table_pb2, transaction_pb2
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import PARENT, ParentHash
from lance_core.format.operations import MapUpdate, Operation, Other
from lance_core.format.schema import TableSchema
from lance_core.limits import FIELDS, FRAGMENTS, TRANSACTION_BYTES

_DIGITS_MAX = 20
INLINE_BYTES_MAX = 20 * 1024 * 1024
"""A larger transaction is stored only in its own file."""
PLANNED_ON = "lance_assets.planned_on"
"""The property that records the version on which a transaction was planned, if its `read_version` is a newer one, as
the format requires after a rebase has merged deletion vectors."""

VERB = "lance_assets.verb"
"""The property that names the caller's action, such as "upsert", which the format's operation does not identify."""
_Message = transaction_pb2.Transaction
_Progresses: TypeAlias = RepeatedCompositeFieldContainer[table_pb2.CompactedSsTable]
_PATH = "transaction"
_FIELD_ID_MAX = 2**31 - 1
_REUSE_TRANSITIONS = 116
"""The field number of the operation. The message schema omits it, because drafts use the number for two operations."""
_UUID_BYTES = 16
_INDEX_VERSION_MAX = 2**31 - 1
"""The maximum that an index entry of a version can hold; the field of the transaction is larger."""


@dataclass(frozen=True, slots=True)
class Transaction:
    read_version: Version
    uuid: str
    operation: Operation
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that the caller set, and records of the change, such as the sources of columns. The encoded
    transaction also stores the verb and the parent hash among them."""
    parent: ParentHash | None = None
    """`None` before the transaction is applied, for the first version of a table, and if its writer did not record
    it."""
    verb: str | None = None
    """The caller's action, such as "upsert" or "compact"; `None` if the writer did not record it."""

    @property
    def planned_on(self) -> Version:
        """The version on which the transaction was planned; 0 if it creates a table."""
        recorded = self.properties.get(PLANNED_ON, "")
        return Version(int(recorded)) if recorded.isdecimal() and len(recorded) < _DIGITS_MAX else self.read_version

    def encode(self) -> bytes:
        properties = dict(self.properties)
        if self.parent is not None:
            properties[PARENT] = str(self.parent)
        if self.verb is not None:
            properties[VERB] = self.verb
        message = transaction_pb2.Transaction(
            read_version=self.read_version, uuid=self.uuid, transaction_properties=properties
        )
        _encode_operation(message, self.operation)
        return message.SerializeToString(deterministic=True)

    @classmethod
    def check_caps(cls, data: bytes, *, path: str) -> None:
        """Raise `Unsupported` if a reader with the caps of this process refuses an encoded transaction."""
        TRANSACTION_BYTES.check(len(data), path=path)
        size_guard.check_message(data, path=path, kind=transaction_pb2.Transaction)

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "Transaction":
        cls.check_caps(data, path=path)
        try:
            message = transaction_pb2.Transaction.FromString(data)
        except DecodeError as error:
            raise Corrupt("the transaction does not parse", path=path, field="transaction") from error
        properties = dict(message.transaction_properties)
        parent, verb = properties.pop(PARENT, None), properties.pop(VERB, None)
        return cls(
            read_version=Version(message.read_version),
            uuid=message.uuid,
            operation=_decode_operation(message),
            properties=properties,
            parent=None if parent is None else ParentHash.of(parent),
            verb=verb,
        )


def _decode_operation(message: _Message) -> Operation:
    kind = message.WhichOneof("operation")
    if kind is None:
        numbers = {field.field_number for field in UnknownFieldSet(message)}
        return op.AppendFragmentReuseTransitions(message) if numbers == {_REUSE_TRANSITIONS} else Other(message)
    return _DECODE[kind](message)


def _encode_operation(message: _Message, operation: Operation) -> None:
    match operation:
        case op.Append():
            message.append.SetInParent()
            message.append.fragments.extend(_messages(operation.fragments))
        case op.Overwrite():
            message.overwrite.SetInParent()
            message.overwrite.fragments.extend(_messages(operation.fragments))
            _put_schema(message.overwrite, operation.schema)
            message.overwrite.config_upsert_values.update(operation.config_upserts)
        case op.Delete():
            message.delete.SetInParent()
            message.delete.updated_fragments.extend(_messages(operation.updated))
            message.delete.deleted_fragment_ids.extend(operation.removed_ids)
            message.delete.predicate = operation.predicate
        case op.Update():
            _encode_update(message.update, operation)
        case op.CreateIndex():
            message.create_index.SetInParent()
            message.create_index.new_indices.extend(index.message for index in operation.new)
            message.create_index.removed_indices.extend(index.message for index in operation.removed)
        case op.Rewrite():
            _encode_rewrite(message.rewrite, operation)
        case op.Merge():
            message.merge.SetInParent()
            message.merge.fragments.extend(_messages(operation.fragments))
            _put_schema(message.merge, operation.schema)
            message.merge.preserves_nullability = operation.preserves_nullability
        case op.Project():
            message.project.SetInParent()
            message.project.schema.extend(operation.schema.encode())
            message.project.preserves_nullability = operation.preserves_nullability
        case op.Restore():
            message.restore.version = operation.version
        case op.ReserveFragments():
            message.reserve_fragments.num_fragments = operation.count
        case op.UpdateConfig():
            _encode_update_config(message.update_config, operation)
        case op.DataReplacement():
            message.data_replacement.SetInParent()
            for fragment_id, file in operation.replacements:
                message.data_replacement.replacements.add(fragment_id=fragment_id, new_file=file.message)
        case op.UpdateBases():
            message.update_bases.SetInParent()
            message.update_bases.new_bases.extend(base.message for base in operation.new)
        case op.Clone():
            message.clone.SetInParent()
            message.clone.is_shallow = operation.is_shallow
            message.clone.ref_version = operation.ref_version
            message.clone.ref_path = operation.ref_path
            if operation.ref_name is not None:
                message.clone.ref_name = operation.ref_name
            if operation.branch_name is not None:
                message.clone.branch_name = operation.branch_name
        case op.UpdateMemWalState():
            message.update_mem_wal_state.SetInParent()
            _put_progress(message.update_mem_wal_state.compacted_sstables, operation.progress)
        case op.DataOverlay() | op.AppendFragmentReuseTransitions() | Other():
            message.MergeFrom(operation.message)


def _append(message: _Message) -> Operation:
    return op.Append(_fragments(message.append.fragments))


def _overwrite(message: _Message) -> Operation:
    wire = message.overwrite
    schema = _schema(wire.schema, wire.schema_metadata)
    return op.Overwrite(_fragments(wire.fragments), schema, dict(wire.config_upsert_values))


def _delete(message: _Message) -> Operation:
    wire = message.delete
    return op.Delete(_fragments(wire.updated_fragments), _ids(wire.deleted_fragment_ids), wire.predicate)


def _update(message: _Message) -> Operation:
    wire = message.update
    FIELDS.check(max(len(wire.fields_modified), len(wire.fields_for_preserving_frag_bitmap)), path=_PATH)
    return op.Update(
        removed_ids=_ids(wire.removed_fragment_ids),
        updated=_fragments(wire.updated_fragments),
        new=_fragments(wire.new_fragments),
        fields_modified=tuple(wire.fields_modified),
        fields_assigned=tuple(wire.fields_for_preserving_frag_bitmap),
        mode=_mode(wire),
        inserted_keys=wire.inserted_rows.SerializeToString() if wire.HasField("inserted_rows") else None,
        updated_offsets=_updated_offsets(wire),
        progress=_progress(wire.compacted_sstables) or (),
    )


def _mode(wire: _Message.Update) -> op.UpdateMode:
    try:
        return op.UpdateMode(wire.update_mode)
    except ValueError as error:
        raise Unsupported(
            f"an Update has the unknown mode {wire.update_mode}; a newer version of the library may support it"
        ) from error


def _updated_offsets(wire: _Message.Update) -> dict[int, bytes]:
    """Return the updated offsets as bitmaps. Older writers wrote lists; if both are present, they are equal."""
    listed = {
        id: bytes(BitMap(offsets.values).serialize()) for id, offsets in wire.legacy_updated_fragment_offsets.items()
    }
    return {**listed, **wire.updated_fragment_offset_bitmaps}


def _encode_update(wire: _Message.Update, operation: op.Update) -> None:
    wire.SetInParent()
    wire.removed_fragment_ids.extend(operation.removed_ids)
    wire.updated_fragments.extend(_messages(operation.updated))
    wire.new_fragments.extend(_messages(operation.new))
    wire.fields_modified.extend(operation.fields_modified)
    wire.fields_for_preserving_frag_bitmap.extend(operation.fields_assigned)
    wire.update_mode = _Message.UpdateMode.Name(operation.mode.value)  # type: ignore[assignment]
    if operation.inserted_keys is not None:
        wire.inserted_rows.MergeFromString(operation.inserted_keys)
    for fragment_id, offsets in operation.updated_offsets.items():
        wire.updated_fragment_offset_bitmaps[fragment_id] = offsets
    _put_progress(wire.compacted_sstables, operation.progress)


def _create_index(message: _Message) -> Operation:
    wire = message.create_index
    return op.CreateIndex(_indices(wire.new_indices), _indices(wire.removed_indices))


def _rewrite(message: _Message) -> Operation:
    wire = message.rewrite
    groups = [
        op.RewriteGroup(_fragments(group.old_fragments), _fragments(group.new_fragments)) for group in wire.groups
    ]
    if wire.legacy_old_fragments or wire.legacy_new_fragments:
        old, new = wire.legacy_old_fragments, wire.legacy_new_fragments
        groups.append(op.RewriteGroup(_fragments(old), _fragments(new)))
    rewritten = []
    for index in wire.rewritten_indices:
        if index.new_index_version > _INDEX_VERSION_MAX:
            raise Unsupported(f"a Rewrite has an index of version {index.new_index_version}, which no table can hold")
        after = table_pb2.IndexMetadata(uuid=index.new_id, files=index.new_index_files)
        after.index_version = index.new_index_version
        if index.HasField("new_index_details"):
            after.index_details.CopyFrom(index.new_index_details)
        rewritten.append((index.old_id.uuid, IndexMetadata(after)))
    return op.Rewrite(tuple(groups), tuple(rewritten))


def _encode_rewrite(wire: _Message.Rewrite, operation: op.Rewrite) -> None:
    wire.SetInParent()
    for group in operation.groups:
        wire.groups.add(old_fragments=_messages(group.old), new_fragments=_messages(group.new))
    for old_id, index in operation.rewritten_indices:
        after = index.message
        rewritten = wire.rewritten_indices.add(
            new_id=after.uuid, new_index_version=after.index_version, new_index_files=after.files
        )
        rewritten.old_id.uuid = old_id
        if after.HasField("index_details"):
            rewritten.new_index_details.CopyFrom(after.index_details)


def _merge(message: _Message) -> Operation:
    wire = message.merge
    schema = _schema(wire.schema, wire.schema_metadata)
    return op.Merge(_fragments(wire.fragments), schema, wire.preserves_nullability)


def _project(message: _Message) -> Operation:
    return op.Project(_schema(message.project.schema, {}), message.project.preserves_nullability)


def _restore(message: _Message) -> Operation:
    return op.Restore(Version(message.restore.version))


def _reserve(message: _Message) -> Operation:
    return op.ReserveFragments(message.reserve_fragments.num_fragments)


def _update_config(message: _Message) -> Operation:
    """Decode an UpdateConfig. Older writers had a map of upserts and a list of deletions for the config, and complete
    maps for the other metadata."""
    wire = message.update_config
    config = _map_update(wire.config_updates) if wire.HasField("config_updates") else None
    if wire.legacy_upsert_values or wire.legacy_delete_keys:
        config = MapUpdate({**dict(wire.legacy_upsert_values), **dict.fromkeys(wire.legacy_delete_keys)})
    schema = _map_update(wire.schema_metadata_updates) if wire.HasField("schema_metadata_updates") else None
    if wire.legacy_schema_metadata:
        schema = MapUpdate(dict(wire.legacy_schema_metadata), replace=True)
    field_metadata = {field_id: _map_update(update) for field_id, update in wire.field_metadata_updates.items()}
    for field_id, legacy in wire.legacy_field_metadata.items():
        if field_id > _FIELD_ID_MAX:
            raise Corrupt(
                f"sets metadata of field {field_id}, which does not fit 31 bits",
                path=_PATH,
                field="legacy_field_metadata",
            )
        field_metadata[field_id] = MapUpdate(dict(legacy.metadata), replace=True)
    table = _map_update(wire.table_metadata_updates) if wire.HasField("table_metadata_updates") else None
    return op.UpdateConfig(config, table, schema, field_metadata)


def _encode_update_config(wire: _Message.UpdateConfig, operation: op.UpdateConfig) -> None:
    wire.SetInParent()
    for update, target in (
        (operation.config, wire.config_updates),
        (operation.table_metadata, wire.table_metadata_updates),
        (operation.schema_metadata, wire.schema_metadata_updates),
    ):
        if update is not None:
            _put_map_update(target, update)
    for field_id, update in operation.field_metadata.items():
        _put_map_update(wire.field_metadata_updates[field_id], update)


def _data_replacement(message: _Message) -> Operation:
    wire = message.data_replacement.replacements
    return op.DataReplacement(
        tuple((FragmentId(replacement.fragment_id), DataFile(replacement.new_file)) for replacement in wire)
    )


def _update_mem_wal_state(message: _Message) -> Operation:
    """Decode MemWAL progress. Writers of 2025 used the same number for another message, which is obsolete."""
    wire = message.update_mem_wal_state
    progress = _progress(wire.compacted_sstables)
    return Other(message) if progress is None or len(UnknownFieldSet(wire)) else op.UpdateMemWalState(progress)


def _data_overlay(message: _Message) -> Operation:
    return op.DataOverlay(message)


def _update_bases(message: _Message) -> Operation:
    return op.UpdateBases(tuple(map(base_path.decode, message.update_bases.new_bases)))


def _clone(message: _Message) -> Operation:
    wire = message.clone
    return op.Clone(
        is_shallow=wire.is_shallow,
        ref_name=wire.ref_name if wire.HasField("ref_name") else None,
        ref_version=Version(wire.ref_version),
        ref_path=wire.ref_path,
        branch_name=wire.branch_name if wire.HasField("branch_name") else None,
    )


_DECODE: Mapping[str, Callable[[_Message], Operation]] = {
    "append": _append,
    "delete": _delete,
    "overwrite": _overwrite,
    "create_index": _create_index,
    "rewrite": _rewrite,
    "merge": _merge,
    "restore": _restore,
    "reserve_fragments": _reserve,
    "update": _update,
    "project": _project,
    "update_config": _update_config,
    "data_replacement": _data_replacement,
    "update_bases": _update_bases,
    "update_mem_wal_state": _update_mem_wal_state,
    "data_overlay": _data_overlay,
    "clone": _clone,
}


def _fragments(messages: Iterable[table_pb2.DataFragment]) -> tuple[Fragment, ...]:
    return tuple(map(Fragment, messages))


def _messages(fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
    return [fragment.message for fragment in fragments]


def _progress(messages: Iterable[table_pb2.CompactedSsTable]) -> tuple[op.Progress, ...] | None:
    """Return the progress, or `None` if the bytes are those of the message that once had this number."""
    progress = tuple(op.Progress(item.shard_id.uuid, item.generation) for item in messages)
    return progress if all(len(item.shard) == _UUID_BYTES for item in progress) else None


def _put_progress(messages: _Progresses, progress: Iterable[op.Progress]) -> None:
    for item in progress:
        messages.add(shard_id=table_pb2.UUID(uuid=item.shard), generation=item.generation)


def _ids(numbers: Collection[int]) -> tuple[FragmentId, ...]:
    """Return fragment ids, after checking their number: an encoded id may be one byte, but becomes a Python object."""
    FRAGMENTS.check(len(numbers), path=_PATH)
    return tuple(map(FragmentId, numbers))


def _indices(messages: Iterable[table_pb2.IndexMetadata]) -> tuple[IndexMetadata, ...]:
    return tuple(map(IndexMetadata, messages))


def _schema(fields: Collection[file_pb2.Field], metadata: Mapping[str, bytes]) -> TableSchema:
    return TableSchema.decode(fields, metadata, path=_PATH)


def _put_schema(wire: _Message.Overwrite | _Message.Merge, schema: TableSchema) -> None:
    wire.schema.extend(schema.encode())
    for key, value in schema.metadata.items():
        wire.schema_metadata[key.decode()] = value


def _map_update(wire: _Message.UpdateMap) -> MapUpdate:
    entries = {entry.key: entry.value if entry.HasField("value") else None for entry in wire.update_entries}
    return MapUpdate(entries, wire.replace)


def _put_map_update(wire: _Message.UpdateMap, update: MapUpdate) -> None:
    wire.SetInParent()
    wire.replace = update.replace
    for key, value in update.entries.items():
        wire.update_entries.add(key=key, value=value)
