"""A table and a scan travel to the processes of Dask and Ray, in the environment of `make torch`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from distributed import Client, LocalCluster

from lance_core import Table
from lance_core.table.lazy_scan import Scan

ROWS = 1000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", {"id": list(range(ROWS))}, durable=False, max_rows_per_file=100)


@pytest.fixture
def dask_client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def ray_session() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False)
    yield
    ray.shutdown()


def sum_of_ids(scan: Scan) -> int:
    return sum(scan.to_table()["id"].to_pylist())


def append_one(table: Table, number: int) -> int:
    return table.append({"id": [number]}).table.count_rows()


def check_written(table: Table, sums: list[int]) -> None:
    """Each fragment was read once by some process, and each row that a process appended is there."""
    assert sum(sums) == sum(range(ROWS))
    assert sorted(table.refresh().to_table(filter=f"id >= {ROWS}")["id"].to_pylist()) == [ROWS, ROWS + 1]
    assert table.count_rows() == ROWS


def test_dask_reads_and_appends(table: Table, dask_client: Client) -> None:
    scans = [table.scan(["id"], fragments=[fragment.id]) for fragment in table.fragments]
    sums = dask_client.gather(dask_client.map(sum_of_ids, scans))
    dask_client.gather([dask_client.submit(append_one, table, ROWS + number) for number in range(2)])
    check_written(table, sums)


def test_ray_reads_and_appends(table: Table, ray_session: None) -> None:
    read, append = ray.remote(sum_of_ids), ray.remote(append_one)
    sums = ray.get([read.remote(table.scan(["id"], fragments=[fragment.id])) for fragment in table.fragments])
    ray.get([append.remote(table, ROWS + number) for number in range(2)])
    check_written(table, sums)
