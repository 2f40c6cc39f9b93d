"""`lance-assets history URI`: the versions of a table, newest first, and which run made each."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.printing import Column, format_number, format_change, format_time
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count
from lance_assets.lineage.ancestry_reader import FIRST_DETACHED, build_origin
from lance_assets.lineage.model import Origin, Unknown, VersionName
from lance_assets.lineage.render import as_json, origin_notes, short_run_id, without_credentials
from lance_core import Corrupt, InvalidInput, NotFound, Table, Unsupported, VersionInfo
from lance_core.operations import Clone, Restore
from lance_core.shell import Access

HELP = "its versions, newest first, and which run made each"
LIMIT = 20
_COLUMNS = (
    Column("version", is_number=True, is_required=True),
    Column("when (UTC)", is_required=True),
    Column("operation", is_required=True),
    Column("rows", is_number=True),
    Column("change", is_number=True),
    Column("run"),
    Column("asset"),
    Column("partition"),
    Column("notes"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI", help=f"{TABLE_HELP}; from this version back")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"the newest N, {LIMIT} if not told; 0: all"
    )


def run(arguments: argparse.Namespace, access: Access) -> int:
    if arguments.limit < 0:
        raise InvalidInput(f"--limit {arguments.limit}: the newest so many, or 0 for all")
    table = open_named(arguments.table, access).table
    versions = _versions_up_to(table)
    chosen = versions[-arguments.limit :] if arguments.limit else versions
    found = [*_load_origins(table, chosen)][::-1]
    if arguments.json:
        told = {
            "uri": without_credentials(table.uri),
            "versions": len(versions),
            "history": [as_json(each) for each in found],
        }
        printing.print_json(told)
        return EXIT_OK
    left = f"; the newest {len(chosen):,}, --limit 0 for all" if len(chosen) < len(versions) else ""
    printing.print_text(
        [f"{printing.printable(without_credentials(table.uri))}: {format_count(len(versions), 'version')}{left}", ""]
    )
    printing.print_text(printing.table_lines(_COLUMNS, map(_table_row, found), printing.terminal_width()))
    return EXIT_OK


def _versions_up_to(table: Table) -> Sequence[int]:
    """The versions up to the one that was asked for; before one beside the line, those up to what it was made upon."""
    versions = table.version_numbers()
    if table.version < FIRST_DETACHED:
        return [version for version in versions if version <= table.version]
    made_by = table.transaction()
    return [version for version in versions if made_by and version <= made_by.read_version] + [table.version]


def _load_origins(table: Table, versions: Sequence[int]) -> Iterator[Origin | Unknown]:
    """Oldest first."""
    infos = _load_infos(table, [version for version in versions if version < FIRST_DETACHED])
    for version in versions:
        name = VersionName(table.uri, version)
        try:
            info = infos.get(version) or table.version_info(version)
            names_another = info.operation in (Restore.name, Clone.name)
            made_by = table.transaction(version) if names_another else None
            yield build_origin(name, info, made_by.operation if made_by else None)
        except NotFound:  # a cleanup was faster
            continue
        except (Corrupt, Unsupported) as error:
            yield Unknown(name, f"cannot be read: {error}")


def _load_infos(table: Table, versions: Sequence[int]) -> Mapping[int, VersionInfo]:
    """Each manifest is read once then; but so are all that follow, and one that is damaged stops it. None are read
    where that would be more."""
    if not versions or versions[-1] + len(versions) < table.version_numbers()[-1]:
        return {}
    try:
        return {info.version: info for info in table.versions(since=versions[0] - 1)}
    except (Corrupt, Unsupported):
        return {}


def _table_row(facts: Origin | Unknown) -> Sequence[str]:
    if isinstance(facts, Unknown):
        return (str(facts.name.version), "", "?", "", "", "", "", "", facts.reason)
    change = " ".join(format_change(each) for each in (facts.rows_added, -(facts.rows_removed or 0)) if each)
    return (
        str(facts.name.version),
        format_time(facts.timestamp),
        facts.operation,
        format_number(facts.rows),
        change,
        short_run_id(facts.run_id),
        facts.asset or "",
        facts.partition or "",
        "; ".join(origin_notes(facts)),
    )
