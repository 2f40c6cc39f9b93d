"""Streaming options, without a session: Spark only forwards them."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

from lance_assets.spark.source import LanceDataSource
from lance_assets.spark.streaming import LanceStreamReader, stream_reader
from lance_assets.spark.streaming_sink import LanceStreamWriter, stream_writer
from lance_core import InvalidInput, NotFound, StorageError, Table
from lance_core.tasks.streaming.stream_sink import MicroBatch

IDS = StructType().add("id", LongType())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": range(10), "s": ["x"] * 10}), durable=False)
    return table.uri


def reader(uri: str, options: Mapping[str, object] | None = None, schema: StructType = IDS) -> LanceStreamReader:
    options_of_spark = {"path": uri, **{name: str(value) for name, value in (options or {}).items()}}
    return stream_reader(CaseInsensitiveDict(options_of_spark), schema)


def written_messages(source: LanceStreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    worker = pickle.loads(pickle.dumps(source))
    parts = pickle.loads(pickle.dumps(source.partitions(start, end)))
    return [int(n) for part in parts for batch in worker.read(part) for n in batch.column("id").to_pylist()]


@pytest.mark.parametrize(
    ("options", "limit", "first"),
    [
        ({}, ReadAllAvailable(), 10),
        ({"maxRowsPerTrigger": 4}, ReadMaxRows(4), 4),
        ({"max_files_per_trigger": 2}, ReadMaxFiles(2), 10),
        ({"maxVersionsPerTrigger": 1}, ReadMaxRows((1 << 63) - 1), 10),
        ({"maxRowsPerTrigger": 3, "maxFilesPerTrigger": 1}, ReadMaxRows(3), 3),
    ],
)
def test_source_reports_rate_limits(uri: str, options: dict[str, int], limit: ReadLimit, first: int) -> None:
    source = reader(uri, options)
    assert source.getDefaultReadLimit() == limit
    begin = source.initialOffset()
    assert len(written_messages(source, begin, source.latestOffset(begin, limit))) == first
    assert len(written_messages(source, begin, source.latestOffset(begin, ReadAllAvailable()))) == 10
    assert source.reportLatestOffset()["version"] == 2
    assert list(source.read(None)) == []


def test_both_spellings_of_options(uri: str) -> None:
    Table.open(uri).append(pa.table({"id": [50, 51], "s": ["a", "b"]}))
    Table.open(uri).delete("id = 50")
    for options, expected in (
        ({"startingVersion": 2, "onChange": "skip"}, [50, 51]),
        ({"starting_version": 2, "on_change": "rewritten", "filter": "s = 'b'"}, [51]),
        ({"startingVersion": "latest"}, []),
        ({"startingTimestamp": "2020-01-31T08:00:00+00:00", "on_change": "skip"}, [*range(10), 50, 51]),
        ({}, [*range(10), 51]),
    ):
        source = reader(uri, options)
        begin = source.initialOffset()
        assert written_messages(source, begin, source.latestOffset(begin, ReadAllAvailable())) == expected, options
    with pytest.raises(InvalidInput, match="two spellings"):
        reader(uri, {"startingVersion": 1, "starting_version": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingVersion": 9}, "starting_version=9 cannot be; the table is at version 1"),
        ({"startingVersion": 0}, "starting_version=0"),
        ({"startingVersion": "soon"}, "whole number"),
        ({"startingVersion": 1, "startingTimestamp": "2020-01-31T08:00:00+00:00"}, "give one of them"),
        ({"startingTimestamp": "2020-01-31"}, "time zone"),
        ({"startingTimestamp": "yesterday"}, "2026-01-31T08:00:00"),
        ({"onChange": "maybe"}, "fail, skip, rewritten"),
        ({"maxRowsPerTrigger": 0}, "a limit is at least 1"),
        ({"pollSeconds": "often"}, "number of seconds"),
        ({"poll_seconds": "1e9"}, "between 0 and 3600"),
        ({"version": 1}, "starting_version"),
        ({"tag": "t"}, "starting_version"),
        ({"filter": "id = = 1"}, "does not parse"),
        ({"branch": "b"}, "no branch 'b'"),
        ({"storage.account_key": "hush"}, "secret.account_key"),
    ],
)
def test_invalid_options(uri: str, options: dict[str, object], message: str) -> None:
    def start() -> None:
        source = reader(uri, options)
        source.latestOffset(source.initialOffset(), ReadAllAvailable())

    with pytest.raises((InvalidInput, NotFound), match=message):
        start()


def test_requested_type_that_differs(uri: str) -> None:
    with pytest.raises(InvalidInput, match="requested as string"):
        reader(uri, schema=StructType().add("id", StringType()))


def test_readers_and_writers_pickle_no_secret(uri: str) -> None:
    source = reader(uri)
    assert "_stream': None" in str(pickle.loads(pickle.dumps(source)).__dict__)
    assert "LanceStreamPartition(1 slices)" in repr(
        source.partitions(source.initialOffset(), source.latestOffset(source.initialOffset(), ReadAllAvailable()))
    )
    writer = create_writer(uri, **{"secret.aws_secret_access_key": "hush"})
    assert "hush" not in repr(vars(writer))


def create_writer(uri: str, **options: object) -> LanceStreamWriter:
    options_of_spark = CaseInsensitiveDict({"path": uri, **{name: str(value) for name, value in options.items()}})
    return stream_writer(options_of_spark, StructType().add("id", LongType()).add("s", StringType()), overwrite=False)


def test_sink_outside_a_streaming_query(uri: str) -> None:
    """The number of the batch is unknown outside a task of a streaming query."""
    writer = create_writer(uri)
    message = writer.write(iter(pa.table({"id": [1], "s": ["y"]}).to_batches()))
    with pytest.raises(InvalidInput, match="foreachBatch"):
        writer.commit([message], 0)
    with pytest.raises(StorageError, match="results of some tasks"):
        writer.commit([message, None], 0)
    assert Table.open(uri).version == 1


def test_aborted_batch_deletes_nothing(uri: str) -> None:
    """Spark calls `abort` after a failed commit, which may have succeeded."""
    writer = create_writer(uri, **{"maxRowsPerFile": 2, "property.team": "a"})
    sink_message = writer.sink.write_batches(
        pa.table({"id": range(20, 25), "s": ["y"] * 5}).to_batches(), MicroBatch("q", 0)
    )
    message = writer.write(iter(()))
    committed = type(message)(sink_message)
    writer.commit([committed], 0)
    writer.abort([committed, None], 0)
    table = Table.open(uri)
    assert sorted(table.to_table()["id"].to_pylist()) == [*range(10), *range(20, 25)]
    assert len(table.fragments) == 4
    assert table.versions()[-1].properties["team"] == "a"
    assert table.fsck().is_sound


def test_aborted_batch_write_deletes_nothing(tmp_path: Path) -> None:
    """A commit that raised may have succeeded, so a version may reference its files."""
    table_uri = str(tmp_path / "t")
    options_of_spark = CaseInsensitiveDict({"path": table_uri})
    writer = LanceDataSource(options_of_spark).writer(StructType().add("id", LongType()), overwrite=False)
    message = writer.write(iter(pa.table({"id": [1, 2]}).to_batches()))
    writer.commit([message])
    writer.abort([message, None])
    assert Table.open(table_uri).to_table()["id"].to_pylist() == [1, 2]
    with pytest.raises(StorageError, match="results of some tasks"):
        writer.commit([message, None])


@pytest.mark.parametrize(("option", "message"), [("intent", "its own intent"), ("create", "true or false")])
def test_sink_options(uri: str, option: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        create_writer(uri, **{option: "x"})


def test_format_has_reader_and_writer(uri: str) -> None:
    source = LanceDataSource(CaseInsensitiveDict({"path": uri, "columns": "id"}))
    assert isinstance(source.streamReader(source.schema()), LanceStreamReader)
    sink = LanceDataSource(CaseInsensitiveDict({"path": uri}))
    assert isinstance(sink.streamWriter(source.schema(), False), LanceStreamWriter)
    with pytest.raises(InvalidInput, match="no path"):
        stream_reader({}, IDS)
