"""Fill of computed columns: computes the stale rows of computed columns of Lance tables in the workers.

`lance_core.tasks.columns.computed_fill` finds the stale rows, decides about files and commits. The rows that a function
receives never pass through the JVM. Start with `compute_columns`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_assets.spark.release import assigned_resources
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks.columns import computed_fill
from lance_core.tasks.columns.computed_fill import Bounds, ComputedColumn, FillReport, assigned_devices
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.partitioning import Task


@dataclass(frozen=True, slots=True)
class _FillRunner:
    """`Runner` whose tasks know the devices that Spark assigns to them."""

    runner: SparkRunner

    @property
    def slots(self) -> int:
        return self.runner.slots

    def run(self, task: Task, partitions: int) -> pa.Table:
        return self.runner.run(_TaskOnDevices(task), partitions)


@dataclass(frozen=True, slots=True)
class _TaskOnDevices:
    """Task for which `device_addresses` returns the devices of its Spark task. Picklable."""

    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with assigned_devices(assigned_resources()):
            yield from self.task(batches)


def compute_columns(
    spark: SparkSession,
    uri: str,
    columns: ComputedColumn | Sequence[ComputedColumn],
    *,
    recompute: bool = False,
    rows_max: int | None = None,
    seconds_max: float | None = None,
    progress: ProgressArgument = False,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
) -> tuple[FillReport, ...]:
    """Compute the stale rows of computed columns: rows that are new, whose inputs changed, or that an older version of
    the code computed. Return a report for each column, in the order of computation.

    The first call adds the column, and a column `<name>__fingerprint`, to the table. Functions run in the workers, and
    never receive fresh or deleted rows. Each column is one version, in which rows stay where they are; without a stale
    row, no version is committed. `rows_max` and `seconds_max` end a run early: it commits what it has computed, and the
    next call continues. `rows_max` counts failed rows, too. `recompute` computes all rows.

        words = ComputedColumn("words", pa.int64(), fn=count_words, inputs=["title", "body"], code_version="1")
        compute_columns(spark, "pages.lance", words)
    """
    check_session_call("compute_columns", spark, uri, storage_options, manifest_store, more=", columns")
    declared = [columns] if isinstance(columns, ComputedColumn) else list(columns)
    with reporting(progress, "compute_columns"):
        return computed_fill.compute_columns(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            declared,
            recompute=recompute,
            bounds=Bounds(rows_max, seconds_max),
            options=WriteOptions(intent, properties, retries, audit),
            runner_for=lambda column: _FillRunner(SparkRunner(spark, column.resources)),
        )
