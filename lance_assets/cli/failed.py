"""`lance-assets failed URI`: rows for which the functions of computed columns raised, and which have no value yet."""

import argparse
from collections.abc import Iterator

import pyarrow as pa

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.printing import Column, format_time
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count
from lance_core.shell import Access

HELP = "show the rows for which the function of a computed column failed"
_SHOWN = 50
_COLUMNS = (
    Column("column"),
    Column("row id", is_number=True),
    Column("key"),
    Column("time"),
    Column("code"),
    Column("error"),
    Column("message"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI[@VERSION]", help=TABLE_HELP)
    parser.add_argument("--column", help="show the rows of this computed column only")
    parser.add_argument("--errors-uri", help="table of failed rows, if the runs have named one")


def run(arguments: argparse.Namespace, access: Access) -> int:
    table = open_named(arguments.table, access).table
    rows = table.failed_rows(arguments.column, errors_uri=arguments.errors_uri)
    if arguments.json:
        printing.print_json([{**row, "time": row["time"].isoformat()} for row in rows.to_pylist()])
    else:
        printing.print_text(_as_text(rows))
    return EXIT_OK


def _as_text(rows: pa.Table) -> Iterator[str]:
    yield format_count(rows.num_rows, "failed row")
    if not rows.num_rows:
        return
    lines = [
        (
            row["column"],
            str(row["row_id"]),
            row["key"] or "",
            format_time(row["time"]),
            row["code_version"],
            row["error_type"],
            row["message"],
        )
        for row in rows.slice(0, _SHOWN).to_pylist()
    ]
    yield from printing.table_lines(_COLUMNS, lines, printing.terminal_width())
    if rows.num_rows > _SHOWN:
        yield f"… and {rows.num_rows - _SHOWN:,} more, with --json"
