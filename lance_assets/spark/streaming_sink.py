"""Streaming sink: the format `lance` in Structured Streaming commits each micro-batch as one version, exactly once.

    df.writeStream.format("lance").option("checkpointLocation", checkpoint).start(uri)
    df.writeStream.foreachBatch(upsert_batches(uri, "id")).option("checkpointLocation", checkpoint).start()

Spark creates a new writer for each batch and another one for its commit. Only tasks know their query and batch, so they
pass both to the commit in their messages. A query keeps its identity as long as it keeps its checkpoint. Start with
`stream_writer`, or with `upsert_batches` for the output mode "update".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from lance_assets.spark.dml import upsert
from lance_assets.spark.option_names import Use
from lance_assets.spark.options import FormatOptions
from lance_assets.spark.types import stored_schema
from lance_assets.spark.worker_setup import set_up_worker
from lance_core import InvalidInput, StorageError
from lance_core.tasks.driver import Audit
from lance_core.tasks.rows.write import ATTEMPTS, BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits, ManifestStore
from lance_core.tasks.streaming import stream_sink
from lance_core.tasks.streaming.stream_sink import MicroBatch, SinkMessage, StreamedWrite

_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "LanceStreamWriter":
    """Return the stream writer for these options, which `LanceDataSource` documents.

    Spark sets `overwrite` for the output mode "complete".
    """
    format_options = FormatOptions(options)
    format_options.refuse_audit("foreachBatch with append(..., intent=, audit=), or upsert_batches(..., audit=)")
    format_options.check_names(Use.STREAM_WRITE)
    limits = FileLimits(
        format_options.get_number("max_rows_per_file", ROWS_PER_FILE_MAX),
        format_options.get_number("max_bytes_per_file", BYTES_PER_FILE_MAX),
    )
    write = StreamedWrite.begin(
        format_options.uri,
        stored_schema(schema),
        replaces=overwrite,
        create=format_options.get_flag("create", default=True),
        limits=limits,
        branch=format_options.get_text("branch"),
        storage_options=format_options.storage,
        manifest_store=format_options.get_text("manifest_store"),
    )
    return LanceStreamWriter(write, format_options)


@dataclass(frozen=True, slots=True)
class LanceStreamMessage(ds.WriterCommitMessage):
    """Spark's commit message of one task, with the sink's own message."""

    message: SinkMessage


class LanceStreamWriter(ds.DataSourceStreamArrowWriter):
    """Stream writer of the data source: tasks write files, one process commits the micro-batch."""

    def __init__(self, write: StreamedWrite, options: FormatOptions) -> None:
        self.sink = write
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LanceStreamMessage:
        set_up_worker()
        return LanceStreamMessage(self.sink.write_batches(iterator, _current_batch()))

    def commit(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        sink_messages = [message.message for message in messages if isinstance(message, LanceStreamMessage)]
        if len(sink_messages) < len(messages):
            raise StorageError(
                f"{self._options.uri}: Spark returned the results of some tasks of batch {batchId} only; start the "
                "query again, which repeats the batch"
            )
        stream_sink.commit_batch(
            sink_messages,
            batchId,
            storage_options=self._options.storage,
            manifest_store=self._options.get_text("manifest_store"),
            properties=self._options.properties,
            retries=self._options.get_number("retries", ATTEMPTS),
        )

    def abort(self, messages: list[ds.WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing. Spark also calls this after a failed commit, which may have succeeded, so its files may be in
        use.

        Cleanup removes files that no version references.
        """


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
            intent=batch.intent,
            properties={**(properties or {}), **batch.properties},
            retries=retries,
            audit=audit,
            max_rows_per_file=max_rows_per_file,
            max_bytes_per_file=max_bytes_per_file,
        )

    return upsert_batch


def _current_batch() -> MicroBatch | None:
    """Return the micro-batch that this task belongs to; `None` if Spark does not provide it."""
    context = TaskContext.get()
    query, number, run = (context.getLocalProperty(name) if context else None for name in (_QUERY, _BATCH, _RUN))
    return MicroBatch(query, int(number), run) if query and number else None


def _batch_of_frame(rows: DataFrame, number: int, query_id: str | None) -> MicroBatch:
    context = getattr(rows.sparkSession, "sparkContext", None)
    query, run = (context.getLocalProperty(name) if context else None for name in (_QUERY, _RUN))
    if not (known_query := query_id or query):
        raise InvalidInput(
            f"this session does not provide the streaming query of batch {number}, so a repeated batch could not be "
            "recognized; pass query_id= to upsert_batches"
        )
    return MicroBatch(known_query, number, run)
