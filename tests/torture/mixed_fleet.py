"""Mixed fleet harness: processes of this library and of pylance change one table while they are killed, on local disk
and in an object store; see `tests/histories/mixed_fleet.py`. A fleet of pylance alone is the comparison.

    make torture ARGS="mixed-fleet --size full"
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.histories.hammer_locations import TableLocation, create_local_table, create_s3_table
from tests.histories.mixed_fleet import FleetResult, find_violations, run_fleet
from tests.histories.mixed_fleet import Size as Fleet
from tests.torture.report import Report

_PYLANCE_ONLY = ("pylance maintenance", "pylance maintenance")


@dataclass(frozen=True, slots=True)
class Size:
    local: Fleet
    s3: Fleet | None = None
    pylance_alone: Fleet | None = None


PR = Size(Fleet(ours=1, pylance=1, seconds=1.0, kill_count=4))
NIGHTLY = Size(
    local=Fleet(ours=3, pylance=3, seconds=120, kill_count=150),
    s3=Fleet(ours=2, pylance=2, seconds=60, kill_count=30),
    pylance_alone=Fleet(ours=0, pylance=6, seconds=60, kill_count=75, maintainers=_PYLANCE_ONLY),
)


def run(size: Size) -> Report:
    os.environ.setdefault("LANCE_LOG", "error")
    started = time.perf_counter()
    failures: list[str] = []
    figures: dict[str, str] = {}

    def run_and_check(name: str, location: TableLocation, fleet: Fleet) -> tuple[FleetResult, Sequence[str]]:
        result = run_fleet(location, fleet)
        figures.update({f"{name}: {what}": figure for what, figure in result.figures().items()})
        violations = find_violations(location, result)
        figures[f"{name}: violations"] = str(len(violations))
        return result, [f"{name}, {fleet}: {violation}; it depends on timing, so repeat" for violation in violations]

    with tempfile.TemporaryDirectory() as directory:
        result, violations = run_and_check("local", create_local_table(Path(directory)), size.local)
        acknowledged = sum(log.acknowledged_count for log in result.logs)
        failures += violations
    if size.s3:
        with create_s3_table(0.0) as location:
            result, violations = run_and_check("s3", location, size.s3)
            acknowledged += sum(log.acknowledged_count for log in result.logs)
            failures += violations
    if size.pylance_alone:
        with tempfile.TemporaryDirectory() as directory:
            run_and_check("pylance alone", create_local_table(Path(directory)), size.pylance_alone)
    return Report("mixed-fleet", acknowledged, time.perf_counter() - started, tuple(failures), figures)
