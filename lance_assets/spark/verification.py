"""Verification: compares the files of a table with their recorded checksums, in the workers.

Start with `verify_files`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks import verification
from lance_core.tasks.scan.read import ManifestStore, VersionRef


def verify_files(
    spark: SparkSession,
    uri: str,
    *,
    versions: Literal["head", "all"] = "head",
    share: float = 1.0,
    turn: int = 0,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    progress: ProgressArgument = False,
) -> verification.Report:
    """Read every data, deletion and index file of the newest version, or of all versions, and compare it with its
    recorded checksum. A file without one is decoded in a process of its own. Each damaged or missing file is a finding
    of the report. Nothing is written.

    A `share` below 1 verifies a part of the files: with `share=1/30` and the number of the day as `turn`, every file is
    verified once in thirty days. `progress=True` shows a bar or writes to the log, by stage; a function receives each
    report.

        verify_files(spark, "s3://lake/orders.lance", share=1/30, turn=date.today().toordinal()).errors
    """
    check_session_call("verify_files", spark, uri, storage_options, manifest_store)
    base = VersionRef(uri, None, None, branch, storage_options, manifest_store, tuple(bases)).snapshot()
    with reporting(progress, "verify_files"):
        return verification.verify_files(base, runner=SparkRunner(spark), versions=versions, share=share, turn=turn)
