"""Tests of `lance_core/table/batch_shards.py`, which the datasets of training frameworks build on."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import InvalidInput, MissingDependency, Table
from lance_core.table.batch_shards import BatchShards, ShardPosition

ROWS = 103


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    rows = pa.table({"id": range(ROWS + 10), "s": [f"n{number}" for number in range(ROWS + 10)]})
    created = Table.create(tmp_path_factory.mktemp("shards") / "t", rows, max_rows_per_file=20, durable=False)
    return created.delete("id >= 40 and id < 50").table


EXPECTED = [number for number in range(ROWS + 10) if not 40 <= number < 50]


def ids_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [value for batch in batches for value in batch["id"].to_pylist()]


@settings(max_examples=25, deadline=None)
@given(
    shards=st.integers(1, 5),
    batch_size=st.integers(1, 40),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
    even=st.booleans(),
    start=st.integers(0, 3),
)
def test_shards_have_each_row_once_and_continue_where_they_stopped(
    table: Table, shards: int, batch_size: int, shuffle: bool, epoch: int, even: bool, start: int
) -> None:
    condition = pc.bit_wise_and(pc.field("id"), 1) == 0 if even else None
    data = BatchShards.create(table, ["id"], condition, batch_size=batch_size, shuffle=shuffle, seed=3)
    expected = [number for number in EXPECTED if not even or number % 2 == 0]
    parts = [list(data.batches(shard, shards, epoch=epoch)) for shard in range(shards)]
    found = [number for part in parts for number in ids_of(part)]
    assert sorted(found) == expected
    assert data.rows == len(expected)
    for shard, part in enumerate(parts):
        assert len(part) == data.batch_count(shard, shards)
        assert ids_of(data.batches(shard, shards, epoch=epoch, start=start)) == ids_of(part[start:])
    if shards == 1 and not shuffle:
        assert found == expected
    copy = pickle.loads(pickle.dumps(data))
    assert ids_of(copy.batches(0, shards, epoch=epoch)) == ids_of(parts[0])


def test_epochs_have_different_orders_of_the_same_rows(table: Table) -> None:
    data = BatchShards.create(table, ["id"], None, batch_size=10, shuffle=True, seed=1)
    first, second = (ids_of(data.batches(0, 1, epoch=epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == EXPECTED


def test_rows_are_read_by_index_in_any_order(table: Table) -> None:
    data = BatchShards.create(table, None, "id > 60", batch_size=10, shuffle=True, seed=1)
    ids = BatchShards.create(table, ["id"], None, batch_size=1, shuffle=True, seed=1).rows_at([-1, 40])
    assert pa.Table.from_batches(ids).to_pydict() == {"id": [112, 50]}
    rows = pa.Table.from_batches(data.rows_at([3, 0, 3])).to_pylist()
    assert rows == [{"id": number, "s": f"n{number}"} for number in (64, 61, 64)]


def count_rows(data: BatchShards, results: object) -> None:
    """Send the number of rows, and whether a process of this one decoded them."""
    rows, process = len(ids_of(data.batches(0, 1))), os.getpid()
    decoders = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    results.put((rows, bool(decoders)))  # type: ignore[attr-defined]  # a queue


@pytest.mark.filterwarnings("ignore:lance is not fork-safe", "ignore:.*use of fork")
def test_a_forked_process_reads_although_its_parent_used_all_libraries(table: Table) -> None:
    assert table.to_table(filter="s like 'n1%' and id < 50").num_rows  # starts threads, which a fork does not copy
    data = BatchShards.create(table, ["id"], "s like 'n1%'", batch_size=50, shuffle=False, seed=0)
    context = get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=count_rows, args=(data, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [(data.rows, True)] * 2
    for worker in workers:
        worker.join()


def test_a_position_belongs_to_its_version() -> None:
    position = ShardPosition(3, "5 rows", epoch=1, batch=7)
    assert ShardPosition(3, "5 rows").restored(position.state()) == position
    with pytest.raises(InvalidInput, match=r"version 3.*version 4"):
        ShardPosition(4, "5 rows").restored(position.state())
    valid = position.state()
    for state in ({}, {"version": 3}, {**valid, "epoch": "1"}, {**valid, "batch": -1}, {**valid, "more": 1}):
        with pytest.raises(InvalidInput, match="is not one of a dataset"):
            ShardPosition(3, "5 rows").restored(state)


def test_a_position_belongs_to_the_arguments_of_its_dataset(table: Table) -> None:
    arguments: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 1}
    saved = BatchShards.create(table, None, None, **arguments).description_of(0, 2)
    others: list[dict[str, Any]] = [{"batch_size": 11}, {"shuffle": False}, {"seed": 2}]
    described = [BatchShards.create(table, None, None, **{**arguments, **each}).description_of(0, 2) for each in others]
    described += [
        BatchShards.create(table, None, "id > 3", **arguments).description_of(0, 2),
        BatchShards.create(table, None, None, **arguments).description_of(0, 3),
    ]
    for other in described:
        with pytest.raises(InvalidInput, match="the state belongs to a dataset of 103 rows"):
            ShardPosition(1, other).restored(ShardPosition(1, saved, batch=2).state())


def test_only_the_first_iteration_after_a_restoration_continues() -> None:
    position = ShardPosition(1, "d").restored(ShardPosition(1, "d", epoch=2, batch=3).state())
    first = position.begun()
    assert (first.epoch, first.batch) == (2, 3)
    first.batch += 1
    assert (first.begun().epoch, first.begun().batch) == (2, 0)
    assert position.at_epoch(5).begun() == ShardPosition(1, "d", epoch=5)


def test_arguments_are_checked(table: Table) -> None:
    valid: dict[str, Any] = {"batch_size": 5, "shuffle": False, "seed": 0}
    for invalid in ({"batch_size": 0}, {"shuffle": 1}, {"seed": -1}):
        with pytest.raises(InvalidInput):
            BatchShards.create(table, None, None, **{**valid, **invalid})
    with pytest.raises(InvalidInput, match="no column"):
        BatchShards.create(table, ["nothing"], None, **valid)
    with pytest.raises(InvalidInput, match="shard 2"):
        list(BatchShards.create(table, None, None, **valid).batches(2, 2))


def test_without_torch_the_extra_is_named(table: Table, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.modules['torch'] = None\nfrom lance_core import Table\nTable.open({table.uri!r}).to_torch()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert MissingDependency.__name__ in done.stderr
    assert "pip install 'lance-assets[torch]'" in done.stderr
