"""Streaming sink: the format `lance` in Structured Streaming commits each micro-batch as one version, exactly once.

    df.writeStream.format("lance").option("checkpointLocation", checkpoint).start(uri)

Spark creates a new writer for each batch and another one for its commit. Only tasks know their query and batch, so they
pass both to the commit in their messages. A query keeps its identity as long as it keeps its checkpoint. Start with
`stream_writer`; `stream_upsert.py` has the output mode "update".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from lance_assets.spark.option_names import Use
from lance_assets.spark.options import FormatOptions
from lance_assets.spark.stream_upsert import QUERY_PROPERTY, RUN_PROPERTY
from lance_assets.spark.types import stored_schema
from lance_assets.spark.worker_setup import prepared_worker
from lance_core import StorageError
from lance_core.tasks.rows.write import ATTEMPTS, BYTES_PER_FILE_MAX, ROWS_PER_FILE_MAX, FileLimits
from lance_core.tasks.streaming import stream_sink
from lance_core.tasks.streaming.stream_sink import MicroBatch, SinkMessage, StreamedWrite

_BATCH_PROPERTY = "streaming.sql.batchId"


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
        new_table=format_options.new_table,
        limits=limits,
        branch=format_options.get_text("branch"),
        storage_options=format_options.storage,
        manifest_store=format_options.get_text("manifest_store"),
        verify=format_options.verify,
        trusted=format_options.trusted,
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
        with prepared_worker():
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


def _current_batch() -> MicroBatch | None:
    """Return the micro-batch that this task belongs to; `None` if Spark does not provide it."""
    context = TaskContext.get()
    query, number, run = (
        context.getLocalProperty(name) if context else None for name in (QUERY_PROPERTY, _BATCH_PROPERTY, RUN_PROPERTY)
    )
    return MicroBatch(query, int(number), run) if query and number else None
