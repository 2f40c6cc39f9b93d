"""File ingest: executors read files and write fragments of a Lance table; no row passes through the JVM.

Each version records which files the table has ingested, so a repeated ingest adds new files only. Start with `ingest`.
"""

import os
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_assets.spark.redaction import warn_of_exposed_references
from lance_core import Committed
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, NewTableOptions, TableRef, WriteOptions
from lance_core.tasks.ingest import coordinator as ingesting
from lance_core.tasks.ingest.coordinator import Changed, CsvFormat, Extra, IngestRequest, ReadOptions
from lance_core.tasks.rows.write import BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits

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
    source_options: Mapping[str, object] | None = None,
    stable_row_ids: bool | None = None,
    storage_version: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Committed:
    """Add the rows of the files that the table has not ingested yet.

    `files` is a path or a URI of a file, a directory (searched recursively), a glob (`**` for any depth), or a list of
    these. Besides local files and those on object stores, every protocol of fsspec is read, such as `https://`,
    `sftp://` or `hf://`; files below `memory://`, up to 64 MiB, are sent to the workers. Parquet, CSV, JSON lines and
    Arrow files are recognized by their suffix; `format` overrides it.

    Columns match by name; `mapping={"column": "source.name"}` names another source. Columns that the table lacks are
    an error, or are dropped with `extra="drop"`. A table that does not exist is created with the columns of the
    files, or with `schema`; `stable_row_ids` and `storage_version` are those of `append`. A record that does not fit
    the schema fails the ingest, or goes into the table that `on_bad_record` names, with its position and the reason.
    `changed` decides about an ingested file whose content has changed since: "fail", "again" (add all its rows) or
    "skip". `source_options` are storage options for the files, if they differ from those of the table, or options in
    the spelling of fsspec. `env:NAME` stands for a secret.
    """
    check_session_call("ingest", spark, uri, storage_options, manifest_store, before="files, ")
    warn_of_exposed_references(spark, source_options, None)
    request = IngestRequest(
        files,
        ReadOptions.of(format=format, csv=csv, mapping=mapping, extra=extra),
        schema,
        on_bad_record,
        changed,
        FileLimits(max_rows_per_file, max_bytes_per_file),
        source_options,
        NewTableOptions(stable_row_ids, storage_version),
    )
    return ingesting.ingest(
        TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
        request,
        options=WriteOptions(intent, properties, retries, audit),
        runner=SparkRunner(spark),
    )
