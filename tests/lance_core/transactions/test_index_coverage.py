"""What a change does to coverage, without a table: bitmaps in, bitmaps out."""

import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, FragmentRewrite
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex, Rewrite, RewriteGroup, Update, UpdateMode
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import judge
from lance_core.transactions.index_coverage import (
    LiveFragments,
    drop_useless_segments,
    extend_to_moved_rows,
    remove_coverage,
)
from lance_core.transactions.verdicts import Verdict

SCHEMA = TableSchema.from_arrow(
    pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
)
A, S, X, Y = 0, 1, 2, 3


def segment(
    covers: Sequence[int] | None, *, field_id: int = A, kind: str = "Bitmap", version: int = 0, name: str = "it"
) -> IndexMetadata:
    index = IndexMetadata.new(
        uuid.uuid4(),
        name=name,
        field_id=field_id,
        dataset_version=Version(version + 1),
        covers=BitMap(covers or []),
        type_url=f"/lance.table.{kind}IndexDetails",
        details=b"",
        index_version=version,
        created_ms=1,
    )
    if covers is None:
        index.message.fragment_bitmap = b""
    return index


def of(number: int, rows: int) -> Fragment:
    return Fragment.of(files=[], physical_rows=rows).with_id(number)


def noted(*groups: tuple[Sequence[int], Sequence[int]], rows: int = 10, far_away: bool = False) -> IndexMetadata:
    reuse = FragmentReuse.empty()
    for old, new in groups:
        told = FragmentRewrite(tuple(of(id, rows) for id in old), (None,) * len(old), tuple(of(id, rows) for id in new))
        reuse = reuse.with_compaction(Version(5), [told])
    entry = reuse.as_index(uuid.uuid4(), dataset_version=Version(5), created_ms=1)
    if far_away:
        details = table_pb2.FragmentReuseIndexDetails()
        details.external.path, details.external.size = "details.binpb", 100
        entry.message.index_details.value = details.SerializeToString()
    return entry


@pytest.mark.parametrize(
    ("covers", "notes", "alive", "gone", "left"),
    [
        ([0, 1, 2], [], [0, 1, 2], [1], [0, 2]),
        ([0, 1], [], [0, 1, 2], [2], [0, 1]),
        ([0, 1, 9], [([0, 1], [4])], [4, 9], [4], [9]),
        ([0, 1, 9], [([0, 1], [4])], [4, 9], [9], [4]),
        ([0, 1, 2, 3], [([0, 1], [4]), ([4, 2], [5, 6])], [3, 5, 6], [5], [3, 6]),
        ([0, 1], [([0, 1], [4])], [4, 7], [7], [0, 1]),
    ],
)
def test_values_changed_in_place(
    covers: list[int], notes: list[tuple[list[int], list[int]]], alive: list[int], gone: list[int], left: list[int]
) -> None:
    index = segment(covers)
    entries = [noted(*notes)] if notes else []
    here = LiveFragments.of([index, *entries], alive)
    numbers = [FragmentId(number) for number in gone]
    (after,) = remove_coverage([index], numbers, here, on_fields=frozenset({A}))
    assert list(after.covers or ()) == left
    assert remove_coverage([index], numbers, here, on_fields=frozenset({X})) == (index,)


def test_notes_that_nobody_opens_cost_coverage_and_no_answer() -> None:
    index = segment([0, 1, 9])
    here = LiveFragments.of([index, noted(([0, 1], [4]), far_away=True)], [4, 9, 10])
    (after,) = remove_coverage([index], [FragmentId(9)], here, on_fields=frozenset({A}))
    assert list(after.covers or ()) == []
    assert here.covers_any(segment([0, 1]))
    (after,) = remove_coverage([index], [FragmentId(4)], here, on_fields=frozenset({A}))
    assert 4 not in (after.covers or ())
    assert not {0, 1} & set(after.covers or ())


def test_which_segments_are_of_use() -> None:
    dead, alive, led = segment([0, 1]), segment([7]), segment([2, 3])
    unknown, gone_field = segment(None), segment([7], field_id=77, name="other")
    here = LiveFragments.of([noted(([2, 3], [4]))], [4, 7])
    fields = frozenset({A, S, X, Y})
    assert drop_useless_segments([dead, alive, led, unknown, gone_field], here, field_ids=fields) == (
        alive,
        led,
        unknown,
    )
    assert drop_useless_segments([dead], here, field_ids=fields) == (dead,)
    older, newer = segment([0], version=0), segment([1], version=1)
    assert drop_useless_segments([newer, older], here, field_ids=fields) == (older,)


def moved(before: Mapping[int, list[int]], new: list[list[int] | None], assigned: list[int], **more: object) -> Update:
    made = []
    for ids in new:
        fragment = of(0, 3)
        made.append(fragment if ids is None else fragment.with_lineage(row_ids=RowIdSequence.of(ids).encode()))
    updated = tuple(of(number, len(ids)) for number, ids in before.items())
    return Update(updated=updated, new=tuple(made), fields_assigned=tuple(assigned), **more)  # type: ignore[arg-type]


BEFORE = {0: [0, 1, 2], 1: [3, 4, 5]}


@pytest.mark.parametrize(
    ("index", "update", "gains"),
    [
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4]], [X]), [5]),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4], [5, 3, 2]], [X]), [5, 6]),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4], None], [X]), [5]),
        (segment([0, 1]), moved(BEFORE, [[0, 1]], [X]), []),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 99]], [X]), []),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4]], [A]), []),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4]], []), []),
        (segment([0]), moved(BEFORE, [[0, 1, 4]], [X]), []),
        (segment(None), moved(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1]), moved({}, [[0, 1, 4]], [X]), []),
        (segment([0, 1]), moved(BEFORE, [[0, 1, 4]], [X], mode=UpdateMode.REWRITE_COLUMNS), []),
        (segment([0, 1], kind="BTree", version=1), moved(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], kind="BTree", version=0), moved(BEFORE, [[0, 1, 4]], [X]), [5]),
        (segment([0, 1], kind="ZoneMap"), moved(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], field_id=S), moved(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], field_id=X), moved(BEFORE, [[0, 1, 4]], [S]), []),
        (segment([0, 1], field_id=Y), moved(BEFORE, [[0, 1, 4]], [X]), [5]),
    ],
)
def test_rows_that_moved(index: IndexMetadata, update: Update, gains: list[int]) -> None:
    before = {
        FragmentId(number): of(number, len(ids)).with_lineage(row_ids=RowIdSequence.of(ids).encode())
        for number, ids in BEFORE.items()
    }
    added = [fragment.with_id(5 + number) for number, fragment in enumerate(update.new)]
    (after,) = extend_to_moved_rows([index], update, before, added, SCHEMA)
    assert list(after.covers or ()) == [*(index.covers or ()), *gains]


def test_two_that_write_one_index_anew_are_not_both_right() -> None:
    """Of fragments that have nothing in common."""
    one, other = segment([0, 1, 2, 3]), segment([8, 9])

    def rewrite(number: int, *anew: IndexMetadata) -> Transaction:
        group = RewriteGroup((of(number, 3),), (of(number + 10, 3),))
        rewritten = tuple((index.uuid.bytes, segment([number + 10])) for index in anew)
        return Transaction(Version(1), f"{number}", Rewrite((group,), rewritten_indices=rewritten), {})

    def judged(ours: Transaction, theirs: Transaction) -> Verdict:
        return judge(ours, [CommittedTransaction(Version(2), theirs)]).verdict

    assert judged(rewrite(0, one), rewrite(1, one)) is Verdict.RETRY
    assert judged(rewrite(0, one), rewrite(1, other)) is Verdict.COMPATIBLE
    assert judged(rewrite(0, one), rewrite(1)) is Verdict.COMPATIBLE
    drop = Transaction(Version(1), "drop", CreateIndex(removed=(one,)), {})
    assert judged(drop, rewrite(1, one)) is Verdict.RETRY
    assert judged(drop, rewrite(1, other)) is Verdict.COMPATIBLE
