"""Ingest log: the files from which the rows of a version were loaded, in segments. Each ingest adds a segment.

    load_log(location, base)                the entries of a version, the newest of each path
    select_new_files(files, log, changed)   the files to ingest; `changed` decides about modified files
    log.append_segment(files, name)         writes the new files and older segments of similar size as one segment

A segment is written before the version that references it, under a fresh name, and never changes. A segment that no
version references is cleaned up with the files of interrupted writes (`versions/file_inventory.py`). Merging segments
of similar size keeps their number small, and copies an entry about once whenever the size of the log doubles.
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
"""`ingest` is the segment with which a file was added."""
_FILES_SHOWN = 5
_MERGE_RATIO_MAX = 2
"""An older segment is merged if it is at most this many times as large as the new one."""


@dataclass(frozen=True, slots=True)
class IngestLog:
    """The ingest log of one version."""

    location: Location
    """Location of the main branch, which holds the segments of all branches."""
    segments: tuple[IngestSegment, ...]
    entries: pa.Table

    def has_segment(self, segment: str) -> bool:
        """Return whether the ingest that wrote this segment is committed in the version."""
        return bool(pc.any(pc.equal(self.entries["ingest"], segment), min_count=0).as_py())

    def append_segment(self, files: Sequence[SourceFile], name: str) -> tuple[IngestSegment, ...]:
        """Write a segment with these files and return the segments that the next version references."""
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
        while older and older[0].files <= _MERGE_RATIO_MAX * rows:
            merged.append(_read_segment(self.location, older.pop(0)))
            rows += merged[-1].num_rows
        entries = _newest_entries(merged)
        segment = IngestSegment(name, entries.num_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, SCHEMA) as file:
            file.write_table(entries, max_chunksize=1 << 20)
        self.location.store.put(segment.path, sink.getvalue().to_pybytes())
        return (segment, *older)


def new_segment_name() -> str:
    return uuid.uuid4().hex


def load_log(location: Location, base: Snapshot | None) -> IngestLog:
    """Read the log of a version. `location` is that of the table or the branch."""
    if base is None:
        return IngestLog(location, (), SCHEMA.empty_table())
    main = location.locate_main_branch(base.manifest.branch)
    segments = segments_of(base.manifest.config, path=f"{location.uri}/{base.manifest.path}")
    return IngestLog(main, segments, _newest_entries([_read_segment(main, segment) for segment in segments]))


def select_new_files(files: Sequence[SourceFile], log: IngestLog, changed: Changed) -> list[SourceFile]:
    """Return the files that are not in the log and, if `changed` is "again", those that were modified since. Raise
    `InvalidInput` for modified files if `changed` is "fail"."""
    paths = pa.array([file.uri for file in files], pa.string())
    positions = pc.index_in(paths, value_set=log.entries["path"]).to_pylist()
    sizes, tags = log.entries["size"].combine_chunks(), log.entries["tag"].combine_chunks()
    new, modified = [], []
    for file, position in zip(files, positions, strict=True):
        if position is None:
            new.append(file)
        elif (sizes[position].as_py(), tags[position].as_py()) != (file.size, file.tag):
            modified.append(file)
    if changed == "fail" and modified:
        shown = ", ".join(file.uri for file in modified[:_FILES_SHOWN]) + (
            ", …" if len(modified) > _FILES_SHOWN else ""
        )
        raise InvalidInput(
            f"{len(modified):,} of the files were ingested before and have changed since: {shown}. changed='again' "
            "ingests all their rows again, changed='skip' keeps the rows of their earlier content"
        )
    return sorted([*new, *modified], key=lambda file: file.uri) if changed == "again" else new


def _newest_entries(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the first entry of each path. The tables are ordered from new to old."""
    entries = pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks()
    if len(tables) < 2:
        return entries
    numbered = entries.select(["path"]).append_column("at", pa.array(range(entries.num_rows), pa.int64()))
    first = numbered.group_by("path").aggregate([("at", "min")])["at_min"]
    return entries.take(first.take(pc.sort_indices(first)))


def _read_segment(location: Location, segment: IngestSegment) -> pa.Table:
    try:
        data = read_whole(location.store, segment.path, INGESTED_BYTES)
    except NotFound:
        raise NotFound(
            f"{location.uri}: {segment.path}, a segment of the ingest log, does not exist; the table may have been "
            "copied without it. Restore the file; or reset the log with set_config({'lance_assets.ingested': None}), "
            "and every file counts as new"
        ) from None
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"is not an Arrow file: {error}", path=f"{location.uri}/{segment.path}", field="ingested"
        ) from error
    if table.schema != SCHEMA or table.num_rows != segment.files or any(column.null_count for column in table.columns):
        raise Corrupt("is not a segment of the ingest log", path=f"{location.uri}/{segment.path}", field="ingested")
    return table
