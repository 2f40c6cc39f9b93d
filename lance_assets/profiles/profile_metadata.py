"""Profile metadata: a profile as numbers, which Dagster's UI plots over versions, a table of columns, and diagrams.

Metadata keys are the same for every version, so that each key makes one plot. If rows were sampled, only shares are
plotted and never counts, so that no plot mixes the two.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from lance_assets.checks.evaluate import EvaluatedCheck
from lance_assets.diagrams.fragment_map import draw_fragment_map, draw_fragment_strip
from lance_assets.diagrams.version_graph import draw_version_graph
from lance_assets.ledger.index_metadata import metadata_of_indices
from lance_assets.profiles.column_profile import ColumnProfile, ContentProfile
from lance_assets.profiles.profile import VersionProfile
from lance_core.operations import action_of

_PLOTTED_MAX = 20
_LISTED_MAX = 60
Metadata = dict[str, dg.MetadataValue]


def metadata_of(profiled: VersionProfile, *, pictures: bool) -> Metadata:
    """Return the metadata of a profile; `pictures` adds the diagrams."""
    stats, contents, table = profiled.stats, profiled.contents, profiled.table
    value = dg.MetadataValue
    transaction = table.transaction()
    metadata: Metadata = {
        "lance/version": value.int(table.version),
        "lance/action": value.text(action_of(transaction, is_first=table.version == 1)),
        "lance/operation": value.text(transaction.operation.name if transaction else "Unknown"),
        "lance/committed_at": value.timestamp(table.timestamp),
    }
    if pictures:  # first, where they are visible on the page
        metadata["lance/rows_by_fragment"] = value.md(draw_fragment_strip(table).markdown("rows by fragment"))
        metadata["lance/fragment_map"] = value.md(
            draw_fragment_map(table).markdown(f"fragments of version {table.version}")
        )
        metadata["lance/version_graph"] = value.md(draw_version_graph(table).markdown(f"versions near {table.version}"))
    metadata |= {
        "lance/rows": value.int(stats.rows),
        "lance/deleted_rows": value.int(stats.deleted),
        "lance/deleted_share": value.float(_rounded(stats.deleted_share)),
        "lance/fragments": value.int(stats.fragments),
        "lance/small_fragments": value.int(stats.small_fragments),
        "lance/fragments_with_deletions": value.int(stats.fragments_with_deletions),
        "lance/data_files": value.int(stats.files),
        "lance/columns": value.int(len(table.schema)),
        "lance/rows_read": value.int(contents.rows_read),
        "lance/read": value.text(_read_text(contents)),
        "lance/seconds": value.float(round(profiled.seconds, 3)),
    }
    if not stats.files_without_size:  # a sum over some of the files would make the plot jump
        metadata["lance/bytes"] = value.int(stats.bytes)
        if stats.rows:
            metadata["lance/bytes_per_row"] = value.float(round(stats.bytes / stats.rows, 1))
    metadata |= metadata_of_indices(profiled.indices, datetime.now(UTC))
    if contents.columns:
        metadata["lance/columns_profile"] = _column_table(contents)
    metadata |= _plot_metadata(contents)
    return metadata


def metadata_of_checks(evaluated: Sequence[EvaluatedCheck]) -> Metadata:
    """Return the results of checks on a foreign version as a table."""
    if not evaluated:
        return {}
    records = [
        dg.TableRecord(
            {
                "check": each.check.name,
                "result": "passed" if each.result.passed else f"failed ({each.check.severity.value})",
                "found": each.result.description,
            }
        )
        for each in evaluated
    ]
    return {
        "lance/checks": dg.MetadataValue.table(records=records),
        "lance/checks_failed": dg.MetadataValue.int(sum(not each.result.passed for each in evaluated)),
    }


def _plot_metadata(contents: ContentProfile) -> Metadata:
    plots: Metadata = {}
    value = dg.MetadataValue
    if not contents.rows_read:
        return plots
    for column in [each for each in contents.columns if each.can_be_null][:_PLOTTED_MAX]:
        plots[f"lance/null_share/{column.name}"] = value.float(_rounded(column.nulls / contents.rows_read))
        if not contents.is_sampled:
            plots[f"lance/nulls/{column.name}"] = value.int(column.nulls)
    for column in [each for each in contents.columns if each.vectors][:_PLOTTED_MAX]:
        vectors = column.vectors
        if vectors is None or not vectors.count:
            continue
        if vectors.mean is not None:
            plots[f"lance/norm_min/{column.name}"] = value.float(vectors.shortest)
            plots[f"lance/norm_mean/{column.name}"] = value.float(vectors.mean)
            plots[f"lance/norm_max/{column.name}"] = value.float(vectors.longest)
        if contents.is_sampled:
            plots[f"lance/zero_vector_share/{column.name}"] = value.float(_rounded(vectors.zero / vectors.count))
            plots[f"lance/nan_vector_share/{column.name}"] = value.float(_rounded(vectors.not_finite / vectors.count))
        else:
            plots[f"lance/zero_vectors/{column.name}"] = value.int(vectors.zero)
            plots[f"lance/nan_vectors/{column.name}"] = value.int(vectors.not_finite)
    return plots


def _column_table(contents: ContentProfile) -> dg.MetadataValue:
    names = ("column", "type", "nulls", "share", "vectors")
    records = [_column_row(column, contents) for column in contents.columns[:_LISTED_MAX]]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=[dg.TableColumn(n) for n in names]))


def _column_row(column: ColumnProfile, contents: ContentProfile) -> dg.TableRecord:
    share = column.nulls / contents.rows_read if contents.rows_read else 0.0
    return dg.TableRecord(
        {
            "column": column.name,
            "type": _shortened(str(column.type)),
            "nulls": "not nullable" if not column.can_be_null else f"{column.nulls:,}",
            "share": f"{share:.2%}" if column.can_be_null else "",
            "vectors": _vectors_text(column),
        }
    )


def _vectors_text(column: ColumnProfile) -> str:
    vectors = column.vectors
    if vectors is None or not vectors.count:
        return ""
    lengths = (
        f"length {vectors.shortest:.4g} to {vectors.longest:.4g}, mean {vectors.mean:.4g}"
        if vectors.mean is not None
        else "no finite length"
    )
    anomalies = [f"{vectors.zero:,} zero"] * bool(vectors.zero) + [f"{vectors.not_finite:,} with NaN"] * bool(
        vectors.not_finite
    )
    return ", ".join([lengths, *anomalies])


def _read_text(contents: ContentProfile) -> str:
    more = f"; {contents.columns_skipped:,} more columns are not profiled" if contents.columns_skipped else ""
    listed = len(contents.columns) - _LISTED_MAX
    more += f"; the table shows the first {_LISTED_MAX} columns" if listed > 0 else ""
    if not contents.is_sampled:
        return f"all {contents.rows:,} rows{more}"
    share = contents.rows_read / contents.rows
    return (
        f"a sample: {contents.rows_read:,} of {contents.rows:,} rows ({share:.2%}), in ranges spread evenly over the "
        f"version; nulls and vectors describe the sample. Increase Profile(read_bytes_max=...) to read more{more}"
    )


def _rounded(share: float) -> float:
    return round(share, 6)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
