"""`lance-assets lineage URI@version`: the ancestry of a version across tables as a tree, or of its columns."""

import argparse
from collections.abc import Iterator

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.printing import Column, format_time
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count, truncate
from lance_assets.lineage.ancestry_reader import ancestry_of
from lance_assets.lineage.column_history import ColumnOrigin, column_origins
from lance_assets.lineage.graph import DEPTH_MAX, VERSIONS_MAX, Ancestry, LineKind, TreeLine
from lance_assets.lineage.model import AncestryKind, Origin
from lance_assets.lineage.render import as_json, display_name, version_range, without_credentials
from lance_core import InvalidInput, Table
from lance_core.shell import Access

HELP = "show the versions that a version was made from, across tables, as a tree"
_CALLER_ROWS = "(rows of the caller)"
_COLUMNS = (Column("column"), Column("version", is_number=True), Column("from table"), Column("from column"))
_KIND_NOTES = {
    LineKind.REPEATED: "see above",
    LineKind.CYCLE: "a cycle: an ancestor of itself",
    LineKind.TRUNCATED: "not followed further",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI[@VERSION]", help=TABLE_HELP)
    parser.add_argument("--parents", action="store_true", help="also follow each version to its parent")
    parser.add_argument(
        "--depth", metavar="N", type=int, default=DEPTH_MAX, help=f"maximum depth of the tree (default: {DEPTH_MAX})"
    )
    parser.add_argument(
        "--most",
        metavar="N",
        type=int,
        default=VERSIONS_MAX,
        help=f"maximum number of versions (default: {VERSIONS_MAX})",
    )

    parser.add_argument("--columns", action="store_true", help="show the columns that each column was computed from")


def run(arguments: argparse.Namespace, access: Access) -> int:
    if arguments.columns:
        return _show_columns(open_named(arguments.table, access).table, as_json=arguments.json)
    if arguments.depth < 0 or arguments.most < 1:
        raise InvalidInput("--depth must be at least 0, and --most at least 1")
    table = open_named(arguments.table, access).table
    ancestry = ancestry_of(
        table, access, depth_max=arguments.depth, versions_max=arguments.most, parents=arguments.parents
    )
    if arguments.json:
        printing.print_json(_as_json(ancestry))
    else:
        printing.print_text(as_text(ancestry, printing.terminal_width()))
    return EXIT_OK


def _show_columns(table: Table, *, as_json: bool) -> int:
    origins = column_origins(table)
    if as_json:
        columns = {name: _column_json(origin) for name, origin in origins.items()}
        printing.print_json({"uri": without_credentials(table.uri), "version": table.version, "columns": columns})
        return EXIT_OK
    rows = [
        (name, origin.version, without_credentials(source.uri) or _CALLER_ROWS, source.column)
        for name, origin in origins.items()
        for source in origin.sources
    ]
    if rows:
        printing.print_text(
            printing.table_lines(_COLUMNS, [tuple(map(str, row)) for row in rows], printing.terminal_width())
        )
    else:
        printing.print_text(["no version of this table records the sources of a column"])
    return EXIT_OK


def _column_json(origin: ColumnOrigin) -> dict[str, object]:
    sources = [
        {"uri": without_credentials(source.uri) or None, "asset": source.asset, "column": source.column}
        for source in origin.sources
    ]
    return {"version": origin.version, "sources": sources}


def as_text(ancestry: Ancestry, width: int | None) -> Iterator[str]:
    for line in ancestry.lines():
        text = printing.tree_prefix(line.is_last) + printing.printable("  ".join(_line_parts(line)))
        yield text if width is None else truncate(text, width)
    if not ancestry.is_complete:
        yield f"\n{format_count(len(ancestry.unfollowed), 'version')} not followed further; increase --depth or --most"


def _line_parts(line: TreeLine) -> Iterator[str]:
    relation = f"{line.ancestry.value} " if line.ancestry not in (None, AncestryKind.READ) else ""
    yield relation + display_name(line.name)
    if line.kind is LineKind.UNKNOWN:
        yield f"(unknown: {line.reason})"
    elif line.origin is not None and line.kind in (LineKind.NEW, LineKind.TRUNCATED):
        yield from _origin_parts(line.origin)
    if note := _KIND_NOTES.get(line.kind):
        yield f"({note})"
    if line.is_younger:
        yield "(younger than the version made from it: the table was replaced, or clocks differ)"


def _origin_parts(origin: Origin) -> Iterator[str]:
    yield origin.named_action
    yield format_time(origin.timestamp)
    for name, value in (("run", origin.run_id), ("asset", origin.asset), ("partition", origin.partition)):
        if value:
            yield f"{name} {value}"
    if origin.rebased_over:
        yield f"rebased over {version_range(origin.rebased_over)}"
    if origin.unreadable_inputs is not None:
        yield "(its recorded inputs cannot be parsed)"


def _as_json(ancestry: Ancestry) -> dict[str, object]:
    return {
        "uri": without_credentials(ancestry.root.uri),
        "version": ancestry.root.version,
        "versions": [as_json(origin) for origin in ancestry.origins.values()],
        "not_followed": [
            {"uri": without_credentials(name.uri), "version": name.version} for name in sorted(ancestry.unfollowed)
        ],
    }
