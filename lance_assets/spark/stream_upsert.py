"""Stream upserts: upserts each micro-batch of a streaming query as one version, for the output mode "update".

    df.writeStream.foreachBatch(upsert_batches(uri, "id")).option("checkpointLocation", checkpoint).start()

It needs no streaming sink of the format `lance`, so it works on every release of Spark. Start with `upsert_batches`.
"""

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame

from lance_assets.spark.dml import upsert
from lance_core import InvalidInput
from lance_core.tasks.driver import Audit
from lance_core.tasks.rows.write import ATTEMPTS, BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, ManifestStore
from lance_core.tasks.streaming.stream_sink import MicroBatch

QUERY_PROPERTY, RUN_PROPERTY = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties in which Spark passes the streaming query and its run to jobs."""


def upsert_batches(
    uri: str,
    on: str | Sequence[str],
    *,
    query_id: str | None = None,
    matched: str = "update",
    matched_if: str | None = None,
    insert: bool = True,
    delete_unmatched: bool | str | None = False,
    branch: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    manifest_store: ManifestStore | str | None = None,
    verify: str = "off",
    trusted: bool = True,
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that upserts each micro-batch, for the output mode "update".

    A batch commits at most one version, however often Spark repeats it. Its query and its number identify it. If Spark
    does not provide the query, pass a `query_id`, and another one with each new checkpoint, whose batches count from 0
    again.

    A batch that `audit` refuses ends the query. After a restart the audit sees the batch again, unless `Table.publish`
    has committed it meanwhile.
    """

    def upsert_batch(rows: DataFrame, number: int) -> None:
        batch = _batch_of_frame(rows, number, query_id)
        upsert(
            rows,
            uri,
            on,
            matched=matched,
            matched_if=matched_if,
            insert=insert,
            delete_unmatched=delete_unmatched,
            branch=branch,
            storage_options=storage_options,
            manifest_store=manifest_store,
            verify=verify,
            trusted=trusted,
            intent=batch.intent,
            properties={**(properties or {}), **batch.properties},
            retries=retries,
            audit=audit,
            max_rows_per_file=max_rows_per_file,
            max_bytes_per_file=max_bytes_per_file,
        )

    return upsert_batch


def _batch_of_frame(rows: DataFrame, number: int, query_id: str | None) -> MicroBatch:
    context = getattr(rows.sparkSession, "sparkContext", None)
    query, run = (context.getLocalProperty(name) if context else None for name in (QUERY_PROPERTY, RUN_PROPERTY))
    if not (known_query := query_id or query):
        raise InvalidInput(
            f"this session does not provide the streaming query of batch {number}, so a repeated batch could not be "
            "recognized; pass query_id= to upsert_batches"
        )
    return MicroBatch(known_query, number, run)
