"""Index operations: Spark's workers build index segments of a Lance table, and the driver commits them once.

Workers read the values from the data files and write the index files through the table's own store. No row passes
through the JVM and no index page through the driver. `lance_core.tasks.indices.index_build` plans segments and jobs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_core import Committed
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.indices import index_build
from lance_core.tasks.indices.index_build import IndexRequest


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
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    progress: ProgressArgument = False,
    **params: object,
) -> Committed:
    """Build an index on a column or on a nested field (`address.city`) and commit it.

    `kind` is the index type: "BTREE", "BITMAP", "LABEL_LIST", "ZONEMAP", "BLOOMFILTER" or "NGRAM", the full-text index
    "INVERTED", or a vector index such as "IVF_PQ". `params` are its parameters, such as `rows_per_zone=4096` for a zone
    map, or those of pylance: `language="French"` and `with_position=True` for texts, `metric="cosine"`,
    `num_partitions=256` and `num_sub_vectors=16` for vectors.

    Texts are analyzed by workers, each of which writes partitions of the segment and holds 96 MiB of postings.

    A vector index is trained on a sample of the rows. Workers encode whole fragments and merge the codes by partition;
    each holds the centroids, 256 MiB of codes and one partition. faiss uses as many threads as a task has cores
    (`spark.task.cpus`). With an `intent`, a call continues where an earlier one with this intent was interrupted.

    The index covers all current rows. A name that is in use is an error; `replace=True` rebuilds the index of that
    name. `only="uncovered"` extends an existing index: the rows that it does not cover become a new segment, and no
    version is committed if it covers all rows. `only="needed"` declares which index the table should have, and can be
    called repeatedly: it extends an existing index, merges its small segments, and rebuilds it if its type or its
    `params` differ from the arguments. Rows that other writers append meanwhile are scanned until the index is
    extended. Segments whose rows a compaction moves meanwhile are rebuilt before the commit.

    `progress=True` shows a bar or writes to the log, by stage; a function receives each report.
    """
    check_session_call("build_index", spark, uri, storage_options, manifest_store, more=", column, kind")
    with reporting(progress, "build_index"):
        return index_build.build_index(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            IndexRequest(column, kind, name, replace, params=params),
            only,
            options=WriteOptions(intent, properties, retries, audit),
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
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    progress: ProgressArgument = False,
) -> Committed:
    """Extend the indices to the rows that they do not cover, merge segments, and rewrite those that a compaction moved.

    `names` limits it to some indices. It does what `Table.optimize_indices` does; one job handles all small indices.

    `progress=True` shows a bar or writes to the log, by stage; a function receives each report.
    """
    check_session_call("optimize_indices", spark, uri, storage_options, manifest_store)
    with reporting(progress, "optimize_indices"):
        return index_build.optimize_indices(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            names,
            merge,
            options=WriteOptions(intent, properties, retries),
            runner=SparkRunner(spark),
        )
