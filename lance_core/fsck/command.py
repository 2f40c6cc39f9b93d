"""`python -m lance_core fsck URI`: a table looked over from a shell, and the repairs that somebody chose.

It ends with 0 where nobody has to do anything, 1 where something was found, 2 where it could not look. Nothing is
written without `--apply`. A command line is seen by everybody on the machine, so secrets are not taken from it: an
option names the variable of the environment that has the value.
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
from lance_core.fsck.examine import Extent, examine
from lance_core.fsck.report import Finding, Repair, RepairKind, Report
from lance_core.versions.location import Location, locate

HELP = "look a table over, and repair what can be repaired"
DESCRIPTION = (
    "Look a table over: what contradicts the format or itself, how bad that is, and what to do. Nothing is written, "
    "unless repairs are chosen with --repair and --apply is given. Ends with 0 where nobody has to do anything, 1 "
    "where something was found, 2 where it could not look."
)
CLEAN, FOUND, FAILED = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("uri", metavar="URI", help="the table; of a branch, its directory below tree/")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--all", action="store_true", help="all versions, orphans and references (the default)")
    extent.add_argument("--head", action="store_true", help="the newest version alone")
    extent.add_argument("--version", metavar="N", type=int, help="this version alone")
    shell.add_access(parser)
    add("--json", action="store_true", help="one object, for programs")
    kinds = [kind.value for kind in RepairKind]
    add("--repair", metavar="KIND", action="append", choices=kinds, default=[], help=f"{', '.join(kinds)}; repeatable")
    add("--apply", action="store_true", help="do the chosen repairs, which are only told otherwise")


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.apply and not arguments.repair:
            raise InvalidInput("--apply does what --repair chooses; choose something")
        location, extent = _location(arguments, os.environ), _extent(arguments)
        report = examine(location, extent)
    except LanceError as error:
        return _report_failure(error)
    chosen = {RepairKind(kind) for kind in arguments.repair}
    mends = sorted(
        (
            each.automatic_repair
            for each in report.findings
            if each.automatic_repair and each.automatic_repair.kind in chosen
        ),
        key=_repair_order,
    )
    if not arguments.apply:
        _print_report(arguments, report, [(mend, None) for mend in mends], bool(chosen))
        return CLEAN if report.is_clean else FOUND
    done = [(mend, _apply_repair(mend)) for mend in mends]
    try:
        after = examine(location, extent)
    except LanceError as error:
        return _report_failure(error)
    _print_report(arguments, after, done, True)
    return CLEAN if after.is_clean else FOUND


def _report_failure(error: LanceError) -> int:
    print(_printable(f"could not look: {error}"), file=sys.stderr)
    return FAILED


def _apply_repair(mend: Repair) -> str:
    try:
        return mend.apply()
    except LanceError as error:
        return f"not done: {error}"


def _repair_order(mend: Repair) -> int:
    return [*RepairKind].index(mend.kind)


# What is asked


def _location(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Location:
    shell.check_uri(arguments.uri)
    access = shell.access(arguments, environment)
    return locate(
        arguments.uri,
        storage_options=access.storage_options,
        bases=access.bases,
        manifest_store=access.manifest_store,
    )


def _extent(arguments: argparse.Namespace) -> Extent | Version:
    if arguments.version is not None:
        return validation.check_version_number(arguments.version)
    return Extent.HEAD if arguments.head else Extent.ALL


# What is answered


_Repairs = Sequence[tuple[Repair, str | None]]


def _print_report(arguments: argparse.Namespace, report: Report, repairs: _Repairs, chosen: bool) -> None:
    if arguments.json:
        print(_as_json(report, repairs))
    else:
        print(_printable("\n".join(_as_text(report, repairs, chosen))))


def _printable(text: str) -> str:
    """A damaged table is anybody's bytes: its names must not steer a terminal."""
    return "\n".join(map(shell.plain, text.split("\n")))


def _as_text(report: Report, repairs: _Repairs, chosen: bool) -> Iterator[str]:
    if repairs:
        applied = any(said is not None for _mend, said in repairs)
        yield "Done:" if applied else "To be done, if --apply is added (nothing was changed):"
        for mend, said in repairs:
            yield f"  {mend.kind.value}: {mend.what}" + ("" if said is None else f"\n    {said}")
        yield ""
    elif chosen:
        yield "There is nothing of that kind to repair.\n"
    yield str(report).partition("\n")[0]
    for severity, group in groupby(report.findings, key=lambda finding: finding.severity):
        yield f"\n{severity.value}"
        for rule, same in groupby(sorted(group, key=lambda finding: finding.rule), key=lambda finding: finding.rule):
            yield f"  {rule}"
            for finding in same:
                yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"    {finding.path}" + ("" if finding.version is None else f" (version {finding.version})")
    yield f"      {finding.what}."
    yield f"      {finding.repair}" + (
        f" Or: --repair {finding.automatic_repair.kind.value}" if finding.automatic_repair else ""
    )


def _as_json(report: Report, repairs: _Repairs) -> str:
    found = {
        "uri": report.uri,
        "sound": report.is_sound,
        "clean": report.is_clean,
        "versions": list(report.versions),
        "files": report.files,
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
        "repairs": [{"kind": mend.kind.value, "what": mend.what, "done": said} for mend, said in repairs],
    }
    return json.dumps(found, indent=1, ensure_ascii=False)
