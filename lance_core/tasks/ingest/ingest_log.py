"""Which files a version has its rows from: read from its segments, and written as one more.

    of(base)                   the entries of a version, the newest of each path
    plan.fresh(files, record)  those that are new, by what is to be done about changed ones
    written(...)               a segment with what is new, and with older ones that are not much larger

A segment is written before the version that names it, under a fresh name, and never changes; one that no version names
goes with the files of interrupted writes (`versions/file_inventory.py`). Merging as they come keeps them few, and each
entry is copied as often as the record doubles.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import Corrupt, InvalidInput, NotFound
from lance_core.format.ingest_records import IngestSegment, segments_of
from lance_core.limits import INGESTED_BYTES
from lance_core.storage.store import read_whole
from lance_core.tasks.ingest.formats import Changed
from lance_core.tasks.ingest.sources import SourceFile
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("tag", pa.string()), ("ingest", pa.string())])
"""`ingest` is the segment that a file came with."""
_NAMED_MAX = 5
_NOT_MUCH_LARGER = 2


@dataclass(frozen=True, slots=True)
class IngestLog:
    location: Location
    """Of the main line, where the segments of all lines are."""
    segments: tuple[IngestSegment, ...]
    entries: pa.Table

    def has_segment(self, segment: str) -> bool:
        return bool(pc.any(pc.equal(self.entries["ingest"], segment), min_count=0).as_py())

    def append_segment(self, files: Sequence[SourceFile], name: str) -> tuple[IngestSegment, ...]:
        """What the record becomes with these, once a version says so. `name` is that of the new segment."""
        new = pa.table(
            {
                "path": [file.uri for file in files],
                "size": pa.array([file.size for file in files], pa.int64()),
                "tag": [file.tag for file in files],
                "ingest": [name] * len(files),
            },
            SCHEMA,
        )
        older, merged, rows = list(self.segments), [new], new.num_rows
        while older and older[0].files <= _NOT_MUCH_LARGER * rows:
            merged.append(_segment(self.location, older.pop(0)))
            rows += merged[-1].num_rows
        entries = _newest(merged)
        segment = IngestSegment(name, entries.num_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, SCHEMA) as file:
            file.write_table(entries, max_chunksize=1 << 20)
        self.location.store.put(segment.path, sink.getvalue().to_pybytes())
        return (segment, *older)


def new_segment_name() -> str:
    return uuid.uuid4().hex


def load_log(location: Location, base: Snapshot | None) -> IngestLog:
    """`location` is where the table, or the branch, is."""
    if base is None:
        return IngestLog(location, (), SCHEMA.empty_table())
    main = location.locate_main_branch(base.manifest.branch)
    segments = segments_of(base.manifest.config, path=f"{location.uri}/{base.manifest.path}")
    return IngestLog(main, segments, _newest([_segment(main, each) for each in segments]))


def select_new_files(files: Sequence[SourceFile], record: IngestLog, changed: Changed) -> list[SourceFile]:
    """Those of the files that this record does not have."""
    paths = pa.array([file.uri for file in files], pa.string())
    places = pc.index_in(paths, value_set=record.entries["path"]).to_pylist()
    sizes, tags = record.entries["size"].combine_chunks(), record.entries["tag"].combine_chunks()
    new, other = [], []
    for file, place in zip(files, places, strict=True):
        if place is None:
            new.append(file)
        elif (sizes[place].as_py(), tags[place].as_py()) != (file.size, file.tag):
            other.append(file)
    if changed == "fail" and other:
        named = ", ".join(file.uri for file in other[:_NAMED_MAX]) + (", …" if len(other) > _NAMED_MAX else "")
        raise InvalidInput(
            f"{len(other):,} of the files were ingested before and have changed since: {named}. changed='again' takes "
            "all their rows once more, changed='skip' leaves them as they were"
        )
    return sorted([*new, *other], key=lambda file: file.uri) if changed == "again" else new


def _newest(tables: Sequence[pa.Table]) -> pa.Table:
    """Of entries of one path the first one."""
    together = pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks()
    if len(tables) < 2:
        return together
    numbered = together.select(["path"]).append_column("at", pa.array(range(together.num_rows), pa.int64()))
    first = numbered.group_by("path").aggregate([("at", "min")])["at_min"]
    return together.take(first.take(pc.sort_indices(first)))


def _segment(location: Location, segment: IngestSegment) -> pa.Table:
    try:
        data = read_whole(location.store, segment.path, INGESTED_BYTES)
    except NotFound:
        raise NotFound(
            f"{location.uri}: {segment.path}, which says what was ingested here, is not there; the table may have been "
            "copied without it. Put it back; or, to forget all of it, set_config({'lance_assets.ingested': "
            "None}), and every file counts as new"
        ) from None
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"is no Arrow file: {error}", path=f"{location.uri}/{segment.path}", field="ingested") from error
    if table.schema != SCHEMA or table.num_rows != segment.files or any(column.null_count for column in table.columns):
        raise Corrupt("is no record of ingested files", path=f"{location.uri}/{segment.path}", field="ingested")
    return table
