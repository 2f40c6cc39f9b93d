"""Streaming source: the format `lance` in Structured Streaming sends the rows of a table and then the appended rows.

    spark.readStream.format("lance").option("maxRowsPerTrigger", 1_000_000).load(uri)

Spark keeps one process per query that asks this module for offsets, and reads the rows in tasks. The module
`lance_core.tasks.streaming.stream_source` defines which changes a stream follows and what an offset means. Start with
`stream_reader`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lance_assets.spark.option_names import Use
from lance_assets.spark.options import FormatOptions
from lance_assets.spark.release import arrow_schema
from lance_assets.spark.source import check_same_types
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import prepare_and_read
from lance_core import InvalidInput
from lance_core.tasks.scan.read import VersionRef
from lance_core.tasks.streaming.change_feed import OnChange
from lance_core.tasks.streaming.offsets import StreamStart
from lance_core.tasks.streaming.stream_partitions import StreamPartition
from lance_core.tasks.streaming.stream_source import ReadLimits, Stream

_ASSUMED_SLOTS = 8
"""Assumed number of task slots, since the process that plans does not know the cluster."""
_UNLIMITED_ROWS = (1 << 63) - 1
_LATEST = "latest"


def stream_reader(options: Mapping[str, str], schema: StructType) -> "LanceStreamReader":
    """Return the stream reader for these options, which `LanceDataSource` documents."""
    format_options = FormatOptions(options)
    format_options.check_names(Use.STREAM_READ)
    branch, store, bases = (
        format_options.get_text("branch"),
        format_options.get_text("manifest_store"),
        format_options.get_names("bases") or (),
    )
    stream = Stream(
        VersionRef(
            format_options.uri,
            None,
            None,
            branch,
            format_options.storage,
            store,
            bases,
            format_options.verify,
            trusted=format_options.trusted,
        ),
        transport=transport_schema,
        columns=schema.fieldNames(),
        filter=format_options.get_text("filter"),
        start=_start_position(format_options),
        on_change=_change_mode(format_options),
        limits=ReadLimits(
            rows=format_options.get_number("max_rows_per_trigger", None),
            files=format_options.get_number("max_files_per_trigger", None),
            versions=format_options.get_number("max_versions_per_trigger", None),
        ),
        poll_seconds=format_options.get_seconds("poll_seconds"),
    )
    check_same_types(spark_schema(stream.arrow), schema)
    return LanceStreamReader(schema, stream)


class LanceStreamPartition(ds.InputPartition):
    """Spark input partition that carries a `StreamPartition`."""

    def __init__(self, stream_partition: StreamPartition) -> None:
        super().__init__(stream_partition)
        self.stream_partition = stream_partition

    def __repr__(self) -> str:
        return f"LanceStreamPartition({len(self.stream_partition.slices)} slices)"


class LanceStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of the data source. The driver's copy has a `Stream`; the copies in tasks have none."""

    def __init__(self, schema: StructType, stream: Stream | None) -> None:
        self._schema = schema
        self._stream = stream

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "only the driver plans a stream"
        return self._stream

    def initialOffset(self) -> dict[str, object]:
        return self.stream.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits. Spark supports one limit at a time; `Stream` applies all of them."""
        limits = self.stream.limits
        if limits == ReadLimits():
            return ReadAllAvailable()
        if limits.rows is None and limits.files is not None:
            return ReadMaxFiles(limits.files)
        return ReadMaxRows(limits.rows or _UNLIMITED_ROWS)

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        return self.stream.latest_offset(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, object]:
        return self.stream.newest_offset()

    def prepareForTriggerAvailableNow(self) -> None:
        self.stream.stop_at_newest()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[ds.InputPartition]:
        planned = self.stream.plan_partitions(start, end, slots=_ASSUMED_SLOTS)
        return [LanceStreamPartition(stream_partition) for stream_partition in planned]

    def read(self, partition: ds.InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LanceStreamPartition):
            return iter(())
        return prepare_and_read(partition.stream_partition.read(arrow_schema(self._schema)))

    def __getstate__(self) -> dict[str, object]:
        """Leave the stream out, since each task receives its own partition separately."""
        return {"_schema": self._schema, "_stream": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def _start_position(format_options: FormatOptions) -> StreamStart:
    version, time = format_options.get_text("starting_version"), format_options.get_text("starting_timestamp")
    if version is not None and version.lower() == _LATEST:
        return StreamStart(latest=True, timestamp=None if time is None else _parse_timestamp(time))
    return StreamStart(
        format_options.get_number("starting_version", None), timestamp=None if time is None else _parse_timestamp(time)
    )


def _parse_timestamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"the option starting_timestamp is {text!r}; it must be a time with its zone, such as "
            "2026-01-31T08:00:00+00:00"
        ) from None


def _change_mode(format_options: FormatOptions) -> OnChange:
    text = format_options.get_text("on_change") or OnChange.FAIL.value
    modes = [mode.value for mode in OnChange]
    if text not in modes:
        raise InvalidInput(f"the option on_change is {text!r}; it must be one of {', '.join(modes)}")
    return OnChange(text)
