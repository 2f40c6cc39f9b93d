"""View refresh: brings a materialized view to the newest version of its source in Spark tasks.

`lance_core.tasks.views` decides which rows to compute and commits; the rows never pass through the JVM. Start with
`refresh_view`.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from lance_assets.spark.arguments import check_session_call
from lance_assets.spark.jobs import SparkRunner
from lance_core.progress import ProgressArgument, reporting
from lance_core.tasks.driver import ATTEMPTS, Audit, ManifestStore, NewTableOptions, TableRef, WriteOptions
from lance_core.tasks.scan.read import VersionRef
from lance_core.tasks.views.refresh import RefreshReport, Select, ViewDefinition, refresh


def refresh_view(
    spark: SparkSession,
    uri: str,
    *,
    of: str,
    select: Select = None,
    where: str | None = None,
    version: int | None = None,
    rebuild: bool = False,
    stable_row_ids: bool = True,
    storage_version: str | None = None,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    source_branch: str | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    source_manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    intent: str | None = None,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    progress: ProgressArgument = False,
) -> RefreshReport:
    """Bring the materialized view at `uri` to the newest version of the table `of`, or to `version`, as one version.

    The view has the rows that match `where`, with the columns `select`: names, `SQL AS name`, or a mapping of names to
    SQL; conditions and values are Lance SQL. The first call creates it. Later calls compute only the rows that changed,
    and commit no version if the source has none that is newer. All rows are computed again if the change feed cannot
    tell what changed, or with `rebuild=True`; the report and the record of the version say why.

    The view has two more columns: `_source_rowid`, the row id of the source row, and `_source_version`, the version of
    the source that last changed it. `source_storage_options` are those of the source, `storage_options` by default.

        report = refresh_view(spark, "recent_fr.lance", of="pages.lance", select=["id", "title"], where="lang = 'fr'")
    """
    check_session_call("refresh_view", spark, uri, storage_options, manifest_store, more=", of=")
    options = storage_options if source_storage_options is None else source_storage_options
    with reporting(progress, "refresh_view"):
        return refresh(
            TableRef(uri, branch, storage_options, manifest_store, verify=verify, trusted=trusted),
            VersionRef(
                of, version, None, source_branch, options, source_manifest_store, verify=verify, trusted=trusted
            ),
            ViewDefinition.of(select, where),
            rebuild=rebuild,
            new_table=NewTableOptions(stable_row_ids, storage_version),
            options=WriteOptions(intent, properties, retries, audit),
            runner=SparkRunner(spark),
        )
