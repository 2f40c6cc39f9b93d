"""Tests of `lance_core/table/torch_datasets.py` with data loaders, in the environment of `make torch`."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from lance_core import InvalidInput, Table
from lance_core.dml.blob_inputs import FunctionInputs
from lance_core.dml.computed_column import ComputedColumn
from lance_core.dml.function_calls import FunctionCalls
from lance_core.dml.row_computation import compute_rows
from tests.lance_core.table.test_method_examples import NEEDS_TORCH, run_example

ROWS = 1000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    vectors = np.arange(ROWS * 4, dtype=np.float32)
    rows = pa.table(
        {
            "id": range(ROWS),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "flag": [number % 2 == 0 for number in range(ROWS)],
            "score": [None if number == 3 else number / 2 for number in range(ROWS)],
            "text": [f"n{number}" for number in range(ROWS)],
            "gap": [None if number == 3 else number for number in range(ROWS)],
        }
    )
    uri = tmp_path_factory.mktemp("torch") / "t"
    return Table.create(uri, rows, max_rows_per_file=100, durable=False)


@pytest.mark.parametrize("name", sorted(NEEDS_TORCH))
def test_the_example_of_a_method_runs(name: str, tmp_path: Path) -> None:
    assert run_example(name, tmp_path) >= 1


def test_batches_are_dicts_of_tensors(table: Table) -> None:
    dataset = table.to_torch(["id", "vector", "flag", "score", "text"], batch_size=400)
    assert len(dataset) == 3
    assert repr(dataset) == f"<1000 rows in order in batches of 400, part 1 of 1 of {table.uri!r}, version 1>"
    batch = next(iter(dataset))
    assert (batch["id"].dtype, batch["flag"].dtype) == (torch.int64, torch.bool)
    assert batch["vector"].shape == (400, 4)
    assert batch["vector"][2].tolist() == [8.0, 9.0, 10.0, 11.0]
    assert torch.isnan(batch["score"][3])
    assert batch["text"][:2] == ["n0", "n1"]
    with pytest.raises(InvalidInput, match="'gap' has nulls"):
        next(iter(table.to_torch(["gap"])))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_ranks_divide_the_rows(table: Table, method: str, workers: int) -> None:
    assert table.count_rows("text like 'n1%'") == 111  # the parent uses threads before it forks
    found: list[int] = []
    for rank in range(2):
        dataset = table.to_torch(["id"], "id >= 100", batch_size=64, shuffle=True, rank=rank, world_size=2)
        context = method if workers else None
        loader = DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, timeout=60 * bool(workers)
        )
        for _epoch in range(2 if workers == 0 else 1):
            batches = list(loader)
        found += [number for batch in batches for number in batch["id"].tolist()]
    assert sorted(found) == list(range(100, ROWS))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_continues(table: Table, workers: int) -> None:
    def loader() -> StatefulDataLoader:
        dataset = table.to_torch(["id"], batch_size=50, shuffle=True, seed=7)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    expected = [batch["id"].tolist() for batch in loader()]
    interrupted = loader()
    batches = iter(interrupted)
    first = [next(batches)["id"].tolist() for _ in range(7)]
    state = interrupted.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert first + [batch["id"].tolist() for batch in resumed] == expected
    assert sorted(number for batch in expected for number in batch) == list(range(ROWS))


def test_an_abandoned_iteration_does_not_shorten_the_next_one(table: Table) -> None:
    dataset = table.to_torch(["id"], batch_size=100, shuffle=True)
    first = next(iter(dataset))["id"].tolist()
    both = [iter(dataset), iter(dataset)]
    assert next(both[0])["id"].tolist() == next(both[1])["id"].tolist() == first
    batches = [batch["id"].tolist() for batch in dataset]
    assert batches[0] == first
    assert sorted(number for batch in batches for number in batch) == list(range(ROWS))
    assert next(iter(dataset))["id"].tolist() != first  # the next epoch
    with pytest.raises(InvalidInput, match="batches of 100"):
        table.to_torch(["id"], batch_size=50, shuffle=True).load_state_dict(dataset.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_rows_by_index_are_shuffled_by_the_loader(table: Table) -> None:
    dataset = table.to_torch(["id", "vector", "score", "text"], "id < 200", style="map")
    assert (len(dataset), repr(dataset)) == (200, f"<200 rows of {table.uri!r}, version 1>")
    assert (dataset[-1]["id"], dataset[-1]["text"]) == (199, "n199")
    assert torch.equal(dataset[2]["vector"], torch.tensor([8.0, 9.0, 10.0, 11.0]))
    loader = DataLoader(dataset, batch_size=40, shuffle=True, num_workers=2, timeout=60)
    batches = list(loader)
    assert sorted(int(number) for batch in batches for number in batch["id"]) == list(range(200))
    assert {(batch["vector"].shape, batch["vector"].dtype) for batch in batches} == {((40, 4), torch.float32)}
    assert all(torch.equal(batch["vector"][:, 0], batch["id"] * 4.0) for batch in batches)
    assert sum(int(torch.isnan(batch["score"]).sum()) for batch in batches) == 1
    with pytest.raises(InvalidInput, match="'gap' has nulls"):
        table.to_torch(["gap"], style="map")[3]
    with pytest.raises(IndexError):
        dataset[200]


def test_arguments_are_checked(table: Table) -> None:
    for arguments in ({"rank": 1}, {"rank": 2, "world_size": 2}, {"style": "other"}):
        with pytest.raises(InvalidInput):
            table.to_torch(**arguments)


def test_hugging_face_reads_a_table_as_arrow(table: Table, tmp_path: Path) -> None:
    dataset = datasets.Dataset(table.to_table(["id", "text", "vector"]))
    assert dataset[5]["text"] == "n5"
    assert dataset.with_format("torch")[5]["vector"].tolist() == [20.0, 21.0, 22.0, 23.0]
    streamed = datasets.IterableDataset.from_generator(
        lambda: (row for batch in table.to_batches(["id"]) for row in batch.to_pylist())
    )
    assert [row["id"] for row in streamed.take(3)] == [0, 1, 2]
    copy = Table.create(tmp_path / "copy", dataset.data.table, durable=False)
    assert len(copy) == ROWS


def test_a_computed_column_receives_and_returns_tensors() -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float32)), 2)
    batch = pa.record_batch({"vector": vectors, "text": ["a", "b", "c", "d"]})

    def double(columns: dict[str, torch.Tensor]) -> torch.Tensor:
        assert columns["text"] == ["a", "b", "c", "d"]
        return 2 * columns["vector"]

    type_ = pa.list_(pa.float32(), 2)
    column = ComputedColumn("doubled", type_, double, inputs=["vector", "text"], input_format="torch")
    rows = compute_rows(FunctionCalls(column, "tensors"), FunctionInputs(batch, ("vector", "text")), "t")
    assert rows.values.to_pylist() == [[0, 2], [4, 6], [8, 10], [12, 14]]
