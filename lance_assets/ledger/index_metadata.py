"""The indices of a version as metadata of Dagster: each by itself, and all of them in a table.

Figures come from the version's metadata alone (`Table.index_statistics`), so that they can be told wherever a version
is. Names of metadata are the same for every version, so that each makes one plot.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import dagster as dg

from lance_assets.common.text import age, size
from lance_core import IndexStatistics

Metadata = dict[str, dg.MetadataValue]
_PLOTTED_MAX = 20
_LISTED_MAX = 100
_COLUMNS = ("index", "kind", "column", "covered", "rows not covered", "segments", "bytes", "age", "note")


def metadata_of_index(found: IndexStatistics) -> Metadata:
    """Of the one that a write has built."""
    value = dg.MetadataValue
    shown: Metadata = {
        "lance/index": value.text(found.name),
        "lance/index_kind": value.text(found.kind),
        "lance/index_column": value.text(found.column or ""),
        "lance/index_coverage": value.float(_share(found)),
        "lance/index_fragments_covered": value.int(found.covered_fragments),
        "lance/index_fragments_uncovered": value.int(found.uncovered_fragments),
        "lance/index_rows_covered": value.int(found.covered_live_rows),
        "lance/index_rows_uncovered": value.int(found.uncovered_live_rows),
        "lance/index_segments": value.int(len(found.segments)),
    }
    if found.bytes is not None:
        shown["lance/index_bytes"] = value.int(found.bytes)
    return shown


def metadata_of_indices(found: Sequence[IndexStatistics], now: datetime) -> Metadata:
    """Of a profile. What covers nothing that anybody here can tell of is in the table, and makes no plot."""
    value = dg.MetadataValue
    shown: Metadata = {"lance/indices": value.int(len(found))}
    if not found:
        return shown
    records = [_record(each, now) for each in found[:_LISTED_MAX]]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    shown["lance/indices_profile"] = value.table(records=records, schema=schema)
    for each in [one for one in found if one.is_known][:_PLOTTED_MAX]:
        shown[f"lance/index_coverage/{each.name}"] = value.float(_share(each))
        shown[f"lance/index_segments/{each.name}"] = value.int(len(each.segments))
        if each.bytes is not None:
            shown[f"lance/index_bytes/{each.name}"] = value.int(each.bytes)
    return shown


def index_note(found: IndexStatistics) -> str:
    """What somebody should know who sees its figures: the end of a sentence that begins with its name."""
    if found.why_unused is not None:
        return found.why_unused
    parts = [f"{segment.kind} of {segment.uuid}: {segment.unused}" for segment in found.segments if segment.unused]
    if found.notes_behind:
        parts.append(f"follows notes of a compaction in {found.notes_behind:,} of its segments")
    return "; ".join(parts)


def _record(found: IndexStatistics, now: datetime) -> dg.TableRecord:
    known = found.is_known
    return dg.TableRecord(
        {
            "index": found.name,
            "kind": found.kind,
            "column": found.column or "it is gone",
            "covered": f"{found.live_coverage:.2%}" if known else "unknown",
            "rows not covered": f"{found.uncovered_live_rows:,}" if known else "",
            "segments": f"{len(found.segments):,}",
            "bytes": size(found.bytes),
            "age": "" if found.created_at is None else age(max(now - found.created_at, timedelta(0))),
            "note": index_note(found),
        }
    )


def _share(found: IndexStatistics) -> float:
    return round(found.live_coverage, 6)
