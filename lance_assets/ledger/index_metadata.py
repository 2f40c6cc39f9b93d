"""The indices of a version as metadata of Dagster: each by itself, and all of them in a table.

Figures come from the version's metadata alone (`Table.index_statistics`), so that they can be told wherever a version
is. Names of metadata are the same for every version, so that each makes one plot.
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
    """Of the one that a write has built."""
    value = dg.MetadataValue
    shown: Metadata = {
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
        shown["lance/index_bytes"] = value.int(index.bytes)
    return shown


def metadata_of_indices(indices: Sequence[IndexStatistics], now: datetime) -> Metadata:
    """Of a profile. What covers nothing that anybody here can tell of is in the table, and makes no plot."""
    value = dg.MetadataValue
    shown: Metadata = {"lance/indices": value.int(len(indices))}
    if not indices:
        return shown
    records = [_table_record(each, now) for each in indices[:_LISTED_MAX]]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    shown["lance/indices_profile"] = value.table(records=records, schema=schema)
    for each in [one for one in indices if one.is_known][:_PLOTTED_MAX]:
        shown[f"lance/index_coverage/{each.name}"] = value.float(_row_coverage(each))
        shown[f"lance/index_segments/{each.name}"] = value.int(len(each.segments))
        if each.bytes is not None:
            shown[f"lance/index_bytes/{each.name}"] = value.int(each.bytes)
    return shown


def index_note(index: IndexStatistics) -> str:
    """What somebody should know who sees its figures: the end of a sentence that begins with its name."""
    if index.why_unused is not None:
        return index.why_unused
    parts = [f"{segment.kind} of {segment.uuid}: {segment.unused}" for segment in index.segments if segment.unused]
    if index.notes_behind:
        parts.append(f"follows notes of a compaction in {index.notes_behind:,} of its segments")
    return "; ".join(parts)


def _table_record(index: IndexStatistics, now: datetime) -> dg.TableRecord:
    known = index.is_known
    return dg.TableRecord(
        {
            "index": index.name,
            "kind": index.kind,
            "column": index.column or "it is gone",
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
