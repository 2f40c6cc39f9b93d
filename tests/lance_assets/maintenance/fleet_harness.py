"""Fleet harness: a fleet of tables and a run of its asset; as a program, a run that kills itself after some commits.

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
from lance_core.commit.write_protocol import WriteResult, resume
from lance_core.tasks.compaction import compact_many
from lance_core.tasks.partitioning import LocalRunner
from tests.lance_core.maintenance.test_cleanup import set_age

POLICY = Maintenance(compact_when_small_files=3, clean_when_versions=2, keep_versions=2, target_rows=1000)
RUN_ID = "10000000-0000-4000-8000-000000000000"


def create_small_table(path: Path, appends: int = 4) -> Table:
    """Create a table with fragments of five rows and versions that are twenty days old."""
    table = Table.create(path, pa.table({"id": range(5)}), durable=False)
    for number in range(1, appends):
        table = table.append(pa.table({"id": range(5 * number, 5 * number + 5)})).table
    set_age(str(path), timedelta(days=20))
    return table


def create_tables(lake: Path, count: int) -> list[Path]:
    """Create identical tables by copying one of them; the fleet does not check table ids."""
    create_small_table(lake / "t000")
    paths = [lake / f"t{number:03d}" for number in range(count)]
    for path in paths[1:]:
        shutil.copytree(lake / "t000", path)
    return paths


def declare_fleet(lake: Path, **more: object) -> tuple[LanceFleet, LanceTable]:
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
    """Replace Spark by a loop in this process; yield a stand-in for the Spark resource."""
    with (
        patch("lance_assets.fleet.fleet.session_of", lambda resource: None),
        patch("lance_assets.fleet.fleet.SparkRunner", lambda spark: LocalRunner(slots=2)),
    ):
        yield object()


def main(lake: str, home: str, commits: int) -> None:
    """Run the fleet, and kill the process after this number of commits, before Dagster records them."""
    original_resume, remaining = resume, [None] * commits

    def resume_and_count(*arguments: Any, **named: Any) -> WriteResult:
        result = original_resume(*arguments, **named)
        remaining.pop()
        if not remaining:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    overrides = {"telemetry": {"enabled": False}}
    with (
        without_spark() as resource,
        patch("lance_core.tasks.compaction.compact_many.resume", resume_and_count),
        patch.object(compact_many, "TABLES_AT_ONCE", 1),
        dg.DagsterInstance.local_temp(home, overrides=overrides) as instance,
    ):
        run(declare_fleet(Path(lake))[0], instance, resource, run_id=RUN_ID)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
