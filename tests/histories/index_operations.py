"""What people do to indices, and a table that has some: the newest fragment is covered by none, and rows of the others
were changed and deleted since.
"""

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from lance_core import Table
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from tests.histories.table_operations import WORK, Do, begun, rows, updating


def indexed(uri: str, manifests: ManifestStore | None = None, *, stable: bool = False) -> Table:
    """A b-tree, a bitmap and a zone map."""
    table = begun(uri, manifests, stable=stable)
    for column, kind in (("id", "BTREE"), ("w", "BITMAP"), ("v", "ZONEMAP")):
        table = table.create_index(column, kind, name=f"of {column}").table
    return updating("id = 2", w="'other'")(table.append(rows(90, 2)).table, None).table


def creating(column: str, kind: str, name: str, *, replace: bool = False) -> Do:
    return lambda t, i: t.create_index(column, kind, name=name, replace=replace, intent=i, properties=WORK)


def dropping_index(name: str) -> Do:
    return lambda t, i: t.drop_index(name, intent=i, properties=WORK)


def optimizing(merge: Literal["small", "all", "none"], *names: str) -> Do:
    return lambda t, i: t.optimize_indices(names or None, merge=merge, intent=i, properties=WORK)


def compacting(remap: Literal["now", "reuse", "none"]) -> Do:
    """With stable row ids there is nothing to note."""
    return lambda t, i: t.compact(
        remap="none" if remap == "reuse" and t.manifest.has_stable_row_ids else remap, intent=i, properties=WORK
    )


CHANGES_OF_INDICES: Mapping[str, Do] = {
    "index v": creating("v", "BTREE", "new"),
    "index w by the same name": creating("w", "BITMAP", "new"),
    "index w anew": creating("w", "BTREE", "of w", replace=True),
    "drop the index of w": dropping_index("of w"),
    "optimize": optimizing("small"),
    "optimize without merging": optimizing("none"),
    "optimize of w": optimizing("all", "of w"),
    "compact now": compacting("now"),
    "compact later": compacting("reuse"),
    "compact for none": compacting("none"),
}


QUESTIONS = ("id = 2", "w = 'other'", "w != 'w5'", "v = 20", "v > 40 and v < 100")


def same_by_index(table: Table) -> None:
    """What is found by indices is what a scan finds."""
    for question in QUESTIONS:
        if question.split()[0] in table.schema.names and table.schema.field(question.split()[0]).type in (
            pa.int64(), pa.string()
        ):  # fmt: skip
            found = table.to_table(filter=question)
            assert found.equals(table.to_table(filter=question, use_indices=False)), f"{question}: {found.to_pylist()}"
