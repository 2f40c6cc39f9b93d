"""One real change of each kind, and several where it matters which fragments, rows, keys or settings it touches:
planned on one version of one table, files written, nothing committed. What a test of pairs begins with.
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
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.snapshot import Snapshot, load_latest

ROWS = 4
"""In each fragment."""
FRAGMENTS = 3
RESERVED = 8
LIMITS = FileLimits()
SHARD, OTHER_SHARD = (uuid.UUID(int=number).bytes for number in (1, 2))
Plan = Callable[[Snapshot], Operation]


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([n * 10 for n in ids], pa.int64()),
        "w": pa.array([f"w{n}" for n in ids]),
    })  # fmt: skip


def table(place: Path, *, stable: bool) -> Table:
    """Three fragments, an index on `w`, and ids reserved for compactions."""
    made = Table.create(
        str(place), rows(0, ROWS * FRAGMENTS), max_rows_per_file=ROWS, stable_row_ids=stable, durable=False
    )
    lance.dataset(made.uri).create_scalar_index("w", "BTREE")
    return made.refresh().commit(op.ReserveFragments(RESERVED)).table


def fragments(base: Snapshot, data: pa.Table) -> tuple[Fragment, ...]:
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


def deleting(predicate: str) -> Plan:
    return lambda base: delete(base, predicate, runtime=SYSTEM_RUNTIME)


def updating(values: dict[str, str], where: str) -> Plan:
    return lambda base: update(base, values, where, limits=LIMITS, runtime=SYSTEM_RUNTIME)


def upserting(*keys: int, on: str = "id", insert: bool = True) -> Plan:
    data = pa.concat_tables([rows(key, 1) for key in keys])
    rules = UpsertRules.of(on, matched="update", matched_if=None, insert=insert, delete_unmatched=False)

    def plan(base: Snapshot) -> Operation:
        found = upsert(base, as_input(data), rules, limits=LIMITS, runtime=SYSTEM_RUNTIME)
        assert found is not None
        return found

    return plan


def overwriting(config: dict[str, str] | None = None) -> Plan:
    def plan(base: Snapshot) -> Operation:
        return op.Overwrite(fragments(base, rows(500, 2)), base.manifest.schema, config or {})

    return plan


def rewriting(*ids: int, to: int) -> Plan:
    """`to` is one of the reserved ids. Indices that store where rows are no longer cover them."""

    def plan(base: Snapshot) -> Operation:
        old = tuple(fragment for fragment in base.manifest.fragments if fragment.id in ids)
        data = pa.concat_tables([rows(fragment.id * ROWS, ROWS) for fragment in old])
        new = tuple(fragment.with_id(to) for fragment in fragments(base, data))
        if base.manifest.has_stable_row_ids:
            new = tuple(fragment.with_lineage(row_ids=_ids_of(old)) for fragment in new)
        return op.Rewrite((op.RewriteGroup(old, new),))

    return plan


def _ids_of(old: tuple[Fragment, ...]) -> bytes:
    sequences = [RowIdSequence.decode(each.row_ids or b"", rows=each.physical_rows, path="") for each in old]
    return RowIdSequence.concat(sequences).encode()


def entries(base: Snapshot) -> tuple[IndexMetadata, ...]:
    return index_metadata.decode_section(base.manifest.index_section, path="moves")


def copied(base: Snapshot, index: IndexMetadata, *, name: str = "") -> IndexMetadata:
    message = type(index.message)()
    message.CopyFrom(index.message)
    fresh = uuid.uuid4()
    message.uuid.uuid = fresh.bytes
    if name:
        message.name = name
    indices = Path(base.location.uri, "_indices")
    shutil.copytree(indices / str(index.uuid), indices / str(fresh))
    return IndexMetadata(message)


def indexing(column: str, *, name: str = "", fragment_ids: tuple[int, ...] | None = None) -> Plan:
    """An index that pylance builds on a copy of the table."""

    def plan(base: Snapshot) -> Operation:
        aside = Path(base.location.uri + "-indexed")
        shutil.copytree(base.location.uri, aside)
        lance.dataset(str(aside)).create_scalar_index(column, "BTREE", name=name or f"{column}_new")
        made = Table.open(str(aside), durable=False)
        transaction = made.transaction()
        assert transaction is not None
        assert isinstance(transaction.operation, op.CreateIndex)
        for index in transaction.operation.new:
            of = "_indices/" + str(index.uuid)
            shutil.copytree(aside / of, Path(base.location.uri, of))
        shutil.rmtree(aside)
        if fragment_ids is None:
            return op.CreateIndex(new=transaction.operation.new)
        return op.CreateIndex(new=tuple(each.with_coverage(BitMap(fragment_ids)) for each in transaction.operation.new))

    return plan


def dropping_index(base: Snapshot) -> Operation:
    return op.CreateIndex(removed=entries(base))


def replacing_index(base: Snapshot) -> Operation:
    old = entries(base)
    return op.CreateIndex(new=tuple(copied(base, index) for index in old), removed=old)


def adding_segment(base: Snapshot) -> Operation:
    return op.CreateIndex(new=tuple(copied(base, index) for index in entries(base)))


def adding(*fields: pa.Field) -> Plan:
    return lambda base: new_columns.add_columns(
        base, list(fields), schema=None, read_columns=None, runtime=SYSTEM_RUNTIME
    )


def computing(expressions: dict[str, str]) -> Plan:
    return lambda base: new_columns.add_columns(
        base, expressions, schema=None, read_columns=None, runtime=SYSTEM_RUNTIME
    )


def altering(name: str, *, rename: str | None = None, nullable: bool | None = None) -> Plan:
    return lambda base: schema_evolution.alter_column(
        base, name, rename=rename, type=None, nullable=nullable, runtime=SYSTEM_RUNTIME
    )  # fmt: skip


def replacing(column: str, *fragment_ids: int) -> Plan:
    """A file of its own for one column."""

    def plan(base: Snapshot) -> Operation:
        stored = base.manifest.schema
        one = TableSchema((stored.field(column),), stored.metadata)
        made = []
        for fragment_id in fragment_ids:
            batches = rows(fragment_id * ROWS, ROWS).select([column]).to_batches()
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
            made.append((FragmentId(fragment_id), file))
        return op.DataReplacement(tuple(made))

    return plan


def config(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(config=MapUpdate(values, replace))


def table_metadata(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(table_metadata=MapUpdate(values, replace))


def schema_metadata(values: dict[str, str | None], *, replace: bool = False) -> Plan:
    return lambda _base: op.UpdateConfig(schema_metadata=MapUpdate(values, replace))


def field_metadata(column: str) -> Plan:
    return lambda base: settings.set_field_metadata(base, {column: {"k": "v"}}, replace=False)


def progress(shard: bytes, generation: int) -> Plan:
    return lambda _base: op.UpdateMemWalState((op.Progress(shard, generation),))


MOVES: dict[str, Plan] = {
    "Append": lambda base: op.Append(fragments(base, rows(100, 2))),
    "Delete row of 0": deleting("id = 0"),
    "Delete other row of 0": deleting("id = 1"),
    "Delete row of 1": deleting("id = 5"),
    "Delete all of 0": deleting("id < 4"),
    "Delete nothing": deleting("id < 0"),
    "Update row of 0": updating({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 0"),
    "Update other row of 0": updating({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 1"),
    "Update row of 1": updating({"v": "v + 1", "w": "'x'", "id": "id"}, "id = 5"),
    "Update column of 0": updating({"v": "v + 1"}, "id < 4"),
    "Update column of 1": updating({"v": "v + 1"}, "id >= 4 and id < 8"),
    "Update inserts 100": upserting(100),
    "Update inserts 200": upserting(200),
    "Update inserts 100 and changes 0": upserting(0, 100),
    "Update changes 0": upserting(0, insert=False),
    "Overwrite": overwriting(),
    "Overwrite sets a": overwriting({"a": "1"}),
    "CreateIndex on v": indexing("v"),
    "CreateIndex on v of 1": indexing("v", fragment_ids=(1,)),
    "CreateIndex on id": indexing("id"),
    "CreateIndex on id named as on v": indexing("id", name="v_new"),
    "CreateIndex drops": dropping_index,
    "CreateIndex replaces": replacing_index,
    "CreateIndex adds a segment": adding_segment,
    "Rewrite 0": rewriting(0, to=5),
    "Rewrite 0 and 1": rewriting(0, 1, to=6),
    "Rewrite 2": rewriting(2, to=7),
    "Merge adds nulls": adding(pa.field("z", pa.int32())),
    "Merge adds values": computing({"z": "id * 2"}),
    "Merge adds mandatory": lambda base: _mandatory(computing({"z": "id * 2"})(base)),
    "Project drops v": lambda base: schema_evolution.drop_columns(base, ["v"], runtime=SYSTEM_RUNTIME),
    "Project renames v": altering("v", rename="v2"),
    "Project makes v mandatory": altering("v", nullable=False),
    "Restore": lambda _base: op.Restore(Version(1)),
    "ReserveFragments": lambda _base: op.ReserveFragments(2),
    "UpdateConfig a=1": config({"a": "1"}),
    "UpdateConfig a=2": config({"a": "2"}),
    "UpdateConfig b=1": config({"b": "1"}),
    "UpdateConfig deletes a": config({"a": None}),
    "UpdateConfig replaced by b": config({"b": "1"}, replace=True),
    "UpdateConfig table a": table_metadata({"a": "1"}),
    "UpdateConfig table b": table_metadata({"b": "1"}),
    "UpdateConfig table deletes a": table_metadata({"a": None}),
    "UpdateConfig schema a": schema_metadata({"a": "1"}),
    "UpdateConfig schema b": schema_metadata({"b": "1"}),
    "UpdateConfig schema emptied": schema_metadata({}, replace=True),
    "UpdateConfig field v": field_metadata("v"),
    "UpdateConfig field w": field_metadata("w"),
    "DataReplacement v of 0": replacing("v", 0),
    "DataReplacement v of 1": replacing("v", 1),
    "DataReplacement w of 0": replacing("w", 0),
    "UpdateMemWalState 3": progress(SHARD, 3),
    "UpdateMemWalState 5": progress(SHARD, 5),
    "UpdateMemWalState of other": progress(OTHER_SHARD, 3),
    "UpdateBases x": lambda _base: op.UpdateBases((BasePath("/places/x", name="x"),)),
    "UpdateBases y": lambda _base: op.UpdateBases((BasePath("/places/y", name="y"),)),
    "UpdateBases named x": lambda _base: op.UpdateBases((BasePath("/places/z", name="x"),)),
}


def _mandatory(operation: Operation) -> Operation:
    assert isinstance(operation, op.Merge)
    return op.Merge(operation.fragments, operation.schema, preserves_nullability=False)


def planned(made: Table) -> dict[str, Operation]:
    """All of them, on the newest version."""
    base = load_latest(made._location)
    return {name: plan(base) for name, plan in MOVES.items()}


def kind_of(name: str) -> str:
    return name.partition(" ")[0]
