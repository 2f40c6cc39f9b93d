"""Catalogue of table operations: one of each kind, and several where the affected rows, fragments, columns, keys or
settings matter. Each of them applies to the table that `create_initial_table` makes."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from lance_core import Committed, Table
from lance_core.format.base_path import BasePath
from lance_core.storage.manifest_stores.manifest_store import ManifestStore

ROWS_PER_FRAGMENT = 4
"""Number of rows of each fragment of the initial table."""
FRAGMENT_COUNT = 3
OPERATION_PROPERTIES = {"work": "this"}
"""Property that identifies the version of an operation."""
TableOperation = Callable[[Table, str | None], Committed]


def make_rows(first: int, count: int, *, offset: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([n * 10 + offset for n in ids], pa.int64()),
        "w": pa.array([f"w{n + offset}" for n in ids]),
    })  # fmt: skip


def create_initial_table(
    uri: str, manifest_store: ManifestStore | None = None, *, stable_row_ids: bool = False
) -> Table:
    """Create a table with three fragments, one of them with a deleted row, one setting of each kind and three versions
    before the newest one."""
    table = Table.create(
        uri,
        make_rows(0, ROWS_PER_FRAGMENT * FRAGMENT_COUNT),
        max_rows_per_file=ROWS_PER_FRAGMENT,
        stable_row_ids=stable_row_ids,
        manifest_store=manifest_store,
        config={"a": "0"},
        durable=False,
    )
    table = table.set_metadata({"a": "0"}).table
    table = table.set_field_metadata({"w": {"k": "0"}}).table
    return table.delete(f"id = {ROWS_PER_FRAGMENT * FRAGMENT_COUNT - 1}").table


def upsert_operation(
    data: pa.Table, *, matched: str = "update", insert: bool = True, delete_unmatched: str | bool = False
) -> TableOperation:
    return lambda t, i: t.upsert(
        data,
        "id",
        matched=matched,
        insert=insert,
        delete_unmatched=delete_unmatched,
        intent=i,
        properties=OPERATION_PROPERTIES,
    )


def make_rows_with_keys(*keys: int, offset: int = 1) -> pa.Table:
    return pa.concat_tables([make_rows(key, 1, offset=offset) for key in keys])


def overwrite_where_operation(data: pa.Table, where: str) -> TableOperation:
    return lambda t, i: t.overwrite(data, where=where, intent=i, properties=OPERATION_PROPERTIES)


def update_operation(where: str | None, **values: str) -> TableOperation:
    return lambda t, i: t.update(values, where, intent=i, properties=OPERATION_PROPERTIES)


def delete_operation(where: str) -> TableOperation:
    return lambda t, i: t.delete(where, intent=i, properties=OPERATION_PROPERTIES)


def config_operation(replace: bool = False, **values: str | None) -> TableOperation:
    return lambda t, i: t.set_config(values, replace=replace, intent=i, properties=OPERATION_PROPERTIES)


def metadata_operation(replace: bool = False, **values: str | None) -> TableOperation:
    return lambda t, i: t.set_metadata(values, replace=replace, intent=i, properties=OPERATION_PROPERTIES)


def schema_metadata_operation(**values: str | None) -> TableOperation:
    return lambda t, i: t.set_schema_metadata(values, intent=i, properties=OPERATION_PROPERTIES)


def field_metadata_operation(column: str, **values: str | None) -> TableOperation:
    return lambda t, i: t.set_field_metadata({column: values}, intent=i, properties=OPERATION_PROPERTIES)


def add_columns_operation(**columns: str) -> TableOperation:
    return lambda t, i: t.add_columns(columns, intent=i, properties=OPERATION_PROPERTIES)


def add_null_columns_operation(*fields: pa.Field) -> TableOperation:
    return lambda t, i: t.add_columns(list(fields), intent=i, properties=OPERATION_PROPERTIES)


def merge_columns_operation(name: str) -> TableOperation:
    new_values = pa.table({"id": pa.array(range(6), pa.int64()), name: [f"m{n}" for n in range(6)]})
    return lambda t, i: t.merge_columns(new_values, "id", intent=i, properties=OPERATION_PROPERTIES)


def replace_columns_operation(where: str | None = None, **columns: str) -> TableOperation:
    return lambda t, i: t.add_columns(columns, replace=True, where=where, intent=i, properties=OPERATION_PROPERTIES)


def replace_by_key_operation(data: pa.Table) -> TableOperation:
    return lambda t, i: t.merge_columns(data, "id", replace=True, intent=i, properties=OPERATION_PROPERTIES)


def drop_columns_operation(*columns: str) -> TableOperation:
    return lambda t, i: t.drop_columns(columns, intent=i, properties=OPERATION_PROPERTIES)


def rename_column_operation(name: str, new_name: str) -> TableOperation:
    return lambda t, i: t.alter_column(name, rename=new_name, intent=i, properties=OPERATION_PROPERTIES)


def add_base_operation(path: str, name: str) -> TableOperation:
    return lambda t, i: t.add_bases([BasePath(path, name=name)], intent=i, properties=OPERATION_PROPERTIES)


TABLE_OPERATIONS: Mapping[str, TableOperation] = {
    "append": lambda t, i: t.append(make_rows(100, 2), intent=i, properties=OPERATION_PROPERTIES),
    "append several files": lambda t, i: t.append(
        make_rows(200, 3), max_rows_per_file=1, intent=i, properties=OPERATION_PROPERTIES
    ),
    "append without w": lambda t, i: t.append(
        make_rows(150, 1).drop_columns("w"), intent=i, properties=OPERATION_PROPERTIES
    ),
    "append the row 0 again": lambda t, i: t.append(make_rows(0, 1), intent=i, properties=OPERATION_PROPERTIES),
    "delete row 0": delete_operation("id = 0"),
    "delete row 1": delete_operation("id = 1"),
    "delete row 5": delete_operation("id = 5"),
    "delete fragment 0": delete_operation("id < 4"),
    "delete by v": delete_operation("v >= 40 and v < 60"),
    "delete all": delete_operation("true"),
    "delete nothing": delete_operation("id < 0"),
    "update row 0": update_operation("id = 0", v="v + 1", w="'x'", id="id"),
    "update row 1": update_operation("id = 1", v="v + 2", w="'y'", id="id"),
    "update row 5": update_operation("id = 5", v="v + 3", w="'z'", id="id"),
    "update v of fragment 0": update_operation("id < 4", v="v + 5"),
    "update v of fragment 1": update_operation("id >= 4 and id < 8", v="v + 7"),
    "update w of fragment 0": update_operation("id < 4", w="w || '!'"),
    "update v everywhere": update_operation(None, v="v * 2"),
    "update v by w": update_operation("w = 'w2'", v="-v"),
    "upsert key 100": upsert_operation(make_rows_with_keys(100)),
    "upsert key 100 otherwise": upsert_operation(make_rows_with_keys(100, offset=2)),
    "upsert key 300": upsert_operation(make_rows_with_keys(300)),
    "upsert keys 0 and 100": upsert_operation(make_rows_with_keys(0, 100)),
    "upsert keys 5 and 300": upsert_operation(make_rows_with_keys(5, 300)),
    "upsert row 0 only": upsert_operation(make_rows_with_keys(0), insert=False),
    "upsert v of fragment 0": upsert_operation(make_rows(0, 4, offset=3).select(["id", "v"]), insert=False),
    "upsert new keys only": upsert_operation(make_rows_with_keys(0, 100, 400), matched="ignore"),
    "upsert deletes rows 1 and 6": upsert_operation(make_rows_with_keys(1, 6), matched="delete", insert=False),
    "upsert and delete unmatched": upsert_operation(make_rows(0, 3, offset=9), delete_unmatched="id < 8"),
    "overwrite": lambda t, i: t.overwrite(make_rows(500, 2), intent=i, properties=OPERATION_PROPERTIES),
    "overwrite with a=7": lambda t, i: t.overwrite(
        make_rows(600, 1), config={"a": "7"}, intent=i, properties=OPERATION_PROPERTIES
    ),
    "overwrite schema": lambda t, i: t.overwrite(
        pa.table({"id": [1], "q": [True]}), intent=i, properties=OPERATION_PROPERTIES
    ),
    "overwrite rows 0 and 1": overwrite_where_operation(make_rows(0, 2, offset=4), "id < 2"),
    "overwrite the slice of 100": overwrite_where_operation(make_rows(100, 1, offset=6), "id >= 100 and id < 200"),
    "overwrite the slice of v": overwrite_where_operation(make_rows(4, 2), "v >= 40 and v < 60"),
    "restore 1": lambda t, i: t.restore(1, intent=i, properties=OPERATION_PROPERTIES),
    "restore 3": lambda t, i: t.restore(3, intent=i, properties=OPERATION_PROPERTIES),
    "compact": lambda t, i: t.compact(intent=i, properties=OPERATION_PROPERTIES),
    "compact small": lambda t, i: t.compact(target_rows=8, intent=i, properties=OPERATION_PROPERTIES),
    "add z of nulls": add_null_columns_operation(pa.field("z", pa.int32())),
    "add y of nulls": add_null_columns_operation(pa.field("y", pa.int32())),
    "add z from v": add_columns_operation(z="v * 3"),
    "add y from w": add_columns_operation(y="w || '?'"),
    "merge z": merge_columns_operation("z"),
    "replace v of fragment 0": replace_columns_operation("id < 4", v="v + 2000"),
    "replace v and add z": replace_columns_operation(v="-v", z="v * 2"),
    "replace v by key": replace_by_key_operation(make_rows_with_keys(2, 6, 100, offset=8).select(["id", "v"])),
    "drop v": drop_columns_operation("v"),
    "drop w": drop_columns_operation("w"),
    "drop v and w": drop_columns_operation("v", "w"),
    "reorder": lambda t, i: t.reorder_columns(["w", "v", "id"], intent=i, properties=OPERATION_PROPERTIES),
    "rename v": rename_column_operation("v", "v2"),
    "rename w to v2": rename_column_operation("w", "v2"),
    "recast v": lambda t, i: t.alter_column("v", type=pa.int32(), intent=i, properties=OPERATION_PROPERTIES),
    "make v mandatory": lambda t, i: t.alter_column("v", nullable=False, intent=i, properties=OPERATION_PROPERTIES),
    "config a=1": config_operation(a="1"),
    "config a=2": config_operation(a="2"),
    "config b=1": config_operation(b="1"),
    "config without a": config_operation(a=None),
    "config only c": config_operation(c="1", replace=True),
    "metadata a=1": metadata_operation(a="1"),
    "metadata b=1": metadata_operation(b="1"),
    "metadata only c": metadata_operation(c="1", replace=True),
    "schema metadata a": schema_metadata_operation(a="1"),
    "schema metadata b": schema_metadata_operation(b="1"),
    "field metadata v": field_metadata_operation("v", k="1"),
    "field metadata w": field_metadata_operation("w", k="1"),
    "add base x": add_base_operation("/places/x", "x"),
    "add base y": add_base_operation("/places/y", "y"),
    "add base named x": add_base_operation("/places/z", "x"),
}
