"""`lance-assets doctor URI`: what is wrong with a table, and what would do it good, each with the command or call that
mends it. The first is fsck's, the second in `collect_advice.py`.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from lance_assets.cli import EXIT_OK, EXIT_FOUND, printing
from lance_assets.cli.advice import Advice, collect_advice
from lance_assets.cli.table_names import open_named, parse_name
from lance_assets.lineage.render import without_credentials
from lance_core import Corrupt, InvalidInput, NotFound, Table, Unsupported
from lance_core.shell import Access, check_uri

HELP = "what is wrong with a table, what would do it good, and what mends each"
_SAME_SHOWN = 20
_SUPERSEDED_RULE = "index_behind"
"""Where it is said with rows, it is not said again without."""
_ORDER = ("error", "warning", "advice", "info")


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    severity: str
    rule: str
    problem: str
    remedy: str
    path: str | None = None
    version: int | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI", help="a table, or a branch of it: URI@branch:")
    parser.add_argument("--head", action="store_true", help="look at the newest version alone, which is quick")


def run(arguments: argparse.Namespace, access: Access) -> int:
    table, uri, refusal = _open_table(arguments.table, access)
    report = Table.check(
        uri,
        "head" if arguments.head else "all",
        storage_options=access.storage_options,
        manifest_store=access.manifest_store,
        bases=access.bases,
    )
    said = [
        DoctorFinding(
            each.severity.value,
            each.rule,
            each.what,
            _remedy_text(each.repair, uri, each.automatic_repair.kind.value if each.automatic_repair else None),
            each.path,
            each.version,
        )
        for each in report.findings
    ]
    if table is not None and report.is_sound:
        said += map(_finding_of, collect_advice(table, access, now=datetime.now(UTC), old_versions=not arguments.head))
        if any(each.rule == "index_lags" for each in said):
            said = [each for each in said if each.rule != _SUPERSEDED_RULE]
    said.sort(key=lambda each: _ORDER.index(each.severity))
    summary = str(report).partition("\n")[0]
    if arguments.json:
        printing.print_json(_as_json(uri, report.is_sound, said))
    else:
        printing.print_text(_as_text(summary, said, refusal))
    return EXIT_FOUND if any(each.severity != "info" for each in said) else EXIT_OK


def _open_table(text: str, access: Access) -> tuple[Table | None, str, str | None]:
    """The table at its newest version, and where it is. One that cannot be opened is looked at all the same."""
    try:
        named = open_named(text, access)
    except (Corrupt, Unsupported) as error:
        check_uri(text)
        return None, _locate_table(text, access), str(error)
    if not named.is_newest:
        raise InvalidInput(f"{text!r} is one version, and the doctor looks at a table; name it without the version")
    return named.table, named.table.uri, None


def _locate_table(text: str, access: Access) -> str:
    """Of a table whose newest version is damaged: what was typed, or what is before the last `@`."""
    for reading in reversed(parse_name(text)):
        if Table.exists(reading.uri, access.storage_options, manifest_store=access.manifest_store):
            return reading.uri if reading.branch is None else f"{reading.uri}/tree/{reading.branch}"
    raise NotFound(f"there is no Lance table at {text}; check the path")


def _remedy_text(repair: str, uri: str, kind: str | None) -> str:
    if kind is None:
        return repair
    return f"{repair} Or: python -m lance_core fsck {shlex.quote(without_credentials(uri))} --repair {kind} --apply"


def _finding_of(each: Advice) -> DoctorFinding:
    return DoctorFinding("advice" if each.is_actionable else "info", each.rule, each.problem, each.remedy)


def _as_text(summary: str, said: Sequence[DoctorFinding], refusal: str | None) -> Iterator[str]:
    yield printing.printable(summary)
    if refusal is not None:
        yield printing.printable(f"It cannot be opened: {refusal}")
    for severity, group in groupby(said, key=lambda each: each.severity):
        yield f"\n{severity}"
        for rule, same in groupby(sorted(group, key=lambda each: each.rule), key=lambda each: each.rule):
            lines = [*same]
            yield f"  {rule}"
            for each in lines[:_SAME_SHOWN]:
                where = f"{each.path}: " if each.path else ""
                version = f" (version {each.version})" if each.version else ""
                yield printing.printable(f"    {where}{each.problem}{version}")
                yield printing.printable(f"      -> {each.remedy}")
            if len(lines) > _SAME_SHOWN:
                yield f"    … and {len(lines) - _SAME_SHOWN:,} more of these, with --json"


def _as_json(uri: str, is_sound: bool, said: Sequence[DoctorFinding]) -> dict[str, object]:
    return {
        "uri": without_credentials(uri),
        "sound": is_sound,
        "findings": [
            {
                "severity": each.severity,
                "rule": each.rule,
                "path": each.path,
                "version": each.version,
                "what": each.problem,
                "mend": each.remedy,
            }
            for each in said
        ],
    }
