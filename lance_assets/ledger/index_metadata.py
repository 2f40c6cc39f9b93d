"""Index metadata: the statistics of a version's indices as Dagster metadata, per index and as a table.

The statistics come from `Table.index_statistics`, which reads the metadata of the version only, so they are available
for any version. Metadata keys are the same for every version, so Dagster draws one plot per key.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import dagster as dg

from lance_assets.common.text import format_bytes, format_duration
from lance_core import IndexStatistics

Metadata = dict[str, dg.MetadataValue]
_PLOTTED_MAX = 20
_LISTED_MAX = 100
_COLUMNS = ("index", "kind", "column", "covered", "rows not covered", "segments", "bytes", "age", "note")


def metadata_of_index(index: IndexStatistics) -> Metadata:
    """Return the metadata of the index that a write has built."""
    value = dg.MetadataValue
    metadata: Metadata = {
        "lance/index": value.text(index.name),
        "lance/index_kind": value.text(index.kind),
        "lance/index_column": value.text(index.column or ""),
        "lance/index_coverage": value.float(_row_coverage(index)),
        "lance/index_fragments_covered": value.int(index.covered_fragments),
        "lance/index_fragments_uncovered": value.int(index.uncovered_fragments),
        "lance/index_rows_covered": value.int(index.covered_live_rows),
        "lance/index_rows_uncovered": value.int(index.uncovered_live_rows),
        "lance/index_segments": value.int(len(index.segments)),
    }
    if index.bytes is not None:
        metadata["lance/index_bytes"] = value.int(index.bytes)
    return metadata


def metadata_of_indices(indices: Sequence[IndexStatistics], now: datetime) -> Metadata:
    """Return the metadata of all indices for a profile.

    An index whose coverage is unknown, because this library does not know its type, is in the table but gets no plot.
    """
    value = dg.MetadataValue
    metadata: Metadata = {"lance/indices": value.int(len(indices))}
    if not indices:
        return metadata
    records = [_table_record(index, now) for index in indices[:_LISTED_MAX]]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    metadata["lance/indices_profile"] = value.table(records=records, schema=schema)
    for index in [index for index in indices if index.is_known][:_PLOTTED_MAX]:
        metadata[f"lance/index_coverage/{index.name}"] = value.float(_row_coverage(index))
        metadata[f"lance/index_segments/{index.name}"] = value.int(len(index.segments))
        if index.bytes is not None:
            metadata[f"lance/index_bytes/{index.name}"] = value.int(index.bytes)
    return metadata


def index_note(index: IndexStatistics) -> str:
    """Return a remark that explains the statistics of an index, as the rest of a sentence that begins with its name."""
    if index.why_unused is not None:
        return index.why_unused
    notes = [f"{segment.kind} of {segment.uuid}: {segment.unused}" for segment in index.segments if segment.unused]
    if index.notes_behind:
        notes.append(f"follows the fragment reuse index of a compaction in {index.notes_behind:,} of its segments")
    return "; ".join(notes)


def _table_record(index: IndexStatistics, now: datetime) -> dg.TableRecord:
    known = index.is_known
    return dg.TableRecord(
        {
            "index": index.name,
            "kind": index.kind,
            "column": index.column or "removed",
            "covered": f"{index.live_coverage:.2%}" if known else "unknown",
            "rows not covered": f"{index.uncovered_live_rows:,}" if known else "",
            "segments": f"{len(index.segments):,}",
            "bytes": format_bytes(index.bytes),
            "age": "" if index.created_at is None else format_duration(max(now - index.created_at, timedelta(0))),
            "note": index_note(index),
        }
    )


def _row_coverage(index: IndexStatistics) -> float:
    return round(index.live_coverage, 6)
