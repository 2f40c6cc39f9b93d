"""`lance-assets doctor URI`: problems of a table and recommendations, each with the command or call that remedies it.

`fsck` finds the problems; `advice.py` makes the recommendations.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from lance_assets.cli import EXIT_FOUND, EXIT_OK, printing
from lance_assets.cli.advice import Advice, collect_advice
from lance_assets.cli.table_names import open_named, parse_name
from lance_assets.lineage.render import without_credentials
from lance_core import Corrupt, InvalidInput, NotFound, Table, Unsupported
from lance_core.shell import Access, check_uri

HELP = "find problems of a table and recommend maintenance, with a remedy for each"
_SAME_SHOWN = 20
_SUPERSEDED_RULE = "index_behind"
"""Omitted if the same is reported with the number of rows."""
_ORDER = ("error", "warning", "advice", "info")


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Problem or recommendation, with its remedy."""

    severity: str
    rule: str
    problem: str
    remedy: str
    path: str | None = None
    version: int | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="URI", help="table, or branch of a table: URI@branch:")
    parser.add_argument("--head", action="store_true", help="check the newest version only, which is faster")


def run(arguments: argparse.Namespace, access: Access) -> int:
    table, uri, refusal = _open_table(arguments.table, access)
    report = Table.check(
        uri,
        "head" if arguments.head else "all",
        storage_options=access.storage_options,
        manifest_store=access.manifest_store,
        bases=access.bases,
    )
    findings = [
        DoctorFinding(
            problem.severity.value,
            problem.rule,
            problem.what,
            _remedy_text(
                problem.repair, uri, problem.automatic_repair.kind.value if problem.automatic_repair else None
            ),
            problem.path,
            problem.version,
        )
        for problem in report.findings
    ]
    if table is not None and report.is_sound:
        advice = collect_advice(table, access, now=datetime.now(UTC), old_versions=not arguments.head)
        findings += map(_finding_of, advice)
        if any(finding.rule == "index_lags" for finding in findings):
            findings = [finding for finding in findings if finding.rule != _SUPERSEDED_RULE]
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))
    summary = str(report).partition("\n")[0]
    if arguments.json:
        printing.print_json(_as_json(uri, report.is_sound, findings))
    else:
        printing.print_text(_as_text(summary, findings, refusal))
    return EXIT_FOUND if any(finding.severity != "info" for finding in findings) else EXIT_OK


def _open_table(text: str, access: Access) -> tuple[Table | None, str, str | None]:
    """Open the newest version, and return it with its location and the error if it cannot be opened, since a damaged
    table is checked too."""
    try:
        opened = open_named(text, access)
    except (Corrupt, Unsupported) as error:
        check_uri(text)
        return None, _locate_table(text, access), str(error)
    if not opened.is_newest:
        raise InvalidInput(f"{text!r} names a version, but doctor checks a table; omit the version")
    return opened.table, opened.table.uri, None


def _locate_table(text: str, access: Access) -> str:
    """Return the location of a table whose newest version is damaged."""
    for parsed in reversed(parse_name(text)):
        if Table.exists(parsed.uri, access.storage_options, manifest_store=access.manifest_store):
            return parsed.uri if parsed.branch is None else f"{parsed.uri}/tree/{parsed.branch}"
    raise NotFound(f"there is no Lance table at {text}; check the path")


def _remedy_text(repair: str, uri: str, kind: str | None) -> str:
    if kind is None:
        return repair
    return f"{repair} Or: python -m lance_core fsck {shlex.quote(without_credentials(uri))} --repair {kind} --apply"


def _finding_of(advice: Advice) -> DoctorFinding:
    return DoctorFinding("advice" if advice.is_actionable else "info", advice.rule, advice.problem, advice.remedy)


def _as_text(summary: str, findings: Sequence[DoctorFinding], refusal: str | None) -> Iterator[str]:
    yield printing.printable(summary)
    if refusal is not None:
        yield printing.printable(f"The table cannot be opened: {refusal}")
    for severity, group in groupby(findings, key=lambda each: each.severity):
        yield f"\n{severity}"
        for rule, same in groupby(sorted(group, key=lambda each: each.rule), key=lambda each: each.rule):
            same_rule = [*same]
            yield f"  {rule}"
            for finding in same_rule[:_SAME_SHOWN]:
                path = f"{finding.path}: " if finding.path else ""
                version = f" (version {finding.version})" if finding.version else ""
                yield printing.printable(f"    {path}{finding.problem}{version}")
                yield printing.printable(f"      -> {finding.remedy}")
            if len(same_rule) > _SAME_SHOWN:
                yield f"    … and {len(same_rule) - _SAME_SHOWN:,} more of this rule, with --json"


def _as_json(uri: str, is_sound: bool, findings: Sequence[DoctorFinding]) -> dict[str, object]:
    return {
        "uri": without_credentials(uri),
        "sound": is_sound,
        "findings": [
            {
                "severity": finding.severity,
                "rule": finding.rule,
                "path": finding.path,
                "version": finding.version,
                "what": finding.problem,
                "mend": finding.remedy,
            }
            for finding in findings
        ],
    }
