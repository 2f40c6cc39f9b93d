"""Operations on real clusters: failing and killed executor processes, Spark Connect, killed drivers, and S3.

`make clusters` runs them. In `make test`, `tests/lance_assets/test_run_crashes.py` kills a driver after its commit, and
`tests/lance_core/tasks` repeats tasks without Spark. Each deployment is started for the tests of this module that need
it, one at a time, since each takes gigabytes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lance
import pytest

from benchmarks.spark_driver import OPS, build_table
from benchmarks.spark_driver import start_driver as driver_of_memory
from lance_core import Table
from tests.clusters import assigned_devices, cancellation, dagster_resources, faults, killed_drivers, lifecycle
from tests.clusters.deployments import DEPLOYMENTS, PROJECT, SparkAddress
from tests.clusters.driver import Driver, DriverEnded, start_driver
from tests.histories.hammer_locations import random_faults as of_a_store
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import s3

EVERYTHING = os.environ.get("CLUSTERS") == "all"
LIFECYCLES = [(place, "disk", 0.0) for place in DEPLOYMENTS]
LIFECYCLES += [("connect", "s3", 0.0), ("local", "s3", 0.05), ("local_cluster", "s3", 0.0), ("standalone", "s3", 0.05)]
FAULTS = [(verb, how) for verb in faults.VERBS for how in ("fail", "kill", "straggle")]
DRIVER_KILLS = [
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
    )
    for point in ("before the version", "after the version")
]
"""Without the data source, which is committed by a process of Spark's own."""
SEED = 7
pytestmark = pytest.mark.timeout(600)


@dataclass
class RunningDeployment:
    """The running Spark deployment, at most one at a time."""

    stack: ExitStack = field(default_factory=ExitStack)
    name: str = ""
    spark: SparkAddress | None = None
    _driver: Driver | None = None

    def start(self, name: str) -> SparkAddress:
        if self.name != name:
            self.stack.close()
            self.name, self._driver = name, None
            self.spark = self.stack.enter_context(DEPLOYMENTS[name]())
        assert self.spark is not None
        return self.spark

    def driver(self, name: str) -> Driver:
        spark = self.start(name)
        if self._driver is None:
            self._driver = self.stack.enter_context(start_driver(spark))
        return self._driver

    @contextmanager
    def own_driver(self, name: str) -> Iterator[Driver]:
        """Start a driver that the test may kill."""
        with start_driver(self.start(name)) as driver:
            yield driver


@pytest.fixture(scope="module")
def places() -> Iterator[RunningDeployment]:
    found = RunningDeployment()
    try:
        yield found
    finally:
        found.stack.close()


if EVERYTHING:

    @pytest.mark.parametrize("place", ["connect", "local", "standalone"])
    def test_a_driver_that_is_interrupted_ends_its_work(places: RunningDeployment, place: str, tmp_path: Path) -> None:
        driver, uri = places.driver(place), str(tmp_path / "table")
        assert driver.call(cancellation.interrupt_append, folder=str(tmp_path), uri=uri) == 10


def fragments_in(calls: str) -> set[int]:
    """Return the ids of the computed fragments; a slow task may have run twice."""
    return {int(id) // 100 for id in Path(calls).read_text().split()}


if EVERYTHING:

    @pytest.mark.parametrize(("place", "verb", "point"), DRIVER_KILLS)
    def test_a_killed_driver_and_the_same_again_are_one_version(
        places: RunningDeployment, place: str, verb: str, point: str, tmp_path: Path
    ) -> None:
        uri = str(tmp_path / "table")
        with places.own_driver(place) as driver, pytest.raises(DriverEnded):
            driver.call(killed_drivers.die_while_committing, uri=uri, verb=verb, point=point)
        committed, reserves = point.startswith("after"), faults.VERBS[verb].reserves
        assert Table.open(uri).version == 1 + committed + reserves
        again = places.driver(place).call(killed_drivers.repeat_verb, uri=uri, verb=verb)
        assert again == {"version": 2 + reserves + (reserves and not committed), "landed_before": committed}
        # A committed change is not written again, so its staged files remain.
        faults.check_table(uri, verb, leaves=not committed or verb in faults.STAGED)

    @pytest.mark.parametrize(("verb", "how"), FAULTS)
    def test_a_task_that_is_lost_costs_files_and_no_rows(
        places: RunningDeployment, verb: str, how: str, tmp_path: Path
    ) -> None:
        uri, mark = str(tmp_path / "table"), str(tmp_path / "mark")
        leaves = None if verb in faults.TIDY else True
        places.driver("standalone").call(
            faults.run_verb_with_fault, uri=uri, verb=verb, how=how, marker=mark, leaves=leaves
        )

    @pytest.mark.parametrize(("place", "store", "faulty"), LIFECYCLES)
    def test_each_verb_does_what_one_process_does(
        places: RunningDeployment, place: str, store: str, faulty: float, tmp_path: Path
    ) -> None:
        """Compare the tables of Spark and of one process. `faulty` is the fraction of store requests with a fault. Only
        the call passes credentials; no process has them in its environment."""
        driver, alone = places.driver(place), str(tmp_path / "alone")
        if store == "disk":
            uri = str(tmp_path / "table")
            driver.call(lifecycle.run_lifecycle, uri=uri, reference_uri=alone)
            assert lance.dataset(uri).count_rows() == Table.open(uri).count_rows() > 0
            return
        with s3() as server, proxy_to(server.endpoint, of_a_store(faulty, SEED)) as proxy:
            bucket = server.bucket()
            uri, quiet = f"{bucket.uri}/table", dict(bucket.options)
            options = {**quiet, "aws_endpoint": proxy.endpoint, "timeout": "2s", "client_max_retries": "20"}
            driver.call(lifecycle.run_lifecycle, uri=uri, reference_uri=alone, options=options)
            rows = lance.dataset(uri, storage_options=quiet).count_rows()
            assert rows == Table.open(uri, storage_options=quiet).count_rows() > 0
            assert sum(fault is not None for _, _, fault in proxy.requests) >= 100 * faulty

    def test_a_killed_driver_has_its_columns_finished_by_the_next(places: RunningDeployment, tmp_path: Path) -> None:
        uri, calls, mark = (str(tmp_path / name) for name in ("table", "calls", "mark"))
        place, fragment = "standalone", 5
        with places.own_driver(place) as driver, pytest.raises(DriverEnded):
            driver.call(killed_drivers.die_while_mapping, uri=uri, calls=calls, marker=mark, fragment=fragment)
        recorded = {int(path.stem.rpartition("-")[2]) for path in Path(uri, "_lance_assets/work").rglob("fragment-*")}
        assert fragment in recorded
        assert Table.open(uri).version == 1
        first = fragments_in(calls)
        Path(calls).unlink()
        with places.own_driver(place) as driver:
            assert driver.call(killed_drivers.resume_mapping, uri=uri, calls=calls) == 2
        then = fragments_in(calls)
        assert not then & recorded
        assert first | then == set(range(10))
        faults.check_table(uri, "map_columns", leaves=None)  # running tasks were killed, or had just written a file

    def test_each_spark_resource_writes_through_a_connect_server(places: RunningDeployment, tmp_path: Path) -> None:
        command = [sys.executable, "-m", dagster_resources.__name__, str(places.start("connect").remote), str(tmp_path)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        counts = json.loads(done.stdout.splitlines()[-1])
        assert counts == dict.fromkeys(("SparkSessionResource", "LazyPySparkResource", "PySparkResource"), 4)

    def test_tasks_of_a_computed_column_get_devices(tmp_path: Path) -> None:
        command = [sys.executable, "-m", assigned_devices.__name__, str(tmp_path)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        devices = next((line for line in done.stdout.splitlines() if line.startswith("[")), None)
        assert devices is not None, done.stderr[-4000:]
        assert set(json.loads(devices)) == {"0", "1"}

    # `make test` plans for many fragments in tests/lance_core/tasks/test_planning_footprint.py.

    def test_a_driver_of_little_memory_is_enough_for_many_fragments(tmp_path: Path) -> None:
        """Every operation but `map_columns` fits into a small driver. The memory of a task is not the driver's, so
        only the benchmark measures that operation."""
        uri = build_table(tmp_path / "table", 10_000, rows_per_fragment=100)
        with driver_of_memory("512m") as driver:
            for op in OPS.keys() - {"map_columns"}:
                memory = driver.run_op(op, uri)
                assert memory.python_mib + memory.heap_mib_max < 1024, op
