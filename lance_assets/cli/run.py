"""`lance-assets run RUN_ID`: the versions that a run of Dagster made, and what it read for them.

Asked of the Dagster instance at DAGSTER_HOME; or, where tables are named, of these alone, and then nothing of Dagster
is loaded.
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

HELP = "the versions that a Dagster run made, and what it read"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="the whole id of the run")
    parser.add_argument(
        "tables", metavar="URI", nargs="*",
        help=f"tables that it may have written; {TABLE_HELP}. Without any, the Dagster instance at DAGSTER_HOME is asked",
    )  # fmt: skip
    parser.add_argument(
        "--limit", metavar="N", type=int, default=VERSIONS_READ_MAX,
        help=f"look at the newest N versions of each table, {VERSIONS_READ_MAX} if not told; 0: all",
    )  # fmt: skip


def run(arguments: argparse.Namespace, access: Access) -> int:
    if arguments.limit < 0:
        raise InvalidInput(f"--limit {arguments.limit}: the newest so many, or 0 for all")
    if not arguments.tables:
        return _print_from_instance(arguments.run_id, arguments.json)
    found = [
        origin
        for text in arguments.tables
        for origin in versions_of_run(
            open_named(text, access).table, arguments.run_id, versions_max=arguments.limit or None
        )
    ]
    if arguments.json:
        printing.print_json({"run_id": arguments.run_id, "versions": [as_json(each) for each in found]})
    else:
        printing.print_text(_text_of_tables(arguments.run_id, found))
    return EXIT_OK


def _text_of_tables(run_id: str, found: Sequence[Origin]) -> Iterator[str]:
    yield printing.printable(f"run {run_id}")
    if not found:
        yield "  made none of the versions that were looked at"
    for origin in found:
        told = [display_name(origin.name), origin.operation, format_time(origin.timestamp), *origin_notes(origin)]
        told += [
            f"{name} {value}" for name, value in (("asset", origin.asset), ("partition", origin.partition)) if value
        ]
        yield printing.printable(f"  made {'  '.join(told)}")
        yield from _input_lines(tuple(source.name for source in origin.sources))


def _print_from_instance(run_id: str, is_json: bool) -> int:
    if find_spec("dagster") is None:
        raise InvalidInput(
            "Dagster is not installed here, so nobody can be asked about the run; name the tables that it may have "
            f"written: lance-assets run {run_id} URI"
        )
    if not os.environ.get("DAGSTER_HOME"):
        raise InvalidInput(
            "DAGSTER_HOME is not set, so there is no Dagster instance to ask; set it to the instance's directory, or "
            f"name the tables that the run may have written: lance-assets run {run_id} URI"
        )
    # Dagster takes a second to load, and nothing else here needs it.
    from lance_assets.cli.recorded import print_recorded_run

    print_recorded_run(run_id, is_json=is_json)
    return EXIT_OK


def _input_lines(names: Sequence[VersionName]) -> Iterator[str]:
    for name in names:
        yield printing.printable(f"    read {display_name(name)}")
