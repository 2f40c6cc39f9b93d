"""A scan in workers: pinned to a version, in groups, in the types that travel."""

import pickle
from pathlib import Path

import pyarrow as pa

from lance_core import Table
from lance_core.tasks.read import ReadPlan, ReadTask, plan_read


def as_stored(schema: pa.Schema) -> pa.Schema:
    return schema


def work(plan: ReadPlan) -> pa.Table:
    task: ReadTask = pickle.loads(pickle.dumps(ReadTask(plan)))
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(len(plan.groups)), pa.int64())})
    return pa.Table.from_batches(task([numbers]), plan.transport)


def test_groups_are_balanced_and_in_order(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"n": range(100)}), max_rows_per_file=10)
    plan = plan_read(table, columns=None, transport=as_stored, groups_max=4)
    assert [len(group) for group in plan.groups] == [3, 3, 3, 1]
    assert work(plan)["n"].to_pylist() == list(range(100))


def test_a_plan_keeps_its_version(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"n": [1]}))
    plan = plan_read(table, columns=None, transport=as_stored, groups_max=4)
    table.overwrite(pa.table({"n": [2]}))
    assert work(plan)["n"].to_pylist() == [1]


def test_batches_travel_in_the_types_of_the_other_side(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    travelling = pa.schema([("v", pa.list_(pa.float32()))])
    plan = plan_read(table, columns=["v"], transport=lambda _: travelling, groups_max=1)
    assert work(plan).schema == travelling
