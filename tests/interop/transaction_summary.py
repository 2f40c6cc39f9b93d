"""Transaction summary: the content of a transaction without files and schemas, by which other writers detect conflicts
and readers follow the history."""

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
from tests.interop.program_runner import LibraryDifference

ASSIGNED_FIELDS = "assigned"
INSERTED_KEYS = "keys"


def summarize_transaction(table: Table, *, top_fields_only: bool = False) -> dict[str, object]:
    transaction = table.transaction()
    if transaction is None:
        raise LibraryDifference(f"version {table.version} has no transaction")
    summary = {"planned on": transaction.read_version, **_summarize_operation(transaction.operation)}
    assigned = summary.get(ASSIGNED_FIELDS)
    if top_fields_only and isinstance(assigned, list):
        summary[ASSIGNED_FIELDS] = [field.id for field in table.manifest.schema.fields if field.id in assigned]
    return summary


def _summarize_operation(operation: Operation) -> dict[str, object]:
    match operation:
        case Append() | Overwrite():
            return {"fragments": _row_counts(operation.fragments)}
        case Delete():
            return {
                "updated": _identities(operation.updated),
                "removed": sorted(operation.removed_ids),
                "predicate": operation.predicate,
            }
        case Update():
            return {
                "updated": _identities(operation.updated),
                "removed": sorted(operation.removed_ids),
                "new": _row_counts(operation.new),
                "mode": operation.mode,
                "modified": sorted(operation.fields_modified),
                ASSIGNED_FIELDS: sorted(operation.fields_assigned),
                "offsets": dict(operation.updated_offsets),
                INSERTED_KEYS: operation.inserted_keys,
            }
        case Rewrite():
            return {
                "groups": [
                    ([fragment.id for fragment in group.old], _row_counts(group.new)) for group in operation.groups
                ]
            }
        case Merge():
            return {
                "fragments": _identities(operation.fragments),
                "preserves nullability": operation.preserves_nullability,
            }
        case Project():
            return {"preserves nullability": operation.preserves_nullability}
        case Restore():
            return {"version": operation.version}
        case ReserveFragments():
            return {"count": operation.count}
        case UpdateConfig():
            return {
                "config": _user_entries(operation.config),
                "table": _user_entries(operation.table_metadata),
                "schema": _user_entries(operation.schema_metadata),
                "fields": {number: _user_entries(update) for number, update in operation.field_metadata.items()},
            }
        case _:
            return {"operation": operation.name}


def _identities(fragments: Sequence[Fragment]) -> list[tuple[int, int, int]]:
    return sorted((fragment.id, fragment.physical_rows, fragment.live_rows) for fragment in fragments)


def _row_counts(fragments: Sequence[Fragment]) -> list[int]:
    return [fragment.physical_rows for fragment in fragments]


def _user_entries(update: MapUpdate | None) -> object:
    if update is None:
        return None
    entries = {key: value for key, value in update.entries.items() if not key.startswith("lance_assets.")}
    return entries, update.replace
