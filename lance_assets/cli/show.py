"""`lance-assets show URI@version`: contents and lineage of one version."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.indices import IndexState, index_states
from lance_assets.cli.printing import Column, format_change, format_number, format_time, pair_lines
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_bytes, format_count
from lance_assets.lineage.ancestry_reader import FIRST_DETACHED, origin_of
from lance_assets.lineage.model import Origin
from lance_assets.lineage.render import as_json, display_name, origin_notes, version_range
from lance_core import LanceError, Table, Unsupported
from lance_core.operations import parts_of
from lance_core.shell import Access

HELP = "show the contents and the lineage of one version"
_COLUMNS_SHOWN = 100
_PARTS_SHOWN = 20
_FIELDS = (Column("column"), Column("type"), Column("null"))
_INDICES = (
    Column("index"),
    Column("kind"),
    Column("columns"),
    Column("covers"),
    Column("rows not covered", is_number=True),
    Column("segments", is_number=True),
    Column("size", is_number=True),
    Column("newest"),
)


@dataclass(frozen=True, slots=True)
class FoldedAppend:
    """One of several appends that group commit combined into the version."""

    uuid: str
    rows: int


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """Everything that the command shows of a version."""

    origin: Origin
    fragments: int
    files: int
    bytes: int
    deleted_rows: int
    with_deletions: int
    storage_version: str
    stable_row_ids: bool
    writer: str
    table_id: str | None
    branch: str | None
    tags: tuple[str, ...]
    parts: tuple[FoldedAppend, ...]
    columns: tuple[tuple[str, str, bool], ...]
    indices: tuple[IndexState, ...]
    config: Mapping[str, str]
    metadata: Mapping[str, str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI[@VERSION]", help=TABLE_HELP)


def run(arguments: argparse.Namespace, access: Access) -> int:
    details = load_version(open_named(arguments.table, access).table)
    if arguments.json:
        printing.print_json(_as_json(details))
    else:
        printing.print_text(_as_text(details, printing.terminal_width()))
    return EXIT_OK


def load_version(table: Table) -> VersionDetails:
    fragments = list(table.fragments)
    transaction = table.transaction()
    parts = parts_of(transaction) if transaction else ()
    manifest = table.manifest
    return VersionDetails(
        origin=origin_of(table),
        fragments=len(fragments),
        files=sum(len(fragment.files) for fragment in fragments),
        bytes=sum(fragment.file_bytes for fragment in fragments),
        deleted_rows=sum(fragment.physical_rows - fragment.live_rows for fragment in fragments),
        with_deletions=sum(fragment.deletion_file is not None for fragment in fragments),
        storage_version=str(manifest.storage_version),
        stable_row_ids=manifest.has_stable_row_ids,
        writer=manifest.writer,
        table_id=table.id,
        branch=table.branch,
        tags=_tags_of(table),
        parts=tuple(FoldedAppend(part.uuid, sum(f.live_rows for f in part.append.fragments)) for part in parts),
        columns=column_types(table),
        indices=tuple(index_states(table)),
        config=dict(table.config),
        metadata=dict(table.metadata),
    )


def column_types(table: Table) -> tuple[tuple[str, str, bool], ...]:
    """Return name, type and nullability of each column. An unknown type is named as the table records it."""
    columns = []
    for field in table.manifest.schema.fields:
        try:
            kind = _type_text(field.arrow())
        except Unsupported:
            kind = field.logical_type
        columns.append((field.name, kind, field.nullable))
    return tuple(columns)


def _type_text(field: pa.Field) -> str:
    extension = (field.metadata or {}).get(b"ARROW:extension:name")
    return str(field.type) if extension is None else extension.decode(errors="replace")


def _tags_of(table: Table) -> tuple[str, ...]:
    """Return the tags of this version; none if the tags cannot be read, which the doctor reports."""
    if table.version >= FIRST_DETACHED:
        return ()
    try:
        tags = table.tags.list()
    except LanceError:
        return ()
    return tuple(name for name, tag in tags.items() if (tag.branch, tag.version) == (table.branch, table.version))


def _as_text(details: VersionDetails, width: int | None) -> Iterator[str]:
    origin = details.origin
    yield printing.printable(display_name(origin.name))
    yield from pair_lines(_detail_pairs(details), width, "  ")
    if lineage := [*_lineage_pairs(origin, details.parts)]:
        yield "\nlineage"
        yield from pair_lines(lineage, width, "  ")
    yield ""
    rows = [(name, kind, "yes" if nullable else "no") for name, kind, nullable in details.columns]
    yield from printing.table_lines(_FIELDS, rows[:_COLUMNS_SHOWN], width)
    if len(rows) > _COLUMNS_SHOWN:
        yield f"… and {len(rows) - _COLUMNS_SHOWN:,} more, with --json"
    if details.indices:
        yield ""
        yield from printing.table_lines(_INDICES, map(index_row, details.indices), width)
        for state in details.indices:
            if state.why_unused is not None:
                yield printing.printable(f"  {state.name} {state.why_unused}")
    for title, settings in (("config", details.config), ("metadata", details.metadata)):
        if settings:
            yield f"\n{title}"
            yield from pair_lines(sorted(settings.items()), width, "  ")


def _detail_pairs(details: VersionDetails) -> Iterator[tuple[str, str | None]]:
    origin = details.origin
    changed = ", ".join(format_change(each) for each in (origin.rows_added, -(origin.rows_removed or 0)) if each)
    deleted = f", {format_count(details.deleted_rows, 'deleted row')} in {details.with_deletions:,} of them"
    yield "committed", f"{format_time(origin.timestamp)} UTC by {origin.named_action}"
    yield "rows", f"{origin.rows:,}" + (f" ({changed})" if changed else "")
    yield "files", f"{format_count(details.files, 'file')}, {format_bytes(details.bytes)}"
    yield "fragments", format_number(details.fragments) + (deleted if details.with_deletions else "")
    yield "tags", ", ".join(details.tags)
    yield "branch", details.branch
    yield "format", f"{details.storage_version}" + (", stable row ids" if details.stable_row_ids else "")
    yield "written by", details.writer
    yield "table id", details.table_id


def _lineage_pairs(origin: Origin, parts: Sequence[FoldedAppend]) -> Iterator[tuple[str, str | None]]:
    yield "run", origin.run_id
    yield "asset", origin.asset
    yield "partition", origin.partition
    yield "code location", origin.code_location
    yield "intent", origin.intent
    for source in origin.sources:
        yield source.kind.value, display_name(source.name)
    yield "inputs", origin.unreadable_inputs and f"cannot be parsed: {origin.unreadable_inputs[:200]}"
    yield "parent", str(origin.parent) if origin.parent else None
    yield "planned on", str(origin.planned_on) if origin.planned_on != origin.parent and origin.planned_on else None
    yield "rebased over", version_range(origin.rebased_over)
    yield "transaction", origin.uuid
    for part in parts[:_PARTS_SHOWN]:
        yield "append", f"{part.uuid}, {format_count(part.rows, 'row')}"
    yield "append", f"and {len(parts) - _PARTS_SHOWN} more" if len(parts) > _PARTS_SHOWN else None


def index_row(state: IndexState) -> Sequence[str]:
    covers = "unknown" if state.covered is None else f"{state.covered:,} of {state.covered + state.uncovered:,}"
    newest = "" if state.created_at is None else format_time(state.created_at)
    return (
        state.name,
        state.kind,
        ", ".join(state.columns),
        covers,
        format_number(state.uncovered_rows or None),
        format_number(state.segments),
        format_bytes(state.bytes),
        newest,
    )


def _as_json(details: VersionDetails) -> dict[str, object]:
    return {
        **as_json(details.origin),
        "notes": [*origin_notes(details.origin)],
        "fragments": details.fragments,
        "files": details.files,
        "bytes": details.bytes,
        "deleted_rows": details.deleted_rows,
        "fragments_with_deletions": details.with_deletions,
        "storage_version": details.storage_version,
        "stable_row_ids": details.stable_row_ids,
        "written_by": details.writer,
        "table_id": details.table_id,
        "branch": details.branch,
        "tags": list(details.tags),
        "parts": [{"transaction": part.uuid, "rows": part.rows} for part in details.parts],
        "columns": [{"name": name, "type": kind, "nullable": nullable} for name, kind, nullable in details.columns],
        "indices": [index_json(state) for state in details.indices],
        "config": details.config,
        "metadata": details.metadata,
    }


def index_json(state: IndexState) -> dict[str, object]:
    return {
        "name": state.name,
        "kind": state.kind,
        "columns": list(state.columns),
        "segments": state.segments,
        "fragments_covered": state.covered,
        "fragments_not_covered": state.uncovered,
        "rows_not_covered": state.uncovered_rows,
        "bytes": state.bytes,
        "created_at": None if state.created_at is None else state.created_at.isoformat(),
        "unused": state.why_unused,
    }
