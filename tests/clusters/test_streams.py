"""A streaming query whose driver is killed twice and restarted writes each row to the sink once.

It runs with `make clusters` only: `make test` covers the same without Spark, at every call of every process
(`tests/lance_core/tasks/test_stream_writing.py`).
"""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.tasks.streaming.stream_sink import BATCH, QUERY
from tests.clusters import streams
from tests.clusters.deployments import local
from tests.clusters.driver import DriverEnded, start_driver


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, stop), pa.int64())})


def kill_driver_twice(folder: Path) -> None:
    source, sink, checkpoint = (str(folder / name) for name in ("from", "to", "checkpoint"))
    Table.create(source, rows(0, 210), max_rows_per_file=60, durable=False)
    repeated = 0
    with local() as place:
        for after in (2, 4):
            with start_driver(place) as driver, pytest.raises(DriverEnded):
                driver.call(streams.follow_until_killed, source=source, sink=sink, checkpoint=checkpoint, after=after)
            recorded_batches = [
                entry for entry in (folder / "checkpoint" / "commits").iterdir() if entry.name.isdigit()
            ]
            repeated += Table.open(sink).version > len(recorded_batches)
        with start_driver(place) as driver:
            Table.open(source).append(rows(210, 220))
            driver.call(streams.follow_source, source=source, sink=sink, checkpoint=checkpoint)
    table = Table.open(sink)
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(220))
    properties = [version.properties for version in table.versions()]
    assert [int(values[BATCH]) for values in properties] == list(range(len(properties)))
    assert len({values[QUERY] for values in properties}) == 1
    assert table.fsck().is_sound
    assert repeated, "no kill struck between a commit and Spark's record of it, which this test requires"


if os.environ.get("CLUSTERS") == "all":

    @pytest.mark.timeout(900)
    def test_a_killed_driver_leaves_no_row_out_and_none_twice(tmp_path: Path) -> None:
        kill_driver_twice(tmp_path)
