"""Changing rows of Lance tables: executors find them and write files, the driver commits once.

Which rows an op touches is decided by Lance's SQL, in the workers, by the evaluator that one process uses; Spark's own
SQL never decides it. When somebody else was in the way, the job is run again on the newest version.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from lance_assets.spark.jobs import SparkRunner
from lance_core import Committed
from lance_core.tasks import delete as deleting
from lance_core.tasks.changes import ATTEMPTS, How, ManifestStore, Where


def delete(
    spark: SparkSession,
    uri: str,
    predicate: str,
    *,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed:
    """Remove the rows that match, in Lance's SQL. No data file is touched: deletion files are written, and a fragment
    of which nothing is left goes."""
    return deleting.delete(
        Where(uri, branch, storage_options, manifest_store),
        predicate,
        how=How(intent, properties, retries),
        runner=SparkRunner(spark),
    )
