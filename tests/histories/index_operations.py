"""Catalogue of index operations, and an indexed table that they apply to: no index covers its newest fragment, and rows
of the other fragments were updated and deleted since the indices were built."""

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from lance_core import Table
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from tests.histories.table_operations import (
    OPERATION_PROPERTIES,
    TableOperation,
    create_initial_table,
    make_rows,
    update_operation,
)


def create_indexed_table(
    uri: str, manifest_store: ManifestStore | None = None, *, stable_row_ids: bool = False
) -> Table:
    """Create the initial table with a b-tree, a bitmap and a zone map."""
    table = create_initial_table(uri, manifest_store, stable_row_ids=stable_row_ids)
    for column, kind in (("id", "BTREE"), ("w", "BITMAP"), ("v", "ZONEMAP")):
        table = table.create_index(column, kind, name=f"of {column}").table
    return update_operation("id = 2", w="'other'")(table.append(make_rows(90, 2)).table, None).table


def create_index_operation(column: str, kind: str, name: str, *, replace: bool = False) -> TableOperation:
    return lambda t, i: t.create_index(
        column, kind, name=name, replace=replace, intent=i, properties=OPERATION_PROPERTIES
    )


def drop_index_operation(name: str) -> TableOperation:
    return lambda t, i: t.drop_index(name, intent=i, properties=OPERATION_PROPERTIES)


def optimize_operation(merge: Literal["small", "all", "none"], *names: str) -> TableOperation:
    return lambda t, i: t.optimize_indices(names or None, merge=merge, intent=i, properties=OPERATION_PROPERTIES)


def compact_operation(remap: Literal["now", "reuse", "none"]) -> TableOperation:
    """Return a compaction. A table with stable row ids has no row addresses to record, so "reuse" becomes "none" for
    it."""
    return lambda t, i: t.compact(
        remap="none" if remap == "reuse" and t.manifest.has_stable_row_ids else remap,
        intent=i,
        properties=OPERATION_PROPERTIES,
    )


INDEX_OPERATIONS: Mapping[str, TableOperation] = {
    "index v": create_index_operation("v", "BTREE", "new"),
    "index w by the same name": create_index_operation("w", "BITMAP", "new"),
    "rebuild the index of w": create_index_operation("w", "BTREE", "of w", replace=True),
    "drop the index of w": drop_index_operation("of w"),
    "optimize": optimize_operation("small"),
    "optimize without merging": optimize_operation("none"),
    "optimize of w": optimize_operation("all", "of w"),
    "compact now": compact_operation("now"),
    "compact later": compact_operation("reuse"),
    "compact for none": compact_operation("none"),
}


FILTERS = ("id = 2", "w = 'other'", "w != 'w5'", "v = 20", "v > 40 and v < 100")


def check_index_results(table: Table) -> None:
    """Check that queries with indices return the same rows as scans."""
    for condition in FILTERS:
        column = condition.split()[0]
        if column in table.schema.names and table.schema.field(column).type in (pa.int64(), pa.string()):
            matches = table.to_table(filter=condition)
            assert matches.equals(table.to_table(filter=condition, use_indices=False)), (
                f"{condition}: {matches.to_pylist()}"
            )
