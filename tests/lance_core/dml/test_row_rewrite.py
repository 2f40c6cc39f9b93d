"""Row rewrite: both strategies for changed rows, for every type of the changed column and of an unchanged one."""

from pathlib import Path

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.dml.row_rewrite import FragmentChange, RowRewrite, move_rows, rewrite_columns
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest
from tests.interop.table_comparison import read_by_pylance, read_by_us, values_by_column
from tests.interop.type_cases import CASES, StorageName, TypeCase
from tests.pairwise import pairwise

CASES_BY_VERSION = [(case, version) for case in CASES for version in sorted({case.versions[0], case.versions[-1]})]
COMBINATIONS = [
    pytest.param(
        case, version, in_place, column, id=f"{case.name}-{version}-{'in place' if in_place else 'moved'}-{column}"
    )
    for (case, version), in_place, column in pairwise(CASES_BY_VERSION, (False, True), ("v", "x"))
]
"""Every type in its first and last storage version meets both strategies and both columns."""
LIMITS = FileLimits(1000, 1 << 30)


def table_of(case: TypeCase, times: int = 3) -> pa.Table:
    """Return the values of the case several times, with a key."""
    once = case.table()
    values = pa.concat_arrays([once["v"].combine_chunks()] * times)
    keys = pa.array(range(len(values)), pa.int64())
    return pa.Table.from_arrays(
        [keys, values, pa.nulls(len(keys), pa.int8())], schema=once.schema.append(pa.field("x", pa.int8()))
    )


def plan_changes(uri: str, columns: tuple[str, ...], new: pa.Table, offsets: list[int]) -> RowRewrite:
    """Plan to replace the rows at these offsets of a table with one fragment by the rows of `new`, in order."""
    base = load_latest(locate(uri, durable=False))
    (batch,) = new.combine_chunks().to_batches()

    def values(_rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return batch.take(pa.array(positions))

    (fragment,) = base.manifest.fragments
    return RowRewrite(base, columns, (), (FragmentChange(fragment, np.array(offsets), values),))


@pytest.mark.parametrize(("case", "version", "in_place", "column"), COMBINATIONS)
def test_every_type(case: TypeCase, version: StorageName, in_place: bool, column: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    source = table_of(case)
    table = Table.create(uri, source, storage_version=version, durable=False, stable_row_ids=True)
    table = table.delete("k = 0").table
    stored = table.to_table()
    length = len(case.values)
    offsets = [length - 1, length + 1, 2 * length] if length > 3 else [length, 2 * length]
    if case.read_type:
        source = source.cast(table.schema)
    new = source.take([3 * length - 1 - n for n in range(len(offsets))]).select([column])
    if column == "x":
        new = pa.table({"x": pa.array(range(len(offsets)), pa.int8())})
    rewrite = plan_changes(uri, (column,), new, offsets)
    operation = (
        rewrite_columns(rewrite, (), limits=LIMITS, runtime=SYSTEM_RUNTIME)
        if in_place
        else move_rows(rewrite, {}, (), assigned=(), limits=LIMITS, runtime=SYSTEM_RUNTIME)
    )
    after = table.commit(operation).table

    expected = {row["k"]: row for row in as_dictionaries(stored)}
    for place, value in zip(offsets, as_dictionaries(new), strict=True):
        expected[place] = {**expected[place], **value}
    found = {row["k"]: row for row in as_dictionaries(read_by_us(uri))}
    assert found == expected
    assert {row["k"]: row for row in as_dictionaries(read_by_pylance(uri))} == expected
    ids = after.to_table(["k", "_rowid"])
    assert ids["k"].to_pylist() == ids["_rowid"].to_pylist()
    lance.dataset(uri).validate()


def as_dictionaries(table: pa.Table) -> list[dict]:
    """Return the rows as dictionaries with the representation of each value; the key stays an integer."""
    spelt = values_by_column(table)
    keys = [int(key) for key in spelt.get("k", [])]
    listed = [dict(zip(spelt, each, strict=True)) for each in zip(*spelt.values(), strict=True)]
    for row, key in zip(listed, keys, strict=False):
        row["k"] = key
    return listed
