"""Indices of Lance tables, built by Spark's workers and committed once.

Workers read values from the files of the table and write the files of the index through the table's own store: the JVM
sees no row, the driver no page. `lance_core.tasks.index_build` decides what is built, and in how many jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import SparkSession

from lance_assets.spark.jobs import SparkRunner
from lance_core import Committed
from lance_core.tasks import index_build
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.index_build import IndexRequest


def build_index(
    spark: SparkSession,
    uri: str,
    column: str,
    kind: str,
    *,
    name: str | None = None,
    replace: bool = False,
    only: Literal["all", "uncovered", "needed"] = "all",
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    **params: object,
) -> Committed:
    """An index of this kind on a column, or on a field within (`address.city`): "BTREE", "BITMAP", "LABEL_LIST",
    "ZONEMAP" or "BLOOMFILTER". `params` are what the kind may be told, such as `rows_per_zone=4096` for a zone map.

    It covers all rows that there are; one whose name is taken is an error, and `replace` builds it anew. With
    `only="uncovered"` an index that is there is built on: rows that it does not cover yet become a segment of their
    own, and where all are covered there is no new version. `only="needed"` is for whoever says again and again which
    index there should be: one that is there is built on, small segments of it become one, and where it is of another
    kind, or was built with other `params` than are given, it is built anew. Rows that others add meanwhile are scanned
    until it is built on; what a compaction moved is built again before the commit.
    """
    return index_build.build_index(
        TableRef(uri, branch, storage_options, manifest_store),
        IndexRequest(column, kind, name, replace, params=params),
        only,
        how=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )


def optimize_indices(
    spark: SparkSession,
    uri: str,
    names: Sequence[str] | None = None,
    *,
    merge: Literal["small", "all", "none"] = "small",
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
) -> Committed:
    """Cover with all indices, or those of some `names`, what they do not cover yet; merge segments; write those anew
    whose rows a compaction moved. What it does is what `Table.optimize_indices` does; all small indices are one job."""
    return index_build.optimize_indices(
        TableRef(uri, branch, storage_options, manifest_store),
        names,
        merge,
        how=WriteOptions(intent, properties, retries),
        runner=SparkRunner(spark),
    )
