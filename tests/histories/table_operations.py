"""What people do to a table, by the verbs they have for it: one of each kind, and several where it matters which rows,
fragments, columns, keys or settings it touches. All of them begin with the table that `begun` makes.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa

from lance_core import Committed, Table
from lance_core.format.base_path import BasePath
from lance_core.storage.manifest_stores.manifest_store import ManifestStore

ROWS = 4
"""In each fragment."""
FRAGMENTS = 3
WORK = {"work": "this"}
"""The property by which the version of a change is found again."""
Do = Callable[[Table, str | None], Committed]


def rows(first: int, count: int, *, plus: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([n * 10 + plus for n in ids], pa.int64()),
        "w": pa.array([f"w{n + plus}" for n in ids]),
    })  # fmt: skip


def begun(uri: str, manifests: ManifestStore | None = None, *, stable: bool = False) -> Table:
    """Three fragments, one with a deleted row; a setting of each kind; three versions that are not the newest."""
    table = Table.create(
        uri,
        rows(0, ROWS * FRAGMENTS),
        max_rows_per_file=ROWS,
        stable_row_ids=stable,
        manifest_store=manifests,
        config={"a": "0"},
        durable=False,
    )
    table = table.set_metadata({"a": "0"}).table
    table = table.set_field_metadata({"w": {"k": "0"}}).table
    return table.delete(f"id = {ROWS * FRAGMENTS - 1}").table


def upserting(data: pa.Table, *, matched: str = "update", insert: bool = True, unmatched: str | bool = False) -> Do:
    return lambda t, i: t.upsert(
        data, "id", matched=matched, insert=insert, delete_unmatched=unmatched, intent=i, properties=WORK
    )  # fmt: skip


def several(*keys: int, plus: int = 1) -> pa.Table:
    return pa.concat_tables([rows(key, 1, plus=plus) for key in keys])


def slicing(data: pa.Table, where: str) -> Do:
    return lambda t, i: t.overwrite(data, where=where, intent=i, properties=WORK)


def updating(where: str | None, **values: str) -> Do:
    return lambda t, i: t.update(values, where, intent=i, properties=WORK)


def deleting(where: str) -> Do:
    return lambda t, i: t.delete(where, intent=i, properties=WORK)


def configuring(replace: bool = False, **values: str | None) -> Do:
    return lambda t, i: t.set_config(values, replace=replace, intent=i, properties=WORK)


def noting(replace: bool = False, **values: str | None) -> Do:
    return lambda t, i: t.set_metadata(values, replace=replace, intent=i, properties=WORK)


def schema_noting(**values: str | None) -> Do:
    return lambda t, i: t.set_schema_metadata(values, intent=i, properties=WORK)


def field_noting(column: str, **values: str | None) -> Do:
    return lambda t, i: t.set_field_metadata({column: values}, intent=i, properties=WORK)


def adding(**columns: str) -> Do:
    return lambda t, i: t.add_columns(columns, intent=i, properties=WORK)


def adding_nulls(*fields: pa.Field) -> Do:
    return lambda t, i: t.add_columns(list(fields), intent=i, properties=WORK)


def merging(name: str) -> Do:
    brought = pa.table({"id": pa.array(range(6), pa.int64()), name: [f"m{n}" for n in range(6)]})
    return lambda t, i: t.merge_columns(brought, "id", intent=i, properties=WORK)


def dropping(*columns: str) -> Do:
    return lambda t, i: t.drop_columns(columns, intent=i, properties=WORK)


def renaming(name: str, to: str) -> Do:
    return lambda t, i: t.alter_column(name, rename=to, intent=i, properties=WORK)


def placing(path: str, name: str) -> Do:
    return lambda t, i: t.add_bases([BasePath(path, name=name)], intent=i, properties=WORK)


CHANGES: Mapping[str, Do] = {
    "append": lambda t, i: t.append(rows(100, 2), intent=i, properties=WORK),
    "append several files": lambda t, i: t.append(rows(200, 3), max_rows_per_file=1, intent=i, properties=WORK),
    "append without w": lambda t, i: t.append(rows(150, 1).drop_columns("w"), intent=i, properties=WORK),
    "append the row 0 again": lambda t, i: t.append(rows(0, 1), intent=i, properties=WORK),
    "delete row 0": deleting("id = 0"),
    "delete row 1": deleting("id = 1"),
    "delete row 5": deleting("id = 5"),
    "delete fragment 0": deleting("id < 4"),
    "delete by v": deleting("v >= 40 and v < 60"),
    "delete all": deleting("true"),
    "delete nothing": deleting("id < 0"),
    "update row 0": updating("id = 0", v="v + 1", w="'x'", id="id"),
    "update row 1": updating("id = 1", v="v + 2", w="'y'", id="id"),
    "update row 5": updating("id = 5", v="v + 3", w="'z'", id="id"),
    "update v of fragment 0": updating("id < 4", v="v + 5"),
    "update v of fragment 1": updating("id >= 4 and id < 8", v="v + 7"),
    "update w of fragment 0": updating("id < 4", w="w || '!'"),
    "update v everywhere": updating(None, v="v * 2"),
    "update v by w": updating("w = 'w2'", v="-v"),
    "upsert key 100": upserting(several(100)),
    "upsert key 100 otherwise": upserting(several(100, plus=2)),
    "upsert key 300": upserting(several(300)),
    "upsert keys 0 and 100": upserting(several(0, 100)),
    "upsert keys 5 and 300": upserting(several(5, 300)),
    "upsert row 0 only": upserting(several(0), insert=False),
    "upsert v of fragment 0": upserting(rows(0, 4, plus=3).select(["id", "v"]), insert=False),
    "upsert new keys only": upserting(several(0, 100, 400), matched="ignore"),
    "upsert deletes rows 1 and 6": upserting(several(1, 6), matched="delete", insert=False),
    "upsert and delete unmatched": upserting(rows(0, 3, plus=9), unmatched="id < 8"),
    "overwrite": lambda t, i: t.overwrite(rows(500, 2), intent=i, properties=WORK),
    "overwrite with a=7": lambda t, i: t.overwrite(rows(600, 1), config={"a": "7"}, intent=i, properties=WORK),
    "overwrite schema": lambda t, i: t.overwrite(pa.table({"id": [1], "q": [True]}), intent=i, properties=WORK),
    "overwrite rows 0 and 1": slicing(rows(0, 2, plus=4), "id < 2"),
    "overwrite the slice of 100": slicing(rows(100, 1, plus=6), "id >= 100 and id < 200"),
    "overwrite the slice of v": slicing(rows(4, 2), "v >= 40 and v < 60"),
    "restore 1": lambda t, i: t.restore(1, intent=i, properties=WORK),
    "restore 3": lambda t, i: t.restore(3, intent=i, properties=WORK),
    "compact": lambda t, i: t.compact(intent=i, properties=WORK),
    "compact small": lambda t, i: t.compact(target_rows=8, intent=i, properties=WORK),
    "add z of nulls": adding_nulls(pa.field("z", pa.int32())),
    "add y of nulls": adding_nulls(pa.field("y", pa.int32())),
    "add z from v": adding(z="v * 3"),
    "add y from w": adding(y="w || '?'"),
    "merge z": merging("z"),
    "drop v": dropping("v"),
    "drop w": dropping("w"),
    "drop v and w": dropping("v", "w"),
    "reorder": lambda t, i: t.reorder_columns(["w", "v", "id"], intent=i, properties=WORK),
    "rename v": renaming("v", "v2"),
    "rename w to v2": renaming("w", "v2"),
    "recast v": lambda t, i: t.alter_column("v", type=pa.int32(), intent=i, properties=WORK),
    "make v mandatory": lambda t, i: t.alter_column("v", nullable=False, intent=i, properties=WORK),
    "config a=1": configuring(a="1"),
    "config a=2": configuring(a="2"),
    "config b=1": configuring(b="1"),
    "config without a": configuring(a=None),
    "config only c": configuring(c="1", replace=True),
    "metadata a=1": noting(a="1"),
    "metadata b=1": noting(b="1"),
    "metadata only c": noting(c="1", replace=True),
    "schema metadata a": schema_noting(a="1"),
    "schema metadata b": schema_noting(b="1"),
    "field metadata v": field_noting("v", k="1"),
    "field metadata w": field_noting("w", k="1"),
    "add base x": placing("/places/x", "x"),
    "add base y": placing("/places/y", "y"),
    "add base named x": placing("/places/z", "x"),
}
