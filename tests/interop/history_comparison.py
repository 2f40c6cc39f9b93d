"""History comparison: the oracle that compares the three tables of one program at every version.

Both libraries read each table and must return the same: rows in order with their types, ids, addresses and versions,
schema and metadata (`history_reader.py`). Transactions and manifests of the tables are compared message by message,
until an allowed difference gives the rows other addresses (`allowed_differences.py`). From there on, and until the rows
are overwritten, the tables must have the same rows with the same ids and lineage, in any order.
"""

from collections import Counter
from difflib import unified_diff

import pyarrow as pa

from lance_core.format import field_ids
from tests.interop.allowed_differences import (
    are_still_relocated,
    comparable_manifests,
    relocation_reason,
    user_settings,
)
from tests.interop.history_reader import BranchHistory, read_references, steps_by_version
from tests.interop.program_runner import LibraryDifference, ProgramRun
from tests.interop.programs import Step
from tests.interop.transaction_summary import INSERTED_KEYS, summarize_transaction


def compare_histories(run: ProgramRun) -> Counter[str]:
    """Return the number of compared versions and of each allowed difference."""
    counts: Counter[str] = Counter()
    theirs = BranchHistory(run.tables["theirs"])
    expected = read_references(theirs)
    for writer in ("ours", "mixed"):
        other = BranchHistory(run.tables[writer])
        (_compare_steps if run.program.with_indices else _compare_versions)(run, theirs, other, counts)
        references = read_references(other)
        if run.program.with_indices:  # a step that makes no version in one table may make one in the other
            references, expected = dict.fromkeys(references), dict.fromkeys(expected)
        if references != expected:
            raise LibraryDifference(f"references of {other} are {references} and not {expected}")
        for name in theirs.table.branches.list():
            counts["branches"] += 1
            _compare_branches(BranchHistory(theirs.written, name), BranchHistory(other.written, name))
    return counts


def _compare_versions(run: ProgramRun, theirs: BranchHistory, other: BranchHistory, counts: Counter[str]) -> None:
    relocated: dict[int, bool] = {}
    """Versions of theirs, each with whether its rows may have other addresses in the other table."""
    were_ever_relocated = False
    before = (0, 0)
    for step in run.completed_steps:
        ends = theirs.written.version_after[step.number], other.written.version_after[step.number]
        pairs = _pair_versions(before, ends)
        for pair in pairs:
            if len(pairs) > 1 or ends[0] - before[0] == ends[1] - before[1]:
                _compare_operation_names(theirs, other, pair, step)
            reason = relocation_reason(theirs, other, pair)
            if reason is not None:
                counts[reason] += 1
            are_relocated = reason is not None or are_still_relocated(theirs.operations[pair[0]], relocated, before[0])
            were_ever_relocated |= are_relocated
            if not were_ever_relocated and ends[0] != ends[1]:
                raise LibraryDifference(f"pylance is at version {ends[0]}, {other} at {ends[1]}", step)
            counts["versions"] += 1
            if are_relocated:
                counts["versions compared without order and addresses"] += 1
                _compare_rows(theirs, other, pair, step)
            else:
                _compare_exactly(theirs, other, pair, step, were_relocated=were_ever_relocated, counts=counts)
            relocated |= dict.fromkeys(range(before[0] + 1, pair[0] + 1), are_relocated)
            before = pair
        before = ends
        _compare_settings(theirs, other, ends, step)


def _compare_steps(run: ProgramRun, theirs: BranchHistory, other: BranchHistory, counts: Counter[str]) -> None:
    """Compare the rows and settings after each step; a step may make a different number of versions in each table."""
    for step in run.completed_steps:
        ends = theirs.written.version_after[step.number], other.written.version_after[step.number]
        counts["versions"] += 1
        _compare_rows(theirs, other, ends, step)
        _compare_settings(theirs, other, ends, step)


def _compare_settings(theirs: BranchHistory, other: BranchHistory, ends: tuple[int, int], step: Step) -> None:
    expected, settings = user_settings(theirs.table_at[ends[0]]), user_settings(other.table_at[ends[1]])
    if settings != expected:
        raise LibraryDifference(f"{other} has the settings {settings} and not {expected}", step)


def _pair_versions(before: tuple[int, int], ends: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the versions that one step made in both tables as pairs; only the last pair if their numbers differ."""
    ranges = [range(first + 1, last + 1) for first, last in zip(before, ends, strict=True)]
    if len(ranges[0]) == len(ranges[1]):
        return list(zip(*ranges, strict=True))
    return [ends]


def _compare_operation_names(
    theirs: BranchHistory, other: BranchHistory, pair: tuple[int, int], step: Step | None
) -> None:
    names = theirs.operations[pair[0]].name, other.operations[pair[1]].name
    if names[0] != names[1]:
        raise LibraryDifference(f"the operation of {other} is {names[1]} and not {names[0]}", step)


def _compare_rows(theirs: BranchHistory, other: BranchHistory, pair: tuple[int, int], step: Step) -> None:
    sorted_rows = []
    for history, version in zip((theirs, other), pair, strict=True):
        content, steps = history.contents[version], steps_by_version(history)
        columns = list(content.table_columns)
        if history.has_stable_row_ids:
            lineage: list[list[object]] = [
                [steps[int(str(row_version))] for row_version in row_versions] for row_versions in content.lineage
            ]
            columns += [content.row_ids, *lineage]
        sorted_rows.append(sorted(map(repr, zip(*columns, strict=True))))
    schemas = theirs.contents[pair[0]].schema, other.contents[pair[1]].schema
    _compare_sorted(other, schemas, sorted_rows, step)


def _compare_sorted(
    other: BranchHistory, schemas: tuple[pa.Schema, pa.Schema], rows: list[list[str]], step: Step | None
) -> None:
    if not schemas[1].equals(schemas[0], check_metadata=True):
        raise LibraryDifference(f"the schema of {other} is\n{schemas[1]}\nand not\n{schemas[0]}", step)
    if rows[0] != rows[1]:
        missing = [row for row in rows[0] if row not in rows[1]]
        unexpected = [row for row in rows[1] if row not in rows[0]]
        raise LibraryDifference(
            f"{other} has other rows than pylance.\nMissing: {missing}\nUnexpected: {unexpected}", step
        )


def _compare_exactly(
    theirs: BranchHistory,
    other: BranchHistory,
    pair: tuple[int, int],
    step: Step,
    *,
    were_relocated: bool,
    counts: Counter[str],
) -> None:
    difference = other.contents[pair[1]].describe_difference(theirs.contents[pair[0]])
    if difference is not None and not were_relocated:
        raise LibraryDifference(f"{other}: {difference}", step)
    messages = comparable_manifests(theirs, other, pair, were_relocated=were_relocated, counts=counts)
    if messages[0] != messages[1]:
        lines = [str(message).splitlines() for message in messages]
        diff = "\n".join(unified_diff(lines[0], lines[1], "pylance", str(other), n=4, lineterm=""))
        raise LibraryDifference(f"version {pair[1]} of {other}: manifests differ\n{diff}", step)
    have_same_field_ids = field_ids.FIELD_ID_MAX_KEY not in other.table_at[pair[1]].config
    if not were_relocated and have_same_field_ids:
        transactions = _comparable_transactions(theirs, other, pair, counts, top_fields_only=False)
        if transactions[0] != transactions[1]:
            counts["an update lists the nested fields of a column too"] += 1
            transactions = _comparable_transactions(theirs, other, pair, counts, top_fields_only=True)
        if transactions[0] != transactions[1]:
            raise LibraryDifference(
                f"the transaction of {other} is\n{transactions[1]}\nand not\n{transactions[0]}", step
            )


def _comparable_transactions(
    theirs: BranchHistory, other: BranchHistory, pair: tuple[int, int], counts: Counter[str], *, top_fields_only: bool
) -> list[dict[str, object]]:
    first, second = (
        summarize_transaction(history.table_at[version], top_fields_only=top_fields_only)
        for history, version in zip((theirs, other), pair, strict=True)
    )
    have_keys = INSERTED_KEYS in first and INSERTED_KEYS in second
    if have_keys and (first[INSERTED_KEYS] is None) != (second[INSERTED_KEYS] is None):
        counts["upserts that record the keys they inserted"] += not top_fields_only
        first[INSERTED_KEYS] = second[INSERTED_KEYS] = None
    return [first, second]


def _compare_branches(theirs: BranchHistory, other: BranchHistory) -> None:
    """Compare the versions of a branch in pairs. Rows may be relocated, and the first version of the branch may have
    another number."""
    if len(theirs.versions) != len(other.versions):
        raise LibraryDifference(f"{other} has the versions {other.versions}, and pylance's {theirs.versions}")
    for pair in zip(theirs.versions, other.versions, strict=True):
        _compare_operation_names(theirs, other, pair, None)
        contents = theirs.contents[pair[0]], other.contents[pair[1]]
        rows = [sorted(map(repr, zip(*content.table_columns, strict=True))) for content in contents]
        _compare_sorted(other, (contents[0].schema, contents[1].schema), rows, None)
