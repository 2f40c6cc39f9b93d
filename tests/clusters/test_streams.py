"""A streaming query whose driver is killed, twice, and started again: each row is in the sink once.

With `make clusters` alone: in `make test` the same is done without Spark, at every call of every process
(`tests/lance_core/tasks/test_stream_writing.py`).
"""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.tasks.streaming.stream_sink import BATCH, QUERY
from tests.clusters import streams
from tests.clusters.driver import DriverEnded, driving
from tests.clusters.places import local


def rows(first: int, stop: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, stop), pa.int64())})


def killed_twice(folder: Path) -> None:
    source, sink, checkpoint = (str(folder / name) for name in ("from", "to", "checkpoint"))
    Table.create(source, rows(0, 210), max_rows_per_file=60, durable=False)
    repeated = 0
    with local() as place:
        for after in (2, 4):
            with driving(place) as driver, pytest.raises(DriverEnded):
                driver.play(streams.followed_and_killed, source=source, sink=sink, checkpoint=checkpoint, after=after)
            written_down = [each for each in (folder / "checkpoint" / "commits").iterdir() if each.name.isdigit()]
            repeated += Table.open(sink).version > len(written_down)
        with driving(place) as driver:
            Table.open(source).append(rows(210, 220))
            driver.play(streams.followed, source=source, sink=sink, checkpoint=checkpoint)
    table = Table.open(sink)
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(220))
    properties = [version.properties for version in table.versions()]
    assert [int(each[BATCH]) for each in properties] == list(range(len(properties)))
    assert len({each[QUERY] for each in properties}) == 1
    assert table.fsck().is_sound
    assert repeated, "no kill fell between a commit and the note of it, which is what this is for"


if os.environ.get("CLUSTERS") == "all":

    @pytest.mark.timeout(900)
    def test_a_killed_driver_leaves_no_row_out_and_none_twice(tmp_path: Path) -> None:
        killed_twice(tmp_path)
