"""Streaming query: reads one table and writes another without Spark, with a checkpoint as Spark keeps it.

The checkpoint records the end offset of a batch before the batch runs, and its completion after the commit. A restarted
query repeats the batch that is not complete, and asks the source again for the initial offset of a first batch.
"""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lance_core import Committed
from lance_core.storage.manifest_stores.manifest_store import ManifestStore
from lance_core.tasks.rows.write import FileLimits
from lance_core.tasks.scan.read import VersionRef
from lance_core.tasks.streaming.offsets import StreamStart
from lance_core.tasks.streaming.stream_sink import MicroBatch, SinkMessage, StreamedWrite, commit_batch
from lance_core.tasks.streaming.stream_source import ReadLimits, Stream


@dataclass
class Checkpoint:
    """State of the query that outlives its process: the end offsets and the number of completed batches."""

    query: str = "q"
    ends: list[str] = field(default_factory=list)
    committed: int = 0


def write_pieces(
    uri: str,
    pieces: list[list[pa.RecordBatch]],
    batch: MicroBatch | None,
    *,
    schema: pa.Schema,
    replaces: bool = False,
    branch: str | None = None,
    manifests: ManifestStore | None = None,
) -> list[SinkMessage]:
    """Write each piece in a task of its own; plans and messages are pickled as between processes."""
    write = StreamedWrite.begin(
        uri,
        schema,
        replaces=replaces,
        limits=FileLimits(),
        branch=branch,
        manifest_store=manifests,
        durable=False,
    )
    messages = []
    for piece in pieces:
        worker: StreamedWrite = pickle.loads(pickle.dumps(write)) if manifests is None else write
        messages.append(pickle.loads(pickle.dumps(worker.write_batches(iter(piece), batch))))
    return messages


def write_batch(
    uri: str,
    rows: pa.Table,
    number: int,
    *,
    query: str = "q",
    replaces: bool = False,
    manifests: ManifestStore | None = None,
) -> Committed | None:
    """Write a batch with two tasks and a third one without rows, and commit it."""
    half = len(rows) // 2
    pieces = [rows.slice(0, half).to_batches(), rows.slice(half).to_batches(), []]
    messages = write_pieces(
        uri, pieces, MicroBatch(query, number, "run"), schema=rows.schema, replaces=replaces, manifests=manifests
    )
    return commit_batch(messages, number, manifest_store=manifests)


def run_query(
    source: str,
    sink: str,
    checkpoint: Checkpoint,
    *,
    limits: ReadLimits | None = None,
    start: StreamStart | None = None,
    manifests: ManifestStore | None = None,
    on_step: Callable[[str], None] = lambda where: None,
) -> Iterator[int]:
    """Run the query up to the newest version; yield the number of each completed batch."""
    version_ref = VersionRef(source, manifest_store=manifests)
    stream = Stream(version_ref, transport=lambda schema: schema, limits=limits, start=start)
    stream.stop_at_newest()
    while True:
        number = checkpoint.committed
        begin = json.loads(checkpoint.ends[number - 1]) if number else stream.initial_offset()
        if len(checkpoint.ends) == number:
            end = json.dumps(stream.latest_offset(begin, limited=True))
            if json.loads(end) == begin:
                return
            on_step("before its end is written down")
            checkpoint.ends.append(end)
        begin = begin if number else stream.initial_offset()
        parts = stream.plan_partitions(begin, json.loads(checkpoint.ends[number]), slots=2)
        schema = stream.arrow.remove_metadata()
        on_step("before its rows are written")
        pieces = [list(part.read(schema)) for part in parts]
        messages = write_pieces(
            sink, pieces or [[]], MicroBatch(checkpoint.query, number), schema=schema, manifests=manifests
        )
        on_step("before it is committed")
        commit_batch(messages, number, manifest_store=manifests)
        on_step("before that is written down")
        checkpoint.committed = number + 1
        yield number
