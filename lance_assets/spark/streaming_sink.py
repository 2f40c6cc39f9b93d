"""The format `lance` as a sink of Structured Streaming: each batch is one version, and lands once.

    df.writeStream.format("lance").option("checkpointLocation", place).start(uri)
    df.writeStream.foreachBatch(upsert_batches(uri, "id")).option("checkpointLocation", place).start()

Spark makes a writer anew for each batch, and another for its commit; only tasks are told which query and which batch
they work for, so they tell it to the commit. A query is the same as long as its checkpoint is. Start with
`stream_writer`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from lance_assets.spark.dml import upsert
from lance_assets.spark.options import FormatOptions
from lance_assets.spark.types import stored_schema
from lance_assets.spark.worker_setup import set_up_worker
from lance_core import InvalidInput, StorageError
from lance_core.tasks.driver import Audit
from lance_core.tasks.streaming import stream_sink
from lance_core.tasks.streaming.stream_sink import MicroBatch, SinkMessage, StreamedWrite
from lance_core.tasks.write import ATTEMPTS, BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, ManifestStore

_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "LanceStreamWriter":
    """Which options there are is told at `LanceDataSource`. `overwrite` is what Spark makes of the output mode
    "complete"."""
    given = FormatOptions(options)
    given.refuse_for_streams({"intent": "each batch has one of its own"})
    given.refuse_audit("foreachBatch with append(..., intent=, audit=), or upsert_batches(..., audit=)")
    limits = FileLimits(
        given.get_number("max_rows_per_file", ROWS_PER_FILE_MAX),
        given.get_number("max_bytes_per_file", BYTES_PER_FILE_MAX),
    )
    write = StreamedWrite.begin(
        given.uri,
        stored_schema(schema),
        replaces=overwrite,
        create=given.get_flag("create", default=True),
        limits=limits,
        branch=given.get_text("branch"),
        storage_options=given.storage,
        manifest_store=given.get_text("manifest_store"),
    )
    return LanceStreamWriter(write, given)


@dataclass(frozen=True, slots=True)
class LanceStreamMessage(ds.WriterCommitMessage):
    message: SinkMessage


class LanceStreamWriter(ds.DataSourceStreamArrowWriter):
    def __init__(self, write: StreamedWrite, options: FormatOptions) -> None:
        self._write = write
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceStreamMessage:
        set_up_worker()
        return LanceStreamMessage(self._write.write_batches(iterator, _current_batch()))

    def commit(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        told = [message.message for message in messages if isinstance(message, LanceStreamMessage)]
        if len(told) < len(messages):
            raise StorageError(
                f"{self._options.uri}: Spark gave back less than its tasks wrote in batch {batchId}; start the query "
                "again, which repeats the batch"
            )
        stream_sink.commit_batch(
            told,
            batchId,
            storage_options=self._options.storage,
            manifest_store=self._options.get_text("manifest_store"),
            properties=self._options.properties,
            retries=self._options.get_number("retries", ATTEMPTS),
        )

    def abort(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        """Nothing. Spark asks for it after a commit that failed too, which may have landed: its files may be in use.
        What no version names is cleaned up later."""


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
    properties: Mapping[str, str] | None = None,
    retries: int = ATTEMPTS,
    audit: Audit | None = None,
    max_rows_per_file: int = ROWS_PER_FILE_MAX,
    max_bytes_per_file: int = BYTES_PER_FILE_MAX,
) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls, where an output mode "update" is wanted: each batch is an `upsert`, and is done once,
    however often it is repeated. A batch is known by its query and its number. Where Spark does not say which query it
    is, `query_id` does; give another one with each new checkpoint, for its batches count from 0 again.

    A batch that `audit` refuses ends the query, and is shown again when that goes on, unless `Table.publish` has landed
    it meanwhile."""

    def bring(rows: DataFrame, number: int) -> None:
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
            intent=batch.intent,
            properties={**(properties or {}), **batch.properties},
            retries=retries,
            audit=audit,
            max_rows_per_file=max_rows_per_file,
            max_bytes_per_file=max_bytes_per_file,
        )

    return bring


def _current_batch() -> MicroBatch | None:
    """Which one this task works for; None where Spark does not say."""
    context = TaskContext.get()
    query, number, run = (context.getLocalProperty(name) if context else None for name in (_QUERY, _BATCH, _RUN))
    return MicroBatch(query, int(number), run) if query and number else None


def _batch_of_frame(rows: DataFrame, number: int, query_id: str | None) -> MicroBatch:
    context = getattr(rows.sparkSession, "sparkContext", None)
    query, run = (context.getLocalProperty(name) if context else None for name in (_QUERY, _RUN))
    if not (found := query_id or query):
        raise InvalidInput(
            f"this session does not say which streaming query batch {number} belongs to, so it could not be told from "
            "a new one when it is repeated; give upsert_batches a query_id"
        )
    return MicroBatch(found, number, run)
