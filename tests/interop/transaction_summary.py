"""What transactions say, besides files and schemas: what other writers judge conflicts by, and readers of history."""

from collections.abc import Sequence

from lance_core import Table
from lance_core.format.fragment import Fragment
from lance_core.format.operations import (
    Append,
    Delete,
    MapUpdate,
    Merge,
    Operation,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    Update,
    UpdateConfig,
)
from tests.interop.program_runner import Disagreement

ASSIGNED = "assigned"
KEYS = "keys"


def told(table: Table, *, top_fields_only: bool = False) -> dict[str, object]:
    transaction = table.transaction()
    if transaction is None:
        raise Disagreement(f"version {table.version} does not say what made it")
    found = {"planned on": transaction.read_version, **_operation(transaction.operation)}
    assigned = found.get(ASSIGNED)
    if top_fields_only and isinstance(assigned, list):
        found[ASSIGNED] = [field.id for field in table.manifest.schema.fields if field.id in assigned]
    return found


def _operation(operation: Operation) -> dict[str, object]:
    match operation:
        case Append() | Overwrite():
            return {"fragments": _new(operation.fragments)}
        case Delete():
            return {
                "updated": _changed(operation.updated),
                "removed": sorted(operation.removed_ids),
                "predicate": operation.predicate,
            }
        case Update():
            return {
                "updated": _changed(operation.updated),
                "removed": sorted(operation.removed_ids),
                "new": _new(operation.new),
                "mode": operation.mode,
                "modified": sorted(operation.fields_modified),
                ASSIGNED: sorted(operation.fields_assigned),
                "offsets": dict(operation.updated_offsets),
                KEYS: operation.inserted_keys,
            }
        case Rewrite():
            return {"groups": [([each.id for each in group.old], _new(group.new)) for group in operation.groups]}
        case Merge():
            kept = operation.preserves_nullability
            return {"fragments": _changed(operation.fragments), "preserves nullability": kept}
        case Project():
            return {"preserves nullability": operation.preserves_nullability}
        case Restore():
            return {"version": operation.version}
        case ReserveFragments():
            return {"count": operation.count}
        case UpdateConfig():
            return {
                "config": _entries(operation.config),
                "table": _entries(operation.table_metadata),
                "schema": _entries(operation.schema_metadata),
                "fields": {number: _entries(update) for number, update in operation.field_metadata.items()},
            }
        case _:
            return {"operation": operation.name}


def _changed(fragments: Sequence[Fragment]) -> list[tuple[int, int, int]]:
    return sorted((each.id, each.physical_rows, each.live_rows) for each in fragments)


def _new(fragments: Sequence[Fragment]) -> list[int]:
    return [each.physical_rows for each in fragments]


def _entries(update: MapUpdate | None) -> object:
    if update is None:
        return None
    entries = {key: value for key, value in update.entries.items() if not key.startswith("lance_assets.")}
    return entries, update.replace
