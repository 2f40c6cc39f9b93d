"""Example operations: real changes of every operation type, planned on one version of one table with their files
written and nothing committed. Several examples of a type differ in the fragments, rows, keys or settings that they
touch. Tests of pairs of operations start from them.
"""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
from pyroaring import BitMap

from lance_core import Table
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits, write_columns, write_fragments
from lance_core.datafiles.inputs import as_input
from lance_core.dml import new_columns, schema_evolution, settings
from lance_core.dml.delete import delete
from lance_core.dml.update import update
from lance_core.dml.upsert import UpsertRules, upsert
from lance_core.format import index_metadata
from lance_core.format import operations as op
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import MapUpdate, Operation
from lance_core.format.row_lineage import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.snapshot import Snapshot, load_latest

ROWS = 4
"""Rows per fragment."""
FRAGMENTS = 3
RESERVED = 8
LIMITS = FileLimits()
SHARD, OTHER_SHARD = (uuid.UUID(int=number).bytes for number in (1, 2))
Plan = Callable[[Snapshot], Operation]


def make_rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([n * 10 for n in ids], pa.int64()),
        "w": pa.array([f"w{n}" for n in ids]),
    })  # fmt: skip


def create_table(path: Path, *, stable: bool) -> Table:
    """Three fragments, an index on `w`, and ids reserved for compactions."""
    created = Table.create(
        str(path), make_rows(0, ROWS * FRAGMENTS), max_rows_per_file=ROWS, stable_row_ids=stable, durable=False
    )
    lance.dataset(created.uri).create_scalar_index("w", "BTREE")
    return created.refresh().commit(op.ReserveFragments(RESERVED)).table


def write_new_fragments(base: Snapshot, data: pa.Table) -> tuple[Fragment, ...]:
    return write_fragments(
        base.location.codec,
        data.to_batches(),
        schema=base.manifest.schema,
        version=base.manifest.storage_version,
        limits=LIMITS,
        conversion=Conversion.EXACT,
        new_uuid=SYSTEM_RUNTIME.new_uuid,
        what="moves",
    )


def plan_delete(predicate: str) -> Plan:
    return lambda base: delete(base, predicate, runtime=SYSTEM_RUNTIME)


def plan_update(values: dict[str, str], where: str) -> Plan:
    return lambda base: update(base, values, where, limits=LIMITS, runtime=SYSTEM_RUNTIME)


def plan_upsert(*keys: int, on: str = "id", insert: bool = True) -> Plan:
    data = pa.concat_tables([make_rows(key, 1) for key in keys])
    rules = UpsertRules.of(on, matched="update", matched_if=None, insert=insert, delete_unmatched=False)

    def plan(base: Snapshot) -> Operation:
        operation = upsert(base, as_input(data), rules, limits=LIMITS, runtime=SYSTEM_RUNTIME)
        assert operation is not None
        return operation

    return plan


def plan_overwrite(plan_config: dict[str, str] | None = None) -> Plan:
    def plan(base: Snapshot) -> Operation:
        return op.Overwrite(write_new_fragments(base, make_rows(500, 2)), base.manifest.schema, plan_config or {})

    return plan


def plan_rewrite(*ids: int, to: int) -> Plan:
    """`to` is one of the reserved ids. Indices that store row addresses no longer cover the rewritten rows."""

    def plan(base: Snapshot) -> Operation:
        old = tuple(fragment for fragment in base.manifest.fragments if fragment.id in ids)
        data = pa.concat_tables([make_rows(fragment.id * ROWS, ROWS) for fragment in old])
        new = tuple(fragment.with_id(to) for fragment in write_new_fragments(base, data))
        if base.manifest.has_stable_row_ids:
            new = tuple(fragment.with_lineage(row_ids=_ids_of(old)) for fragment in new)
        return op.Rewrite((op.RewriteGroup(old, new),))

    return plan


def _ids_of(old: tuple[Fragment, ...]) -> bytes:
    sequences = [RowIdSequence.decode(each.row_ids or b"", rows=each.physical_rows, path="") for each in old]
    return RowIdSequence.concat(sequences).encode()


def decode_indices(base: Snapshot) -> tuple[IndexMetadata, ...]:
    return index_metadata.decode_section(base.manifest.index_section, path="moves")


def copy_index(base: Snapshot, index: IndexMetadata, *, name: str = "") -> IndexMetadata:
    message = type(index.message)()
    message.CopyFrom(index.message)
    fresh = uuid.uuid4()
    message.uuid.uuid = fresh.bytes
    if name:
        message.name = name
    indices = Path(base.location.uri, "_indices")
    shutil.copytree(indices / str(index.uuid), indices / str(fresh))
    return IndexMetadata(message)


def plan_index(column: str, *, name: str = "", fragment_ids: tuple[int, ...] | None = None) -> Plan:
    """Plan an index that pylance builds on a copy of the table."""

    def plan(base: Snapshot) -> Operation:
        copy_directory = Path(base.location.uri + "-indexed")
        shutil.copytree(base.location.uri, copy_directory)
        lance.dataset(str(copy_directory)).create_scalar_index(column, "BTREE", name=name or f"{column}_new")
        created = Table.open(str(copy_directory), durable=False)
        transaction = created.transaction()
        assert transaction is not None
        assert isinstance(transaction.operation, op.CreateIndex)
        for index in transaction.operation.new:
            index_directory = "_indices/" + str(index.uuid)
            shutil.copytree(copy_directory / index_directory, Path(base.location.uri, index_directory))
        shutil.rmtree(copy_directory)
        if fragment_ids is None:
            return op.CreateIndex(new=transaction.operation.new)
        return op.CreateIndex(new=tuple(each.with_coverage(BitMap(fragment_ids)) for each in transaction.operation.new))

    return plan


def drop_all_indices(base: Snapshot) -> Operation:
    return op.CreateIndex(removed=decode_indices(base))


def replace_all_indices(base: Snapshot) -> Operation:
    old = decode_indices(base)
    return op.CreateIndex(new=tuple(copy_index(base, index) for index in old), removed=old)


def add_segments(base: Snapshot) -> Operation:
    return op.CreateIndex(new=tuple(copy_index(base, index) for index in decode_indices(base)))


def plan_added_fields(*fields: pa.Field) -> Plan:
    return lambda base: new_columns.add_columns(
        base, list(fields), schema=None, read_columns=None, runtime=SYSTEM_RUNTIME
    )


def plan_computed_columns(expressions: dict[str, str]) -> Plan:
    return lambda base: new_columns.add_columns(
        base, expressions, schema=None, read_columns=None, runtime=SYSTEM_RUNTIME
    )


def plan_altered_column(name: str, *, rename: str | None = None, nullable: bool | None = None) -> Plan:
    return lambda base: schema_evolution.alter_column(
        base, name, rename=rename, type=None, nullable=nullable, runtime=SYSTEM_RUNTIME
    )  # fmt: skip


def plan_data_replacement(column: str, *fragment_ids: int) -> Plan:
    """Plan a separate file for one column."""

    def plan(base: Snapshot) -> Operation:
        stored = base.manifest.schema
        one = TableSchema((stored.field(column),), stored.metadata)
        created = []
        for fragment_id in fragment_ids:
            batches = make_rows(fragment_id * ROWS, ROWS).select([column]).to_batches()
            file = write_columns(
                base.location.codec,
                batches,
                schema=one,
                version=base.manifest.storage_version,
                rows=ROWS,
                conversion=Conversion.EXACT,
                new_uuid=SYSTEM_RUNTIME.new_uuid,
                what="moves",
            )
            created.append((FragmentId(fragment_id), file))
        return op.DataReplacement(tuple(created))

    return plan


def plan_config(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(config=MapUpdate(values, replace))


def plan_table_metadata(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(table_metadata=MapUpdate(values, replace))


def plan_schema_metadata(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(schema_metadata=MapUpdate(values, replace))


def plan_field_metadata(column: str) -> Plan:
    return lambda base: settings.set_field_metadata(base, {column: {"k": "v"}}, replace=False)


def plan_progress(shard: bytes, generation: int) -> Plan:
    return lambda _base: op.UpdateMemWalState((op.Progress(shard, generation),))


PLANS: dict[str, Plan] = {
    "Append": lambda base: op.Append(write_new_fragments(base, make_rows(100, 2))),
    "Delete row of 0": plan_delete("id = 0"),
    "Delete other row of 0": plan_delete("id = 1"),
    "Delete row of 1": plan_delete("id = 5"),
    "Delete all of 0": plan_delete("id < 4"),
    "Delete nothing": plan_delete("id < 0"),
    "Update row of 0": plan_update({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 0"),
    "Update other row of 0": plan_update({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 1"),
    "Update row of 1": plan_update({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 5"),
    "Update column of 0": plan_update({"v": "v + 1"}, "id < 4"),
    "Update column of 1": plan_update({"v": "v + 1"}, "id >= 4 and id < 8"),
    "Update inserts 100": plan_upsert(100),
    "Update inserts 200": plan_upsert(200),
    "Update inserts 100 and changes 0": plan_upsert(0, 100),
    "Update changes 0": plan_upsert(0, insert=False),
    "Overwrite": plan_overwrite(),
    "Overwrite sets a": plan_overwrite({"a": "1"}),
    "CreateIndex on v": plan_index("v"),
    "CreateIndex on v of 1": plan_index("v", fragment_ids=(1,)),
    "CreateIndex on id": plan_index("id"),
    "CreateIndex on id named as on v": plan_index("id", name="v_new"),
    "CreateIndex drops": drop_all_indices,
    "CreateIndex replaces": replace_all_indices,
    "CreateIndex adds a segment": add_segments,
    "Rewrite 0": plan_rewrite(0, to=5),
    "Rewrite 0 and 1": plan_rewrite(0, 1, to=6),
    "Rewrite 2": plan_rewrite(2, to=7),
    "Merge adds nulls": plan_added_fields(pa.field("z", pa.int32())),
    "Merge adds values": plan_computed_columns({"z": "id * 2"}),
    "Merge adds mandatory": lambda base: _with_mandatory_column(plan_computed_columns({"z": "id * 2"})(base)),
    "Project drops v": lambda base: schema_evolution.drop_columns(base, ["v"], runtime=SYSTEM_RUNTIME),
    "Project renames v": plan_altered_column("v", rename="v2"),
    "Project makes v mandatory": plan_altered_column("v", nullable=False),
    "Restore": lambda _base: op.Restore(Version(1)),
    "ReserveFragments": lambda _base: op.ReserveFragments(2),
    "UpdateConfig a=1": plan_config({"a": "1"}),
    "UpdateConfig a=2": plan_config({"a": "2"}),
    "UpdateConfig b=1": plan_config({"b": "1"}),
    "UpdateConfig deletes a": plan_config({"a": None}),
    "UpdateConfig replaced by b": plan_config({"b": "1"}, replace=True),
    "UpdateConfig table a": plan_table_metadata({"a": "1"}),
    "UpdateConfig table b": plan_table_metadata({"b": "1"}),
    "UpdateConfig table deletes a": plan_table_metadata({"a": None}),
    "UpdateConfig schema a": plan_schema_metadata({"a": "1"}),
    "UpdateConfig schema b": plan_schema_metadata({"b": "1"}),
    "UpdateConfig schema emptied": plan_schema_metadata({}, replace=True),
    "UpdateConfig field v": plan_field_metadata("v"),
    "UpdateConfig field w": plan_field_metadata("w"),
    "DataReplacement v of 0": plan_data_replacement("v", 0),
    "DataReplacement v of 1": plan_data_replacement("v", 1),
    "DataReplacement w of 0": plan_data_replacement("w", 0),
    "UpdateMemWalState 3": plan_progress(SHARD, 3),
    "UpdateMemWalState 5": plan_progress(SHARD, 5),
    "UpdateMemWalState of other": plan_progress(OTHER_SHARD, 3),
    "UpdateBases x": lambda _base: op.UpdateBases((BasePath("/places/x", name="x"),)),
    "UpdateBases y": lambda _base: op.UpdateBases((BasePath("/places/y", name="y"),)),
    "UpdateBases named x": lambda _base: op.UpdateBases((BasePath("/places/z", name="x"),)),
}


def _with_mandatory_column(operation: Operation) -> Operation:
    assert isinstance(operation, op.Merge)
    return op.Merge(operation.fragments, operation.schema, preserves_nullability=False)


def plan_all(created: Table) -> dict[str, Operation]:
    """Plan all examples on the newest version."""
    base = load_latest(created._location)
    return {name: plan(base) for name, plan in PLANS.items()}


def operation_name(name: str) -> str:
    return name.partition(" ")[0]
