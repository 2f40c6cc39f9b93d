"""Invariants of a hammered table, whatever was killed. Each reported intent is in exactly one version, the same one in
every report, and no intent is in two. Versions are dense. Both libraries read the rows that the operations leave,
applied in the order of their versions.

Start with `find_violations`, which describes every violation.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import lance

from lance_core.fsck.report import Severity
from lance_core.operations import ReserveFragments
from tests.histories.hammer import HammerResult, Size, assign_work
from tests.histories.hammer_locations import TableLocation
from tests.histories.hammer_writer import WORK_PROPERTY, WorkItem


def find_violations(location: TableLocation, size: Size, result: HammerResult) -> list[str]:
    violations = list(result.problems)
    reported_versions: dict[str, set[int]] = {}
    for report in result.results:
        reported_versions.setdefault(report.intent, set())
        if report.version is not None:
            reported_versions[report.intent].add(report.version)
    violations += [
        f"{intent} was reported in versions {sorted(versions)}"
        for intent, versions in reported_versions.items()
        if len(versions) > 1
    ]
    work_by_intent = {work.intent: work for work_items in assign_work(size) for work in work_items}
    violations += [f"{intent} was never reported" for intent in work_by_intent if intent not in reported_versions]
    table = location.open_table()
    history = table.versions()
    numbers = [info.version for info in history]
    if numbers != list(range(1, len(numbers) + 1)):
        violations.append(f"versions are not dense: {numbers}")
    versions_by_intent: dict[str, list[int]] = {}
    for info in history[1:]:
        if info.operation == ReserveFragments.name:
            continue  # a compaction reserves fragment ids before it commits
        intent = info.properties.get(WORK_PROPERTY, f"{info.operation} without an intent")
        versions_by_intent.setdefault(intent, []).append(info.version)
    for intent in sorted({*work_by_intent, *versions_by_intent}):
        versions, reported = versions_by_intent.get(intent, []), reported_versions.get(intent, set())
        if len(versions) > 1 or intent not in work_by_intent or (reported and versions != sorted(reported)):
            violations.append(f"{intent} is in versions {versions}, but {sorted(reported)} was reported")
    expected = _expected_rows(
        work_by_intent[intent]
        for _, intent in sorted(
            (versions[0], intent) for intent, versions in versions_by_intent.items() if intent in work_by_intent
        )
    )
    for reader, rows in _read_rows(location):
        violations += [f"{reader} reads {difference}" for difference in _find_differences(expected, rows)]
    errors = [each for each in table.fsck().findings if each.severity is not Severity.INFO]
    return violations + [f"fsck: {each}" for each in errors]


def _expected_rows(work_items: Iterable[WorkItem]) -> dict[int, int]:
    """Apply the operations in the order of their versions."""
    rows: dict[int, int] = {}
    for work in work_items:
        match work.verb:
            case "append" | "upsert":
                rows[work.row] = work.value
            case "update":
                rows[work.row] += 1
            case "delete":
                del rows[work.row]
    return rows


def _read_rows(location: TableLocation) -> list[tuple[str, Sequence[tuple[int, int]]]]:
    dataset = lance.dataset(location.uri, storage_options=dict(location.faultless_options) or None)
    return [
        (reader, list(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)))
        for reader, rows in (("Table", location.open_table().to_table()), ("pylance", dataset.to_table()))
    ]


def _find_differences(expected: Mapping[int, int], rows: Sequence[tuple[int, int]]) -> list[str]:
    actual_counts, expected_counts = Counter(rows), Counter(expected.items())
    return [
        f"row {row} {actual_counts[row]} times, not {expected_counts[row]}"
        for row in sorted({*actual_counts, *expected_counts})
        if actual_counts[row] != expected_counts[row]
    ]
