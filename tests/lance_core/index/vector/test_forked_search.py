"""Searches and lookups in a forked process, after the same table was read in its parent, and unusual queries."""

import faulthandler
import os
import select
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table

ROWS, SIZE = 3000, 16
POINTS = np.random.default_rng(3).normal(size=(ROWS, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path: Path = tmp_path_factory.mktemp("forked") / "t"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(POINTS.ravel()), SIZE)
    data = pa.table({"id": pa.array(range(ROWS)), "v": vectors})
    dataset = lance.write_dataset(data, str(path), max_rows_per_file=1000)
    dataset.create_index("v", "IVF_PQ", num_partitions=8, num_sub_vectors=4)
    dataset.create_scalar_index("id", "BTREE")
    return Table.open(str(path))


def run_in_child(call: Callable[[], list[int]]) -> str:
    """Return the result of a call in a forked process as text. The process is killed after 20 seconds, and the error
    has the stacks of its threads."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as stacks:
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(15, file=stacks)
            try:
                os.write(writing, repr(call()).encode())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            has_answered = bool(select.select([reading], [], [], 20)[0])
            stacks.seek(0)
            assert has_answered, f"the child waits for a thread of its parent:\n{stacks.read().decode()}"
            return os.read(reading, 10_000).decode()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)


def test_rows_are_read_in_a_forked_process(table: Table) -> None:
    assert table.take([5])["id"].to_pylist() == [5]
    assert run_in_child(lambda: table.take([1, 2500])["id"].to_pylist()) == "[1, 2500]"
    assert table.to_table(["id"], "id = 77")["id"].to_pylist() == [77]
    assert run_in_child(lambda: table.to_table(["id"], "id = 2077")["id"].to_pylist()) == "[2077]"


def test_vectors_are_searched_in_a_forked_process(table: Table) -> None:
    def found() -> list[int]:
        return table.search("v", POINTS[:50], 5, columns=["id"])["id"].to_pylist()

    expected = found()
    assert run_in_child(found) == repr(expected)


def test_each_query_of_a_large_batch_equals_a_single_query(table: Table) -> None:
    queries = POINTS[:100] + np.float32(0.1)
    for nprobes in (1, 3):
        batch = table.search("v", queries, 5, nprobes=nprobes, columns=["id"])["id"].to_numpy().reshape(100, 5)
        for number, query in enumerate(queries):
            single = table.search("v", query, 5, nprobes=nprobes, columns=["id"])["id"].to_pylist()
            assert batch[number].tolist() == single


def test_queries_beyond_float32_are_compared_exactly(table: Table) -> None:
    far = np.zeros((2, SIZE))
    far[0, 0], far[1] = 1e20, POINTS[0]
    for query in (far[0], far[0] * 1e30, far):
        found = table.search("v", query, 5, columns=["id"])
        assert len(found) == 5 * np.atleast_2d(query).shape[0]
        assert found.equals(table.search("v", query, 5, columns=["id"], exact=True))


def test_no_queries_return_no_rows(table: Table) -> None:
    choices: list[dict[str, Any]] = [{}, {"exact": True}, {"filter": "id < 7"}, {"refine": 2}]
    for options in choices:
        found = table.search("v", np.zeros((0, SIZE)), columns=["id"], **options)
        assert found.schema.equals(table.search("v", POINTS[:1], columns=["id"], **options).schema)
        assert not len(found)
