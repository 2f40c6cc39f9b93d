"""`lance-assets history URI`: the versions of a table, newest first, with the run that committed each."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from lance_assets.cli import EXIT_OK, printing
from lance_assets.cli.printing import Column, format_change, format_number, format_time
from lance_assets.cli.table_names import TABLE_HELP, open_named
from lance_assets.common.text import format_count
from lance_assets.lineage.ancestry_reader import FIRST_DETACHED, build_origin
from lance_assets.lineage.model import Origin, Unknown, VersionName
from lance_assets.lineage.render import as_json, origin_notes, short_run_id, without_credentials
from lance_core import Corrupt, InvalidInput, NotFound, Table, Unsupported, VersionInfo
from lance_core.operations import Clone, Restore
from lance_core.shell import Access

HELP = "show the versions of a table, newest first, with their runs"
LIMIT = 20
_COLUMNS = (
    Column("version", is_number=True, is_required=True),
    Column("when (UTC)", is_required=True),
    Column("action", is_required=True),
    Column("rows", is_number=True),
    Column("change", is_number=True),
    Column("run"),
    Column("asset"),
    Column("partition"),
    Column("engine"),
    Column("notes"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI", help=f"{TABLE_HELP}; shows this version and older ones")
    parser.add_argument(
        "--limit", metavar="N", type=int, default=LIMIT, help=f"show the newest N versions (default: {LIMIT}; 0: all)"
    )


def run(arguments: argparse.Namespace, access: Access) -> int:
    if arguments.limit < 0:
        raise InvalidInput(f"--limit must be at least 0, not {arguments.limit}; 0 shows all versions")
    table = open_named(arguments.table, access).table
    versions = _versions_up_to(table)
    shown = versions[-arguments.limit :] if arguments.limit else versions
    origins = [*_load_origins(table, shown)][::-1]
    if arguments.json:
        document = {
            "uri": without_credentials(table.uri),
            "versions": len(versions),
            "history": [as_json(origin) for origin in origins],
        }
        printing.print_json(document)
        return EXIT_OK
    omitted = f"; the newest {len(shown):,}, --limit 0 for all" if len(shown) < len(versions) else ""
    printing.print_text(
        [f"{printing.printable(without_credentials(table.uri))}: {format_count(len(versions), 'version')}{omitted}", ""]
    )
    printing.print_text(printing.table_lines(_COLUMNS, map(_table_row, origins), printing.terminal_width()))
    return EXIT_OK


def _versions_up_to(table: Table) -> Sequence[int]:
    """Return the versions up to the one that the table is at. For a detached version, return the versions up to its
    base, then the detached version."""
    versions = table.version_numbers()
    if table.version < FIRST_DETACHED:
        return [version for version in versions if version <= table.version]
    transaction = table.transaction()
    base = transaction.read_version if transaction else 0
    return [version for version in versions if version <= base] + [table.version]


def _load_origins(table: Table, versions: Sequence[int]) -> Iterator[Origin | Unknown]:
    """Yield the origins, oldest first."""
    infos = _load_infos(table, [version for version in versions if version < FIRST_DETACHED])
    for version in versions:
        name = VersionName(table.uri, version)
        try:
            info = infos.get(version) or table.version_info(version)
            refers_to_version = info.operation in (Restore.name, Clone.name)
            transaction = table.transaction(version) if refers_to_version else None
            yield build_origin(name, info, transaction.operation if transaction else None)
        except NotFound:  # removed by a concurrent cleanup
            continue
        except (Corrupt, Unsupported) as error:
            yield Unknown(name, f"cannot be read: {error}")


def _load_infos(table: Table, versions: Sequence[int]) -> Mapping[int, VersionInfo]:
    """Read the versions in one pass, which also reads the manifests of all newer versions. Return an empty mapping if
    reading the versions one by one opens fewer manifests, or if a manifest is damaged."""
    if not versions or versions[-1] + len(versions) < table.version_numbers()[-1]:
        return {}
    try:
        return {info.version: info for info in table.versions(since=versions[0] - 1)}
    except (Corrupt, Unsupported):
        return {}


def _table_row(facts: Origin | Unknown) -> Sequence[str]:
    if isinstance(facts, Unknown):
        return (str(facts.name.version), "", "?", "", "", "", "", "", "", facts.reason)
    change = " ".join(format_change(each) for each in (facts.rows_added, -(facts.rows_removed or 0)) if each)
    return (
        str(facts.name.version),
        format_time(facts.timestamp),
        facts.named_action,
        format_number(facts.rows),
        change,
        short_run_id(facts.run_id),
        facts.asset or "",
        facts.partition or "",
        facts.writer if facts.is_foreign else "",
        "; ".join(origin_notes(facts)),
    )
