"""Conversions of written values: one process and the plans of Spark accept and refuse the same, with one message.

Widening is accepted, and narrowing of values that fit; whatever would lose a part of a value is refused.
"""

import decimal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import SchemaMismatch, Table
from lance_core.expressions.widening import is_widening
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import LocalRunner
from lance_core.tasks.rows.replace_where import overwrite_slice
from lance_core.tasks.rows.upsert import UpsertRules, upsert
from lance_core.tasks.rows.write import FileLimits, append_rows, stage_locally

LIMITS, OPTIONS = FileLimits(), WriteOptions()
WIDENED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1, None], pa.int32()), pa.int64()),
    (pa.array([255], pa.uint8()), pa.int16()),
    (pa.array([2**32 - 1], pa.uint32()), pa.uint64()),
    (pa.array([2**31 - 1], pa.int32()), pa.float64()),
    (pa.array([0.1], pa.float32()), pa.float64()),
    (pa.array(["a"]), pa.large_string()),
    (pa.array([1], pa.timestamp("s", "UTC")), pa.timestamp("us", "UTC")),
    (pa.array([[1]], pa.list_(pa.int8())), pa.list_(pa.int64())),
    (pa.array([{"a": 1}], pa.struct([("a", pa.int16())])), pa.struct([("a", pa.int32())])),
    (pa.array([None], pa.null()), pa.int32()),
    (pa.array([decimal.Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(9, 2)),
]
NARROWED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([7, -7], pa.int64()), pa.int32()),
    (pa.array([7], pa.int64()), pa.uint32()),
    (pa.array([1.5], pa.float64()), pa.float32()),
    (pa.array([3_000], pa.timestamp("ms")), pa.timestamp("s")),
    (pa.array([b"ab"]), pa.binary(2)),
]
REFUSED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([2**31], pa.int64()), pa.int32()),
    (pa.array([-1], pa.int32()), pa.uint64()),
    (pa.array([2**53 + 1], pa.int64()), pa.float64()),
    (pa.array([0.1], pa.float64()), pa.float32()),
    (pa.array([3_001], pa.timestamp("ms")), pa.timestamp("s")),
    (pa.array([[300]], pa.list_(pa.int64())), pa.list_(pa.int8())),
    (pa.array([1.5]), pa.int64()),
    (pa.array(["1"]), pa.int64()),
    (pa.array([1]), pa.string()),
    (pa.array([True]), pa.int8()),
    (pa.array([0], pa.timestamp("us")), pa.date32()),
    (pa.array([0], pa.timestamp("us")), pa.timestamp("us", "UTC")),
    (pa.array([b"abc"]), pa.binary(2)),
]
VERBS: dict[str, tuple[Callable[[Table, pa.Table], object], Callable[[TableRef, pa.Table], object]]] = {
    "append": (
        lambda table, rows: table.append(rows),
        lambda table, rows: append_rows(
            table, rows.schema, stage_locally(rows), create=False, limits=LIMITS, options=OPTIONS
        ),
    ),
    "overwrite": (
        lambda table, rows: table.overwrite(rows, where="k >= 0"),
        lambda table, rows: overwrite_slice(
            table, rows.schema, stage_locally(rows), "k >= 0", limits=LIMITS, options=OPTIONS, runner=LocalRunner()
        ),
    ),
    "upsert": (
        lambda table, rows: table.upsert(rows, "k"),
        lambda table, rows: upsert(
            table,
            rows.schema,
            stage_locally(rows),
            UpsertRules.of("k", matched="update", matched_if=None, insert=True, delete_unmatched=False),
            limits=LIMITS,
            options=OPTIONS,
            runner=LocalRunner(),
        ),
    ),
}


def outcomes(folder: Path, verb: str, values: pa.Array, stored: pa.DataType) -> list[pa.Table | str]:
    """Return what one process and the plan of Spark store, or why they refuse it."""
    rows = pa.table({"k": pa.array(range(len(values)), pa.int32()), "v": values})
    found: list[pa.Table | str] = []
    in_process, on_spark = VERBS[verb]
    for number in range(2):
        schema = pa.schema([("k", pa.int64()), ("v", stored)])
        table = Table.create(folder / str(number), schema, durable=False)
        try:
            on_spark(TableRef(table.uri), rows) if number else in_process(table, rows)
        except SchemaMismatch as error:
            assert table.refresh().version == 1
            found.append(str(error).replace(table.uri, "the table"))
        else:
            found.append(table.refresh().to_table())
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_values_without_loss_are_stored_alike(tmp_path: Path, verb: str) -> None:
    for number, (values, stored) in enumerate([*WIDENED, *NARROWED]):
        ours, on_spark = outcomes(tmp_path / str(number), verb, values, stored)
        assert isinstance(ours, pa.Table), ours
        assert isinstance(on_spark, pa.Table), on_spark
        assert ours.equals(on_spark)
        assert ours["v"].to_pylist() == values.cast(stored).to_pylist()


@pytest.mark.parametrize("verb", VERBS)
def test_loss_is_refused_with_the_same_message(tmp_path: Path, verb: str) -> None:
    for number, (values, stored) in enumerate(REFUSED):
        ours, on_spark = outcomes(tmp_path / str(number), verb, values, stored)
        assert isinstance(ours, str), (values, stored)
        assert ours == on_spark
        assert "column 'v" in ours
        assert not is_widening(values.type, stored)
