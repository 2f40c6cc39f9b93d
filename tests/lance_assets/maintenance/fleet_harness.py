"""A fleet of tables to look after, and a run of its asset; as a program, one that is killed in the middle.

python -m tests.lance_assets.maintenance.fleet_harness LAKE DAGSTER_HOME COMMITS
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import pyarrow as pa

from lance_assets import LanceFleet, LanceTable, Maintenance, lance_fleet, lance_table
from lance_core import Table
from lance_core.commit.change import resume
from lance_core.commit.write_protocol import WriteResult
from lance_core.tasks.compaction import compact_many
from lance_core.tasks.partitioning import LocalRunner
from tests.lance_core.maintenance.test_cleanup import age

POLICY = Maintenance(compact_when_small_files=3, clean_when_versions=2, keep_versions=2, target_rows=1000)
RUN_ID = "10000000-0000-4000-8000-000000000000"


def small(place: Path, appends: int = 4) -> Table:
    """Fragments of five rows, and versions of twenty days."""
    made = Table.create(place, pa.table({"id": range(5)}), durable=False)
    for number in range(1, appends):
        made = made.append(pa.table({"id": range(5 * number, 5 * number + 5)})).table
    age(str(place), timedelta(days=20))
    return made


def several(lake: Path, count: int) -> list[Path]:
    """Alike, so that one is made and copied; whose tables they are is not asked here."""
    small(lake / "t000")
    places = [lake / f"t{number:03d}" for number in range(count)]
    for place in places[1:]:
        shutil.copytree(lake / "t000", place)
    return places


def declared(lake: Path, **more: object) -> tuple[LanceFleet, LanceTable]:
    table = lance_table("first", uri=str(lake / "t000"))
    return lance_fleet("lake", prefix=str(lake), policy=POLICY, tables=[table], **more), table  # type: ignore[arg-type]


def run(
    fleet: LanceFleet,
    instance: dg.DagsterInstance,
    resource: object,
    *,
    tags: dict[str, str] | None = None,
    run_id: str | None = None,
) -> dg.ExecuteInProcessResult:
    jobs = [dg.define_asset_job("job", [fleet.key])]
    defs = dg.Definitions.merge(fleet.defs, dg.Definitions(resources={"spark": resource}, jobs=jobs))
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    job = defs.resolve_job_def("job")
    return job.execute_in_process(instance=instance, run_config=quiet, tags=tags, run_id=run_id)


@contextmanager
def without_spark() -> Iterator[object]:
    """A resource, and a loop in the place of Spark's workers."""
    with (
        patch("lance_assets.fleet.fleet.session_of", lambda resource: None),
        patch("lance_assets.fleet.fleet.SparkRunner", lambda spark: LocalRunner(slots=2)),
    ):
        yield object()


def main(lake: str, home: str, commits: int) -> None:
    """Ends after so many tables are committed, and before anybody is told."""
    go_on, left = resume, [None] * commits

    def counting(*arguments: Any, **named: Any) -> WriteResult:
        landed = go_on(*arguments, **named)
        left.pop()
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return landed

    overrides = {"telemetry": {"enabled": False}}
    with (
        without_spark() as resource,
        patch("lance_core.tasks.compaction.compact_many.resume", counting),
        patch.object(compact_many, "TABLES_AT_ONCE", 1),
        dg.DagsterInstance.local_temp(home, overrides=overrides) as instance,
    ):
        run(declared(Path(lake))[0], instance, resource, run_id=RUN_ID)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
