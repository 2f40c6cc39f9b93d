"""Footprint of an operation: the fragments, fields, keys and names that it touches. The conflict rules are built from
these functions, which return no verdict.
"""

from collections.abc import Iterable
from uuid import UUID

from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.mem_wal import progress_of
from lance_core.format.operations import MapUpdate, Operation, UpdateMode
from lance_core.format.overlay import OverlayFile
from lance_core.format.schema import TableSchema


def touched_fragments(operation: Operation) -> set[int]:
    """Return the ids of the fragments that an operation updates, rewrites, overlays or removes."""
    match operation:
        case op.Delete() | op.Update():
            return {*updated_fragments(operation), *operation.removed_ids}
        case op.Rewrite():
            return {fragment.id for group in operation.groups for fragment in group.old}
        case op.DataReplacement():
            return {fragment_id for fragment_id, _file in operation.replacements}
        case op.DataOverlay():
            return set(overlays_by_fragment(operation))
        case _:
            return set()


def overlays_by_fragment(operation: op.DataOverlay) -> dict[int, list[OverlayFile]]:
    """Return the overlays that an operation adds, by fragment."""
    overlays: dict[int, list[OverlayFile]] = {}
    for group in operation.message.data_overlay.groups:
        overlays.setdefault(group.fragment_id, []).extend(map(OverlayFile, group.overlays))
    return overlays


def updated_fragments(operation: Operation) -> dict[int, Fragment]:
    """Return the fragments that continue in another state, by id."""
    match operation:
        case op.Delete() | op.Update():
            return {fragment.id: fragment for fragment in operation.updated}
        case _:
            return {}


def removed_fragments(operation: Operation) -> tuple[int, ...]:
    return operation.removed_ids if isinstance(operation, op.Delete | op.Update) else ()


def affected_rows(operation: Operation) -> op.RowOffsets | None:
    return operation.affected if isinstance(operation, op.Delete | op.Update) else None


def rewrites_columns(operation: Operation) -> bool:
    return isinstance(operation, op.Update) and operation.mode is UpdateMode.REWRITE_COLUMNS


def replaced_fields(operation: op.DataReplacement) -> set[int]:
    return {field_id for _fragment_id, file in operation.replacements for field_id in file.field_ids}


def config_of(operation: Operation) -> MapUpdate | None:
    match operation:
        case op.Overwrite():
            return MapUpdate(operation.config_upserts)
        case op.UpdateConfig():
            return operation.config
        case _:
            return None


def have_common_key(ours: MapUpdate | None, theirs: MapUpdate | None) -> bool:
    """Return whether both updates change the same key. A key that both delete does not count."""
    if ours is None or theirs is None:
        return False
    both = ours.entries.keys() & theirs.entries.keys()
    return any(ours.entries[key] is not None or theirs.entries[key] is not None for key in both)


def shard_progress(operation: Operation) -> tuple[op.Progress, ...]:
    match operation:
        case op.Update() | op.UpdateMemWalState():
            return operation.progress
        case op.CreateIndex():
            return tuple(item for index in operation.new for item in progress_of(index))
        case _:
            return ()


def names_of(indices: Iterable[IndexMetadata]) -> set[str]:
    return {index.name for index in indices}


def uuids_of(indices: Iterable[IndexMetadata]) -> set[UUID]:
    return {index.uuid for index in indices}


def replaces_one_segment(operation: op.CreateIndex) -> bool:
    return len(operation.new) == 1 and len(operation.removed) == 1


def field_ids_of(schema: TableSchema) -> set[int]:
    """Return the ids of all fields, including nested ones."""
    return set(schema.field_ids)
