"""The format `lance` as a source of Structured Streaming: the rows of a table, and then those that are added to it.

    spark.readStream.format("lance").option("maxRowsPerTrigger", 1_000_000).load(uri)

Spark keeps one process for each query that asks here how far there is something to read, and reads in tasks. The
module `lance_core.tasks.streaming.stream_source` decides what is followed and what an offset means. Start with
`stream_reader`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lance_assets.spark.options import FormatOptions
from lance_assets.spark.source import check_same_types
from lance_assets.spark.types import spark_schema, transport_schema
from lance_assets.spark.worker_setup import set_up_worker
from lance_core import InvalidInput
from lance_core.tasks.read import VersionRef
from lance_core.tasks.streaming.change_feed import OnChange
from lance_core.tasks.streaming.offsets import StreamStart
from lance_core.tasks.streaming.stream_partitions import StreamPartition
from lance_core.tasks.streaming.stream_source import ReadLimits, Stream

_ASSUMED_SLOTS = 8
"""How many tasks run at once is not known where Spark plans."""
_UNLIMITED_ROWS = (1 << 63) - 1
_LATEST = "latest"


def stream_reader(options: Mapping[str, str], schema: StructType) -> "LanceStreamReader":
    """Which options there are is told at `LanceDataSource`."""
    given = FormatOptions(options)
    given.refuse_for_streams(dict.fromkeys(("version", "tag"), "it begins where starting_version says, and goes on"))
    branch, store, bases = given.get_text("branch"), given.get_text("manifest_store"), given.get_names("bases") or ()
    stream = Stream(
        VersionRef(given.uri, None, None, branch, given.storage, store, bases),
        transport=transport_schema,
        columns=schema.fieldNames(),
        filter=given.get_text("filter"),
        start=_start_position(given),
        on_change=_change_mode(given),
        limits=ReadLimits(
            rows=given.get_number("max_rows_per_trigger", None),
            files=given.get_number("max_files_per_trigger", None),
            versions=given.get_number("max_versions_per_trigger", None),
        ),
        poll_seconds=given.get_seconds("poll_seconds"),
    )
    check_same_types(spark_schema(stream.arrow), schema)
    return LanceStreamReader(schema, stream)


class LanceStreamPartition(ds.InputPartition):
    def __init__(self, part: StreamPartition) -> None:
        super().__init__(part)
        self.part = part

    def __repr__(self) -> str:
        return f"LanceStreamPartition({len(self.part.slices)} pieces)"


class LanceStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, stream: Stream | None) -> None:
        self._schema = schema
        self._stream = stream

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "tasks are told what to read"
        return self._stream

    def initialOffset(self) -> dict[str, object]:
        return self.stream.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; here it only says that there are some, and all of them are kept."""
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
        return [LanceStreamPartition(part) for part in self.stream.plan_partitions(start, end, slots=_ASSUMED_SLOTS)]

    def read(self, partition: ds.InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LanceStreamPartition):
            return iter(())
        set_up_worker()
        return partition.part.read(to_arrow_schema(self._schema, timezone="UTC"))

    def __getstate__(self) -> dict[str, object]:
        """Tasks are given their parts one by one."""
        return {"_schema": self._schema, "_stream": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


def _start_position(given: FormatOptions) -> StreamStart:
    version, time = given.get_text("starting_version"), given.get_text("starting_timestamp")
    if version is not None and version.lower() == _LATEST:
        return StreamStart(latest=True, timestamp=None if time is None else _parse_timestamp(time))
    return StreamStart(
        given.get_number("starting_version", None), timestamp=None if time is None else _parse_timestamp(time)
    )


def _parse_timestamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"the option starting_timestamp is {text!r}: it is a time such as 2026-01-31T08:00:00+00:00, with its zone"
        ) from None


def _change_mode(given: FormatOptions) -> OnChange:
    text = given.get_text("on_change") or OnChange.FAIL.value
    if text not in {each.value for each in OnChange}:
        raise InvalidInput(f"the option on_change is {text!r}: it is {', '.join(each.value for each in OnChange)}")
    return OnChange(text)
