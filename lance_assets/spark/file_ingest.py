"""Files into Lance tables: executors read them and write fragments, and no row goes through the JVM.

Which files a table has is part of each of its versions, so that a repetition takes only what is new.
"""

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark.jobs import SparkRunner
from lance_core import Committed
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, TableRef, WriteOptions
from lance_core.tasks.ingest import coordinator as ingesting
from lance_core.tasks.ingest.coordinator import Changed, CsvFormat, Extra, IngestRequest, ReadOptions
from lance_core.tasks.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits

__all__ = ["CsvFormat", "ingest"]


def ingest(
    spark: SparkSession,
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    uri: str,
    *,
    format: str | None = None,
    mapping: Mapping[str, str] | None = None,
    extra: Extra = "refuse",
    schema: pa.Schema | None = None,
    csv: CsvFormat | None = None,
    on_bad_record: str = "fail",
    changed: Changed = "fail",
    source_options: Mapping[str, str] | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Add the rows of those of the files that the table has not taken yet: Parquet, CSV, JSON lines or Arrow, told by
    suffix or by `format`. `files` is a path, a directory (with all below it), a glob (`**` for any depth), or several.

    Columns go by name; `mapping={"column": "source.name"}` says where others come from; those that the table lacks are
    refused, or left out with `extra="drop"`. A table that is not there gets the columns of the files, or `schema`. A
    record that does not fit ends it, or goes into the table named by `on_bad_record`, with its place and the reason.
    A file of the same name with other content than before is `changed`: "fail", "again" (all its rows) or "skip".
    `source_options` are for the files, where they are reached in another way than the table.
    """
    what = IngestRequest(
        files,
        ReadOptions.of(format=format, csv=csv, mapping=mapping, extra=extra),
        schema,
        on_bad_record,
        changed,
        FileLimits(max_rows_per_file, max_bytes_per_file),
        source_options,
    )
    return ingesting.ingest(
        TableRef(uri, branch, storage_options, manifest_store),
        what,
        options=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )
