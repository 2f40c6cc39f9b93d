"""Ops on real clusters: processes of executors that fail and are killed, Spark Connect, drivers that are killed, S3.

`make test` runs a slice; all of it is `make clusters`. Each place is started for the tests of this module that need it,
one at a time, since each takes gigabytes.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lance
import pytest

from benchmarks.spark_driver import OPS, built
from benchmarks.spark_driver import driver as driver_of_memory
from lance_core import Table
from tests.clusters import cancelled, faults, killed, life
from tests.clusters.driver import Driver, DriverEnded, driving
from tests.clusters.places import PLACES, Spark
from tests.histories.hammer_places import faults as of_a_store
from tests.lance_core.storage.chaos import between
from tests.lance_core.storage.servers import s3

EVERYTHING = os.environ.get("CLUSTERS") == "all"
LIVES = [("connect", "s3", 0.0)]
if EVERYTHING:
    LIVES += [(place, "disk", 0.0) for place in PLACES]
    LIVES += [("local", "s3", 0.05), ("local_cluster", "s3", 0.0), ("standalone", "s3", 0.05)]
SLICE = [
    ("append", "kill"),
    ("delete", "fail"),
    ("map_columns", "straggle"),
    ("stream", "kill"),
    ("build_index", "kill"),
]
MET = [(verb, how) for verb in faults.VERBS for how in ("fail", "kill", "straggle")] if EVERYTHING else SLICE
DEATHS = [("local", "append", "after the version")]
if EVERYTHING:
    DEATHS = [
        (place, verb, point)
        for place in ("local", "standalone")
        for verb in (
            "append",
            "upsert",
            "delete",
            "merge_columns",
            "merge_columns by key",
            "ingest",
            "build_index",
            "compact",
        )  # the data source is committed by a process of Spark's own
        for point in ("before the version", "after the version")
    ]
SLOW = ("through_the_source", "streamed", "streamed_by_key")
"""Spark starts processes for each step of a data source; other tests try these on fewer rows."""
SEED = 7
pytestmark = pytest.mark.timeout(600)


@dataclass
class Places:
    """At most one at a time."""

    stack: ExitStack = field(default_factory=ExitStack)
    name: str = ""
    spark: Spark | None = None
    _driver: Driver | None = None

    def at(self, name: str) -> Spark:
        if self.name != name:
            self.stack.close()
            self.name, self._driver = name, None
            self.spark = self.stack.enter_context(PLACES[name]())
        assert self.spark is not None
        return self.spark

    def driver(self, name: str) -> Driver:
        spark = self.at(name)
        if self._driver is None:
            self._driver = self.stack.enter_context(driving(spark))
        return self._driver

    @contextmanager
    def own_driver(self, name: str) -> Iterator[Driver]:
        """One that may be killed."""
        with driving(self.at(name)) as driver:
            yield driver


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    found = Places()
    try:
        yield found
    finally:
        found.stack.close()


@pytest.mark.parametrize(("place", "store", "faulty"), LIVES)
def test_each_verb_does_what_one_process_does(
    places: Places, place: str, store: str, faulty: float, tmp_path: Path
) -> None:
    """`faulty`: of so many requests to the store something becomes. No process has its credentials but by the call."""
    driver, alone = places.driver(place), str(tmp_path / "alone")
    if store == "disk":
        uri = str(tmp_path / "table")
        driver.play(life.lived, uri=uri, alone=alone)
        assert lance.dataset(uri).count_rows() == Table.open(uri).count_rows() > 0
        return
    with s3() as server, between(server.endpoint, of_a_store(faulty, SEED)) as chaos:
        bucket = server.bucket()
        uri, quiet = f"{bucket.uri}/table", dict(bucket.options)
        options = {**quiet, "aws_endpoint": chaos.endpoint, "timeout": "2s", "client_max_retries": "20"}
        only = None if EVERYTHING else [step.__name__ for step in life.STEPS if step.__name__ not in SLOW]
        driver.play(life.lived, uri=uri, alone=alone, options=options, only=only)
        rows = lance.dataset(uri, storage_options=quiet).count_rows()
        assert rows == Table.open(uri, storage_options=quiet).count_rows() > 0
        assert sum(fault is not None for _, _, fault in chaos.seen) >= 100 * faulty


@pytest.mark.parametrize("place", ["connect", "local", "standalone"] if EVERYTHING else ["connect"])
def test_a_driver_that_is_interrupted_ends_its_work(places: Places, place: str, tmp_path: Path) -> None:
    assert places.driver(place).play(cancelled.cancelled, folder=str(tmp_path), uri=str(tmp_path / "table")) == 10


@pytest.mark.parametrize(("verb", "how"), MET)
def test_a_task_that_is_lost_costs_files_and_no_rows(places: Places, verb: str, how: str, tmp_path: Path) -> None:
    uri, mark = str(tmp_path / "table"), str(tmp_path / "mark")
    leaves = None if verb in faults.TIDY else True
    places.driver("standalone").play(faults.met, uri=uri, verb=verb, how=how, mark=mark, leaves=leaves)


def test_a_killed_driver_has_its_columns_finished_by_the_next(places: Places, tmp_path: Path) -> None:
    uri, calls, mark = (str(tmp_path / name) for name in ("table", "calls", "mark"))
    place, fragment = "standalone" if EVERYTHING else "local", 5
    with places.own_driver(place) as driver, pytest.raises(DriverEnded):
        driver.play(killed.dies_in_the_middle, uri=uri, calls=calls, mark=mark, fragment=fragment)
    noted = {int(path.stem.rpartition("-")[2]) for path in Path(uri, "_lance_assets/work").rglob("fragment-*")}
    assert fragment in noted
    assert Table.open(uri).version == 1
    first = fragments_in(calls)
    Path(calls).unlink()
    with places.own_driver(place) as driver:
        assert driver.play(killed.goes_on, uri=uri, calls=calls) == 2
    then = fragments_in(calls)
    assert not then & noted
    assert first | then == set(range(10))
    faults.holds(uri, "map_columns", leaves=None)  # tasks that were at work are killed, or have just written a file


def fragments_in(calls: str) -> set[int]:
    """A slow task may have been run twice."""
    return {int(id) // 100 for id in Path(calls).read_text().split()}


@pytest.mark.parametrize(("place", "verb", "point"), DEATHS)
def test_a_killed_driver_and_the_same_again_are_one_version(
    places: Places, place: str, verb: str, point: str, tmp_path: Path
) -> None:
    uri = str(tmp_path / "table")
    with places.own_driver(place) as driver, pytest.raises(DriverEnded):
        driver.play(killed.dies, uri=uri, verb=verb, point=point)
    landed, reserves = point.startswith("after"), faults.VERBS[verb].reserves
    assert Table.open(uri).version == 1 + landed + reserves
    again = places.driver(place).play(killed.again, uri=uri, verb=verb)
    assert again == {"version": 2 + reserves + (reserves and not landed), "landed_before": landed}
    # What has landed is not written again; what had been put aside is still there.
    faults.holds(uri, verb, leaves=not landed or verb in faults.ASIDE)


if EVERYTHING:  # its slice is tests/lance_core/tasks/test_many_fragments.py

    def test_a_driver_of_little_memory_is_enough_for_many_fragments(tmp_path: Path) -> None:
        """What a task of a fragment takes is no matter of the driver's: that op is measured by the benchmark alone."""
        uri = built(tmp_path / "table", 10_000, rows_per_fragment=100)
        with driver_of_memory("512m") as driver:
            for op in OPS.keys() - {"map_columns"}:
                took = driver.op(op, uri)
                assert took.python_mib + took.heap_mib_max < 1024, op
