"""`lance-assets run RUN_ID`: the versions that a Dagster run committed, and the versions that it read.

Without table names, the Dagster instance at DAGSTER_HOME is read. With table names, only these tables are read, and
Dagster is not imported.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.printing import format_time
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.lineage.model import Origin, VersionName
from lance_assets.lineage.render import as_json, display_name, origin_notes
from lance_assets.lineage.runs import VERSIONS_READ_MAX, versions_of_run
from lance_core import InvalidInput
from lance_core.shell import Access

HELP = "show the versions that a Dagster run committed and read"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="full id of the run")
    parser.add_argument(
        "tables", metavar="URI", nargs="*",
        help=f"tables that the run may have written; {TABLE_HELP} (default: read the Dagster instance at DAGSTER_HOME)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", metavar="N", type=int, default=VERSIONS_READ_MAX,
        help=f"read the newest N versions of each table (default: {VERSIONS_READ_MAX}; 0: all)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, access: Access) -> int:
    if arguments.limit < 0:
        raise InvalidInput(f"--limit must be at least 0, not {arguments.limit}; 0 reads all versions")
    if not arguments.tables:
        return _print_from_instance(arguments.run_id, arguments.json)
    origins = [
        origin
        for text in arguments.tables
        for origin in versions_of_run(
            open_named(text, access).table, arguments.run_id, versions_max=arguments.limit or None
        )
    ]
    if arguments.json:
        printing.print_json({"run_id": arguments.run_id, "versions": [as_json(origin) for origin in origins]})
    else:
        printing.print_text(_text_of_tables(arguments.run_id, origins))
    return EXIT_OK


def _text_of_tables(run_id: str, origins: Sequence[Origin]) -> Iterator[str]:
    yield printing.printable(f"run {run_id}")
    if not origins:
        yield "  committed none of the versions that were read"
    for origin in origins:
        parts = [
            display_name(origin.name),
            origin.named_action,
            format_time(origin.timestamp),
            *origin_notes(origin),
        ]
        parts += [
            f"{name} {value}" for name, value in (("asset", origin.asset), ("partition", origin.partition)) if value
        ]
        yield printing.printable(f"  committed {'  '.join(parts)}")
        yield from _input_lines(tuple(source.name for source in origin.sources))


def _print_from_instance(run_id: str, is_json: bool) -> int:
    if find_spec("dagster") is None:
        raise InvalidInput(
            "Dagster is not installed, so no instance can be read; name the tables that the run may have written: "
            f"lance-assets run {run_id} URI"
        )
    if not os.environ.get("DAGSTER_HOME"):
        raise InvalidInput(
            "DAGSTER_HOME is not set; set it to the directory of the Dagster instance, or name the tables that the run "
            f"may have written: lance-assets run {run_id} URI"
        )
    # Importing Dagster takes a second, and nothing else here needs it.
    from lance_assets.cli.recorded import print_recorded_run

    print_recorded_run(run_id, is_json=is_json)
    return EXIT_OK


def _input_lines(names: Sequence[VersionName]) -> Iterator[str]:
    for name in names:
        yield printing.printable(f"    read {display_name(name)}")
