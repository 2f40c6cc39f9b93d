"""Command line of fsck: `python -m lance_core fsck URI` examines a table, and applies the repairs that the user chose.

The exit code is 0 if no action is needed, 1 if there are findings, and 2 if the examination failed. Nothing is written
without `--apply`. Every user of a machine can read a command line, so secrets are not accepted on it: an option names
the environment variable that contains the value.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from lance_core import shell, validation
from lance_core.errors import InvalidInput, LanceError
from lance_core.format.ids import Version
from lance_core.fsck.data_check import DataCheck
from lance_core.fsck.examine import examine
from lance_core.fsck.report import Extent, Finding, Repair, RepairKind, Report
from lance_core.progress import log_reports, reporting
from lance_core.versions.location import Location, locate

HELP = "examine a table, and repair what can be repaired"
DESCRIPTION = (
    "Examine a table: report what contradicts the format or itself, how severe that is, and what to do. Nothing is "
    "written unless repairs are chosen with --repair and --apply is given. The exit code is 0 if no action is needed, "
    "1 if there are findings, 2 if the examination failed."
)
CLEAN, FOUND, FAILED = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("uri", metavar="URI", help="the table; for a branch, its directory below tree/")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--all", action="store_true", help="all versions, orphans and references (the default)")
    extent.add_argument("--head", action="store_true", help="the newest version only")
    extent.add_argument("--version", metavar="N", type=int, help="this version only")
    shell.add_access(parser)
    add("--data", action="store_true", help="also read every file and compare it with its recorded checksum")
    add("--resume", metavar="FILE", help="with --data: local file that lets an interrupted run continue")
    add(
        "--source", metavar="URI", action="append", default=[],
        help="with --repair data-files: a clone or a directory that may have the same files; repeatable",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON object, for programs")
    kinds = [kind.value for kind in RepairKind]
    add("--repair", metavar="KIND", action="append", choices=kinds, default=[], help=f"{', '.join(kinds)}; repeatable")
    add("--apply", action="store_true", help="apply the chosen repairs, which are only listed otherwise")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.apply and not arguments.repair:
            raise InvalidInput("--apply needs repairs to apply; choose them with --repair")
        location, extent = _location(arguments, os.environ), _extent(arguments)
        data = _data_check(arguments)
        with reporting(log_reports(_print_progress) if data else False, "fsck"):
            report = examine(location, extent, data)
    except LanceError as error:
        return _report_failure(error)
    chosen = {RepairKind(kind) for kind in arguments.repair}
    fixes = sorted(
        (
            each.automatic_repair
            for each in report.findings
            if each.automatic_repair and each.automatic_repair.kind in chosen
        ),
        key=_repair_order,
    )
    if not arguments.apply:
        _print_report(arguments, report, [(fix, None) for fix in fixes], bool(chosen))
        return CLEAN if report.is_clean else FOUND
    applied = [(fix, _apply_repair(fix)) for fix in fixes]
    try:
        with reporting(log_reports(_print_progress) if data else False, "fsck"):
            new_report = examine(location, extent, data)
    except LanceError as error:
        return _report_failure(error)
    _print_report(arguments, new_report, applied, True)
    return CLEAN if new_report.is_clean else FOUND


def _report_failure(error: LanceError) -> int:
    print(_printable(f"the examination failed: {error}"), file=sys.stderr)
    return FAILED


def _apply_repair(fix: Repair) -> str:
    try:
        return fix.apply()
    except LanceError as error:
        return f"not applied: {error}"


def _repair_order(fix: Repair) -> int:
    return [*RepairKind].index(fix.kind)


# Arguments


def _location(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Location:
    shell.check_uri(arguments.uri)
    access = shell.access(arguments, environment)
    return locate(
        arguments.uri,
        storage_options=access.storage_options,
        bases=access.bases,
        manifest_store=access.manifest_store,
        verify=access.verify,
        trusted=access.trusted,
    )


def _extent(arguments: argparse.Namespace) -> Extent | Version:
    if arguments.version is not None:
        return validation.check_version_number(arguments.version)
    return Extent.HEAD if arguments.head else Extent.ALL


def _data_check(arguments: argparse.Namespace) -> DataCheck | None:
    for uri in arguments.source:
        shell.check_uri(uri)
    restores = RepairKind.DATA_FILES.value in arguments.repair
    if restores != bool(arguments.source):
        raise InvalidInput("--repair data-files and --source belong together: the source has the copies of the files")
    if not arguments.data and not restores and RepairKind.CHECKSUMS.value not in arguments.repair:
        if arguments.resume:
            raise InvalidInput("--resume belongs to the verification of files; add --data")
        return None
    return DataCheck(arguments.resume, sources=tuple(arguments.source))


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Output


_Repairs = Sequence[tuple[Repair, str | None]]


def _print_report(arguments: argparse.Namespace, report: Report, repairs: _Repairs, chosen: bool) -> None:
    if arguments.json:
        print(_as_json(report, repairs))
    else:
        print(_printable("\n".join(_as_text(report, repairs, chosen))))


def _printable(text: str) -> str:
    """Return text that cannot control a terminal: the names in a damaged table are untrusted."""
    return "\n".join(map(shell.plain, text.split("\n")))


def _as_text(report: Report, repairs: _Repairs, chosen: bool) -> Iterator[str]:
    if repairs:
        applied = any(outcome is not None for _fix, outcome in repairs)
        yield "Applied:" if applied else "To be applied with --apply (nothing was changed):"
        for fix, outcome in repairs:
            yield f"  {fix.kind.value}: {fix.what}" + ("" if outcome is None else f"\n    {outcome}")
        yield ""
    elif chosen:
        yield "There is nothing of that kind to repair.\n"
    yield str(report).partition("\n")[0]
    for severity, group in groupby(report.findings, key=lambda finding: finding.severity):
        yield f"\n{severity.value}"
        for rule, findings in groupby(
            sorted(group, key=lambda finding: finding.rule), key=lambda finding: finding.rule
        ):
            yield f"  {rule}"
            for finding in findings:
                yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"    {finding.path}" + ("" if finding.version is None else f" (version {finding.version})")
    yield f"      {finding.what}."
    yield f"      {finding.repair}" + (
        f" Or: --repair {finding.automatic_repair.kind.value}" if finding.automatic_repair else ""
    )


def _as_json(report: Report, repairs: _Repairs) -> str:
    content = {
        "uri": report.uri,
        "sound": report.is_sound,
        "clean": report.is_clean,
        "versions": list(report.versions),
        "files": report.files,
        "verified_files": report.verified_files,
        "chain": {"verified": list(report.chain.verified), "begins": list(report.chain.begins)},
        "findings": [
            {
                "severity": finding.severity.value,
                "rule": finding.rule,
                "path": finding.path,
                "version": finding.version,
                "what": finding.what,
                "repair": finding.repair,
                "kind": finding.automatic_repair.kind.value if finding.automatic_repair else None,
            }
            for finding in report.findings
        ],
        "repairs": [{"kind": fix.kind.value, "what": fix.what, "done": outcome} for fix, outcome in repairs],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)
