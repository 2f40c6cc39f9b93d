"""The table of conflicts, a case for each cell: `pytest -k Append-Overwrite`. Row first: ours, then theirs."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import Append, Operation, Other, Overwrite, ReserveFragments, Rewrite, RewriteGroup
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions import conflicts
from lance_core.transactions.conflicts import RULES, Landed, Verdict, grid, judge

SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int8())]))
APPEND = Append(())
RESERVE = ReserveFragments(1)
KNOWN = ("Append", "Overwrite", "Rewrite", "ReserveFragments")
CURRENT = Path(conflicts.__file__).with_name("CONFLICTS.md")


def overwrite(config: Mapping[str, str] | None = None) -> Overwrite:
    return Overwrite((), SCHEMA, config or {})


def rewrite(*fragment_ids: int, reuse: bool = False) -> Rewrite:
    old = tuple(Fragment(table_pb2.DataFragment(id=number)) for number in fragment_ids)
    entry = IndexMetadata(table_pb2.IndexMetadata()) if reuse else None
    return Rewrite((RewriteGroup(old, ()),), fragment_reuse=entry)


# ours, theirs, verdict, rule; the last word of a name tells cases of one cell apart
CASES: dict[str, tuple[Operation, Operation, Verdict, str]] = {
    "Append-Append": (APPEND, APPEND, Verdict.COMPATIBLE, "compatible"),
    "Append-Overwrite": (APPEND, overwrite(), Verdict.INCOMPATIBLE, "incompatible"),
    "Overwrite-Append": (overwrite(), APPEND, Verdict.COMPATIBLE, "compatible"),
    "Overwrite-Overwrite": (overwrite(), overwrite(), Verdict.RETRY, "both_replace"),
    "Overwrite-Overwrite-other key": (overwrite({"a": "1"}), overwrite({"b": "1"}), Verdict.RETRY, "both_replace"),
    "Overwrite-Overwrite-same key": (
        overwrite({"a": "1"}),
        overwrite({"a": "1"}),
        Verdict.INCOMPATIBLE,
        "both_replace",
    ),
    "Append-Rewrite": (APPEND, rewrite(1), Verdict.COMPATIBLE, "compatible"),
    "Append-ReserveFragments": (APPEND, RESERVE, Verdict.COMPATIBLE, "compatible"),
    "Overwrite-Rewrite": (overwrite(), rewrite(1), Verdict.COMPATIBLE, "compatible"),
    "Overwrite-ReserveFragments": (overwrite(), RESERVE, Verdict.COMPATIBLE, "compatible"),
    "Rewrite-Append": (rewrite(1), APPEND, Verdict.COMPATIBLE, "compatible"),
    "Rewrite-Overwrite": (rewrite(1), overwrite(), Verdict.INCOMPATIBLE, "incompatible"),
    "Rewrite-Rewrite": (rewrite(1, 2), rewrite(2, 3), Verdict.RETRY, "same_fragments"),
    "Rewrite-Rewrite-other fragments": (rewrite(1), rewrite(2), Verdict.COMPATIBLE, "same_fragments"),
    "Rewrite-Rewrite-reuse": (rewrite(1, reuse=True), rewrite(2), Verdict.RETRY, "same_fragments"),
    "Rewrite-ReserveFragments": (rewrite(1), RESERVE, Verdict.COMPATIBLE, "compatible"),
    "ReserveFragments-Append": (RESERVE, APPEND, Verdict.COMPATIBLE, "compatible"),
    "ReserveFragments-Overwrite": (RESERVE, overwrite(), Verdict.INCOMPATIBLE, "incompatible"),
    "ReserveFragments-Rewrite": (RESERVE, rewrite(1), Verdict.COMPATIBLE, "compatible"),
    "ReserveFragments-ReserveFragments": (RESERVE, RESERVE, Verdict.COMPATIBLE, "compatible"),
}


def landed(version: int, operation: Operation | None) -> Landed:
    transaction = None if operation is None else Transaction(Version(version - 1), f"theirs-{version}", operation)
    return Landed(Version(version), transaction)


def ours(operation: Operation) -> Transaction:
    return Transaction(Version(1), "ours", operation)


@pytest.mark.parametrize("name", CASES)
def test_cell(name: str) -> None:
    mine, theirs, verdict, rule = CASES[name]
    finding = judge(ours(mine), [landed(2, theirs)])
    assert finding.verdict is verdict
    if verdict is not Verdict.COMPATIBLE:
        assert finding.rule == rule
        assert finding.theirs is not None
        assert finding.theirs.version == 2
    assert finding.blocks is (verdict >= Verdict.RETRY)


def test_every_cell_is_written_out_and_has_a_case() -> None:
    cells = {f"{row}-{column}" for row, columns in RULES.items() for column in columns}
    assert cells == {f"{row}-{column}" for row in KNOWN for column in KNOWN}
    assert {"-".join(name.split("-")[:2]) for name in CASES} == cells


def test_a_pair_that_is_not_in_the_table_is_refused() -> None:
    others = [field.name for field in transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields]
    for arm in others:
        message = transaction_pb2.Transaction()
        getattr(message, arm).SetInParent()
        theirs = Transaction.decode(message.SerializeToString(), path="").operation
        if not isinstance(theirs, Other):
            continue
        for mine in (APPEND, overwrite(), theirs):
            finding = judge(ours(mine), [landed(2, theirs)])
            assert (finding.verdict, finding.rule) == (Verdict.RETRY, "unjudged")


def test_a_change_that_nobody_recorded_is_refused() -> None:
    finding = judge(ours(APPEND), [landed(2, None)])
    assert (finding.verdict, finding.rule) == (Verdict.RETRY, "unjudged")
    assert finding.theirs is not None
    assert finding.theirs.operation == "unrecorded change"


def test_the_worst_wins_and_the_first_of_the_worst_is_named() -> None:
    history = [landed(2, APPEND), landed(3, None), landed(4, overwrite()), landed(5, overwrite()), landed(6, APPEND)]
    finding = judge(ours(APPEND), history)
    assert finding.theirs is not None
    assert (finding.verdict, finding.theirs.version) == (Verdict.INCOMPATIBLE, 4)


def test_nothing_in_between_is_compatible() -> None:
    finding = judge(ours(APPEND), [])
    assert (finding.verdict, finding.theirs, finding.blocks) == (Verdict.COMPATIBLE, None, False)


def test_verdicts_are_ordered() -> None:
    assert sorted(Verdict) == [Verdict.COMPATIBLE, Verdict.REBASE, Verdict.RETRY, Verdict.INCOMPATIBLE]


def test_every_rule_says_why() -> None:
    for row in RULES.values():
        for rule in row.values():
            assert rule.__doc__


def test_the_printed_table_is_current() -> None:
    assert CURRENT.read_text(encoding="utf-8") == grid(), (
        f"write grid() to {CURRENT.name}: "
        'python -c "from lance_core.transactions.conflicts import grid; print(grid(), end=str())"'
    )
