"""Steps of the Spark matrix: the operations that run with a release of Spark, in the environment of that release.

    python -m tests.spark_releases.steps DIRECTORY [NAME ...]      prints one line of JSON for each step

Names of `PARTS` select parts, and others select steps by their first word; without any, everything runs. A step runs in
one place: `local` (executors are threads of the driver), `connect` (a Spark Connect server) or `standalone` (executor
processes, of which one is killed).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import lance

from lance_assets.spark import release
from tests.clusters import faults, lifecycle
from tests.clusters.deployments import DEPLOYMENTS, PROJECT
from tests.clusters.driver import Driver, start_driver
from tests.spark_releases import driver_functions, table_steps

PLACES = ("local", "connect")
PARTS = (*PLACES, "speed", "standalone", "demo")
KILLED = ("append", "upsert", "delete", "merge_columns", "build_index")
PYLANCE, KILL, DEMO = "pylance reads the table", "killed executor", "Dagster demo"
SPEED = "rows per second"


def main(directory: Path, *names: str) -> None:
    parts = [name for name in names if name in PARTS] or PARTS
    words = [name for name in names if name not in PARTS]
    for place in PLACES:
        if place not in parts or (place == "connect" and not _has_connect_server()):
            continue
        with DEPLOYMENTS[place]() as address, start_driver(address) as driver:
            for step, run in _lifecycle_steps(driver, directory / place):
                if not words or step.split()[0] in words:
                    _report(place, step, run)
    if "speed" in parts:
        with DEPLOYMENTS["local"]() as address, start_driver(address) as driver:
            _report_speeds(driver, directory / "speed")
    if "standalone" in parts:
        _report_killed_executors(directory)
    if "demo" in parts:
        _report(DEMO, DEMO, partial(_run_demo, directory / "demo"))


def _report_killed_executors(directory: Path) -> None:
    with DEPLOYMENTS["standalone"]() as address, start_driver(address) as driver:
        for verb in KILLED:
            leaves = None if verb in faults.TIDY else True
            tables = {"uri": str(directory / f"killed-{verb}"), "marker": str(directory / f"{verb}.mark")}
            kill = partial(driver.call, faults.run_verb_with_fault, verb=verb, how="kill", leaves=leaves, **tables)
            _report(KILL, verb, kill)


def _lifecycle_steps(driver: Driver, directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the steps that change a table, in their order."""
    directory.mkdir(parents=True)
    tables = {"uri": str(directory / "table"), "reference_uri": str(directory / "reference")}
    driver.call(driver_functions.create_tables, **tables)
    for step in filter(lifecycle.is_supported, lifecycle.STEPS):
        name = step.__name__
        yield name.removeprefix("check_"), partial(driver.call, driver_functions.run_step, name=name, **tables)
    for name in table_steps.STEPS:
        yield name, partial(driver.call, driver_functions.run_step, name=name, **tables)
    yield PYLANCE, partial(_compare_with_pylance, **tables)


def _compare_with_pylance(uri: str, reference_uri: str) -> None:
    ours, reference = (lance.dataset(each).to_table().sort_by("id") for each in (uri, reference_uri))
    assert ours == reference


def _has_connect_server() -> bool:
    """Return whether PySpark contains the server, which Spark 3.5 distributes separately."""
    return release.RELEASE >= (4, 0)


def _run_demo(directory: Path) -> None:
    environment = {**os.environ, "LANCE_ASSETS_DEMO": str(directory), "PYTHONPATH": str(PROJECT)}
    subprocess.run([sys.executable, "-m", "lance_assets.demo"], env=environment, check=True, capture_output=True)


def _report_speeds(driver: Driver, directory: Path) -> None:
    tables = {"uri": str(directory / "table"), "reference_uri": str(directory / "reference")}
    for name in table_steps.SPEEDS:
        _report(SPEED, name, partial(driver.call, driver_functions.measure, name=name, **tables))


def _report(place: str, step: str, run: Callable[[], object]) -> None:
    start, error, rate = time.monotonic(), None, None
    try:
        result = run()
        rate = result if isinstance(result, float) else None
    except Exception as failure:  # noqa: BLE001 - the table shows every failure
        error = f"{type(failure).__name__}: {failure}"
    line = {"place": place, "step": step, "seconds": round(time.monotonic() - start, 1), "error": error, "rate": rate}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
