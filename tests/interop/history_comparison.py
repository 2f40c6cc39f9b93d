"""Three histories of one program, compared at every version.

Each table is read by both libraries, which have to see the same: rows in order with their types, ids, addresses and
versions, schema and metadata (`history_reader.py`). Between tables, transactions and manifests are compared message by
message, until rows lie elsewhere for a reason that is allowed (`allowed_differences.py`): from there on the same rows
with the same ids and lineage are asked for, in any order, until the rows are overwritten.
"""

from collections import Counter
from difflib import unified_diff

import pyarrow as pa

from lance_core.format import field_ids
from tests.interop.allowed_differences import lies_elsewhere, manifests, settings, still_elsewhere
from tests.interop.history_reader import Line, references, steps_of
from tests.interop.program_runner import Disagreement, Ran
from tests.interop.programs import Step
from tests.interop.transaction_summary import KEYS, told


def judge(ran: Ran) -> Counter[str]:
    """How many versions were compared, and how often each difference was allowed."""
    counted: Counter[str] = Counter()
    theirs = Line(ran.histories["theirs"])
    expected = references(theirs)
    for whose in ("ours", "mixed"):
        other = Line(ran.histories[whose])
        (_compare_ends if ran.program.indexed else _compare)(ran, theirs, other, counted)
        found = references(other)
        if ran.program.indexed:  # a step that makes no version in one table may make one in the other
            found, expected = dict.fromkeys(found), dict.fromkeys(expected)
        if found != expected:
            raise Disagreement(f"references of {other} are {found} and not {expected}")
        for name in theirs.table.branches.list():
            counted["branches"] += 1
            _compare_branches(Line(theirs.history, name), Line(other.history, name))
    return counted


def _compare(ran: Ran, theirs: Line, other: Line, counted: Counter[str]) -> None:
    elsewhere: dict[int, bool] = {}
    """By version of theirs, whether rows may lie elsewhere."""
    ever = False
    before = (0, 0)
    for step in ran.done:
        ends = theirs.history.ends[step.number], other.history.ends[step.number]
        pairs = _pairs(before, ends)
        for pair in pairs:
            if len(pairs) > 1 or ends[0] - before[0] == ends[1] - before[1]:
                _compare_names(theirs, other, pair, step)
            reason = lies_elsewhere(theirs, other, pair)
            if reason is not None:
                counted[reason] += 1
            differs = reason is not None or still_elsewhere(theirs.operations[pair[0]], elsewhere, before[0])
            ever |= differs
            if not ever and ends[0] != ends[1]:
                raise Disagreement(f"pylance is at version {ends[0]}, {other} at {ends[1]}", step)
            counted["versions"] += 1
            if differs:
                counted["versions compared without order and place"] += 1
                _compare_rows(theirs, other, pair, step)
            else:
                _compare_exactly(theirs, other, pair, step, shifted=ever, counted=counted)
            elsewhere |= dict.fromkeys(range(before[0] + 1, pair[0] + 1), differs)
            before = pair
        before = ends
        found = [settings(line.at[number]) for line, number in zip((theirs, other), ends, strict=True)]
        if found[0] != found[1]:
            raise Disagreement(f"{other} says of itself {found[1]} and not {found[0]}", step)


def _compare_ends(ran: Ran, theirs: Line, other: Line, counted: Counter[str]) -> None:
    """After each step, the rows and what the table says of itself; how many versions a step makes is not asked."""
    for step in ran.done:
        ends = theirs.history.ends[step.number], other.history.ends[step.number]
        counted["versions"] += 1
        _compare_rows(theirs, other, ends, step)
        found = [settings(line.at[number]) for line, number in zip((theirs, other), ends, strict=True)]
        if found[0] != found[1]:
            raise Disagreement(f"{other} says of itself {found[1]} and not {found[0]}", step)


def _pairs(before: tuple[int, int], ends: tuple[int, int]) -> list[tuple[int, int]]:
    """The versions that one step made, side by side; where they are not as many, the last ones."""
    ranges = [range(first + 1, last + 1) for first, last in zip(before, ends, strict=True)]
    if len(ranges[0]) == len(ranges[1]):
        return list(zip(*ranges, strict=True))
    return [ends]


def _compare_names(theirs: Line, other: Line, pair: tuple[int, int], step: Step | None) -> None:
    names = theirs.operations[pair[0]].name, other.operations[pair[1]].name
    if names[0] != names[1]:
        raise Disagreement(f"{other} calls it a {names[1]} and not a {names[0]}", step)


def _compare_rows(theirs: Line, other: Line, pair: tuple[int, int], step: Step) -> None:
    found = []
    for line, number in zip((theirs, other), pair, strict=True):
        facts, made_by = line.facts[number], steps_of(line)
        columns = list(facts.own)
        if line.stable:
            lineage: list[list[object]] = [
                [made_by[int(str(version))] for version in versions] for versions in facts.lineage
            ]
            columns += [facts.row_ids, *lineage]
        found.append(sorted(map(repr, zip(*columns, strict=True))))
    schemas = theirs.facts[pair[0]].schema, other.facts[pair[1]].schema
    _compare_sorted(other, schemas, found, step)


def _compare_sorted(
    other: Line, schemas: tuple[pa.Schema, pa.Schema], found: list[list[str]], step: Step | None
) -> None:
    if not schemas[1].equals(schemas[0], check_metadata=True):
        raise Disagreement(f"the schema of {other} is\n{schemas[1]}\nand not\n{schemas[0]}", step)
    if found[0] != found[1]:
        missing = [row for row in found[0] if row not in found[1]]
        besides = [row for row in found[1] if row not in found[0]]
        raise Disagreement(f"{other} has not the rows of pylance.\nMissing: {missing}\nBesides: {besides}", step)


def _compare_exactly(
    theirs: Line, other: Line, pair: tuple[int, int], step: Step, *, shifted: bool, counted: Counter[str]
) -> None:
    difference = other.facts[pair[1]].difference(theirs.facts[pair[0]])
    if difference is not None and not shifted:
        raise Disagreement(f"{other}: {difference}", step)
    messages = manifests(theirs, other, pair, shifted=shifted, counted=counted)
    if messages[0] != messages[1]:
        lines = [str(message).splitlines() for message in messages]
        changed = "\n".join(unified_diff(lines[0], lines[1], "pylance", str(other), n=4, lineterm=""))
        raise Disagreement(f"version {pair[1]} of {other}: manifests differ\n{changed}", step)
    ids_agree = field_ids.FIELD_ID_MAX_KEY not in other.at[pair[1]].config
    if not shifted and ids_agree:
        transactions = _told(theirs, other, pair, counted, top_fields_only=False)
        if transactions[0] != transactions[1]:
            counted["an update names the fields within a column too"] += 1
            transactions = _told(theirs, other, pair, counted, top_fields_only=True)
        if transactions[0] != transactions[1]:
            raise Disagreement(f"{other} tells\n{transactions[1]}\nand not\n{transactions[0]}", step)


def _told(
    theirs: Line, other: Line, pair: tuple[int, int], counted: Counter[str], *, top_fields_only: bool
) -> list[dict[str, object]]:
    first, second = (
        told(line.at[number], top_fields_only=top_fields_only)
        for line, number in zip((theirs, other), pair, strict=True)
    )
    if KEYS in first and KEYS in second and (first[KEYS] is None) != (second[KEYS] is None):
        counted["which upserts tell the keys they inserted"] += not top_fields_only
        first[KEYS] = second[KEYS] = None
    return [first, second]


def _compare_branches(theirs: Line, other: Line) -> None:
    """From the newest version back; rows may lie elsewhere, and where a branch begins may have another number."""
    if len(theirs.numbers) != len(other.numbers):
        raise Disagreement(f"{other} has the versions {other.numbers}, and pylance's {theirs.numbers}")
    for pair in zip(theirs.numbers, other.numbers, strict=True):
        _compare_names(theirs, other, pair, None)
        facts = theirs.facts[pair[0]], other.facts[pair[1]]
        rows = [sorted(map(repr, zip(*each.own, strict=True))) for each in facts]
        _compare_sorted(other, (facts[0].schema, facts[1].schema), rows, None)
