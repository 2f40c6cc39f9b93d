"""File export: executors write the rows of a version as Parquet, CSV, JSON lines or Arrow files; no row passes through
the JVM. Start with `export`.
"""

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_assets.spark.redaction import warn_of_exposed_references
from lance_core.tasks.export import version_export
from lance_core.tasks.export.version_export import Export, ExportRequest
from lance_core.tasks.scan.read import ManifestStore, VersionRef


def export(
    spark: SparkSession,
    uri: str,
    to: str,
    *,
    format: str = "parquet",
    columns: Sequence[str] | None = None,
    filter: str | pc.Expression | None = None,
    target_options: Mapping[str, object] | None = None,
    version: int | None = None,
    tag: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    bases: Sequence[str] = (),
    verify: str = "off",
    trusted: bool = True,
) -> Export:
    """Write the rows of the newest version, or of the one that a number or a tag names, as files into the directory
    `to`, which must contain none.

    `format` is parquet, csv, json (one object per line) or arrow. `to` is a path or a URI of any protocol that fsspec
    writes, such as `sftp://`; `target_options` are as the `source_options` of `ingest`. The file `_SUCCESS.json`, which
    is written last, lists the files that belong to the export.
    """
    check_session_call("export", spark, uri, storage_options, manifest_store, more=", to")
    warn_of_exposed_references(spark, target_options, None)
    base = VersionRef(
        uri, version, tag, branch, storage_options, manifest_store, tuple(bases), verify, trusted=trusted
    ).snapshot()
    request = ExportRequest(to, format, columns, filter, target_options)
    return version_export.export_version(base, request, runner=SparkRunner(spark))
