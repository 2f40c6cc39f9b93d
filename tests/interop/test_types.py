"""Logical types: both libraries write each type in every storage version that can hold it, read the table of the other
one and append to it. The tables are compared after each step, including their manifests.

`make test` writes each type alone in the newest version, and all types in one table of each version; `make interop`
writes each type alone in every version.
"""

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table, Unsupported
from tests.interop.table_comparison import (
    assert_same_rows,
    comparable_manifest,
    history_by_pylance,
    history_by_us,
    read_by_pylance,
    read_by_us,
    values_by_column,
)
from tests.interop.type_cases import CASES, STORAGE_VERSIONS, StorageName, TypeCase

EVERYTHING = os.environ.get("INTEROP") == "all"
CASES_BY_VERSION = [
    pytest.param(case, version, id=f"{case.name}-{version}")
    for case in CASES
    for version in (case.versions if EVERYTHING else case.versions[-1:])
]
LISTS = pa.struct([pa.field("l", pa.list_(pa.int8()))])
POINT = pa.struct([pa.field("x", pa.int32())])


def assert_tables_agree(ours: str, theirs: str) -> None:
    expected = read_by_pylance(theirs)
    assert_same_rows(read_by_pylance(ours), expected)
    assert_same_rows(read_by_us(ours), expected)
    assert_same_rows(read_by_us(theirs), expected)
    assert comparable_manifest(ours) == comparable_manifest(theirs)
    assert history_by_us(ours) == history_by_us(theirs) == history_by_pylance(ours) == history_by_pylance(theirs)


@pytest.mark.parametrize(("case", "version"), CASES_BY_VERSION)
def test_both_libraries_write_and_read_the_same(case: TypeCase, version: StorageName, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    first = case.table()
    more = case.table(start=1)
    created = Table.create(ours, first, storage_version=version, durable=False)
    lance.write_dataset(first, theirs, data_storage_version=version)

    logical = tuple(node.logical_type for node in created.manifest.schema.field("v").walk())
    assert logical == case.logical_types
    field = created.schema.field("v")
    assert field.type == (case.read_type or case.field.type)
    assert field.nullable is case.field.nullable
    assert_tables_agree(ours, theirs)

    created.append(more)
    lance.write_dataset(more, theirs, mode="append")
    lance.write_dataset(more, ours, mode="append")
    Table.open(theirs, durable=False).append(more)
    assert_tables_agree(ours, theirs)

    Table.open(ours, durable=False).overwrite(more)
    lance.write_dataset(more, theirs, mode="overwrite")
    assert_tables_agree(ours, theirs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_slices_are_written_with_their_own_rows(case: TypeCase, tmp_path: Path) -> None:
    """Also if files end in the middle of a batch."""
    sliced = case.table().slice(1)
    created = Table.create(str(tmp_path / "table"), sliced, max_rows_per_file=1, durable=False)
    assert len(created.fragments) == sliced.num_rows
    assert values_by_column(created.to_table()) == values_by_column(sliced)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_slices_inside_structs(case: TypeCase, tmp_path: Path) -> None:
    if case.name in ("fsl-of-struct", "struct-empty"):
        return
    inner = pa.StructArray.from_arrays([case.values.slice(1)], fields=[case.field])
    outer = pa.StructArray.from_arrays([pa.concat_arrays([inner, inner]).slice(1)], ["inner"])
    table = pa.table({"v": outer})
    created = Table.create(str(tmp_path / "table"), table, max_rows_per_file=2, durable=False)
    assert values_by_column(created.to_table()) == values_by_column(table)


@pytest.mark.parametrize(
    ("version", "excluded"), [("2.0", ()), ("2.1", ()), ("2.2", ()), ("2.3", ("fixed_size_binary-0",))]
)
def test_all_types_in_one_table(version: StorageName, excluded: tuple[str, ...], tmp_path: Path) -> None:
    """Ids, columns and pages of neighbouring columns do not mix."""
    chosen = [case for case in CASES if case.since <= version and case.name not in ("fsl-of-struct", *excluded)]
    rows_all = max(len(case.values) for case in chosen)
    fields, columns = [], []
    for case in chosen:
        repetitions = rows_all // len(case.values) + 1
        fields.append(case.field.with_name(case.name))
        columns.append(pa.concat_arrays([case.values] * repetitions)[:rows_all])
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields, {"who": "all", "café": "é"}))
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Table.create(ours, table, storage_version=version)
    lance.write_dataset(table, theirs, data_storage_version=version)
    assert_tables_agree(ours, theirs)
    Table.open(theirs).append(table)
    lance.dataset(ours).insert(table)
    assert_tables_agree(ours, theirs)


@pytest.mark.parametrize("version", STORAGE_VERSIONS)
def test_tables_without_rows(version: StorageName, tmp_path: Path) -> None:
    schema = pa.schema([case.field.with_name(case.name) for case in CASES if case.since == "2.0"], {"a": "b"})
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Table.create(ours, schema, storage_version=version, durable=False)
    lance.write_dataset(pa.Table.from_batches([], schema), theirs, data_storage_version=version)
    assert_tables_agree(ours, theirs)


@pytest.mark.parametrize(
    ("version", "arrow", "error", "message"),
    [
        ("2.1", pa.map_(pa.string(), pa.int8()), Unsupported, "'v' holds a map that storage version 2.1"),
        ("2.0", pa.list_(POINT, 2), Unsupported, "'v' holds a fixed_size_list that storage version 2.0"),
        ("2.0", pa.binary(0), Unsupported, "'v' holds binary values of no bytes, which only storage version 2.2"),
        ("2.3", pa.binary(0), Unsupported, "'v' holds binary values of no bytes, which only storage version 2.2"),
        ("2.2", pa.decimal32(5, 2), InvalidInput, r"'v' has the Arrow type decimal32\(5, 2\)"),
        ("2.2", pa.list_view(pa.int8()), InvalidInput, "'v' has the Arrow type list_view"),
        ("2.2", pa.struct([pa.field("m", pa.month_day_nano_interval())]), InvalidInput, r"'v\.m' has the Arrow type"),
        ("2.2", pa.map_(pa.string(), pa.int8(), keys_sorted=True), InvalidInput, "'v' is a map with sorted keys"),
        ("2.2", pa.list_(pa.string(), 2), InvalidInput, "'v' has the Arrow type fixed-size list of string"),
        ("2.2", pa.list_(pa.list_(POINT, 2)), Unsupported, "'v' nests a fixed-size list of structs"),
        ("2.2", pa.list_(LISTS, 2), Unsupported, "'v' nests a fixed-size list of structs"),
        ("2.2", pa.struct([pa.field("f", pa.list_(POINT, 2))]), Unsupported, "'v' nests a fixed-size list of structs"),
        ("2.2", pa.run_end_encoded(pa.int32(), pa.int8()), InvalidInput, "'v' has the Arrow type run_end_encoded"),
    ],
    ids=lambda value: str(value) if isinstance(value, str | pa.DataType) else "",
)
def test_unsupported_types_are_refused_with_the_column(
    version: str, arrow: pa.DataType, error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "refused"
    with pytest.raises(error, match=message):
        Table.create(str(folder), pa.schema([pa.field("v", arrow)]), storage_version=version)
    assert not (folder / "_versions").exists()


def test_storage_2_0_refuses_null_structs(tmp_path: Path) -> None:
    """Storage version 2.0 cannot represent a null struct; both libraries refuse instead of storing null children."""
    table = pa.table({"v": pa.array([{"x": 1}, None], POINT)})
    with pytest.raises(InvalidInput, match=r"column 'v' has a null struct, which storage version 2\.0 cannot"):
        Table.create(str(tmp_path / "ours"), table, storage_version="2.0")
    assert not Table.exists(str(tmp_path / "ours"))
