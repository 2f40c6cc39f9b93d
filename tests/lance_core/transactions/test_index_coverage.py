"""Index coverage: the effect of changes on coverage bitmaps, without a table."""

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
from lance_core.format.row_lineage import RowIdSequence
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


def fragment_of(number: int, rows: int) -> Fragment:
    return Fragment.of(files=[], physical_rows=rows).with_id(number)


def reuse_entry_of(
    *groups: tuple[Sequence[int], Sequence[int]], rows: int = 10, is_external: bool = False
) -> IndexMetadata:
    reuse = FragmentReuse.empty()
    for old, new in groups:
        rewrite = FragmentRewrite(
            tuple(fragment_of(id, rows) for id in old), (None,) * len(old), tuple(fragment_of(id, rows) for id in new)
        )
        reuse = reuse.with_compaction(Version(5), [rewrite])
    entry = reuse.as_index(uuid.uuid4(), dataset_version=Version(5), created_ms=1)
    if is_external:
        details = table_pb2.FragmentReuseIndexDetails()
        details.external.path, details.external.size = "details.binpb", 100
        entry.message.index_details.value = details.SerializeToString()
    return entry


@pytest.mark.parametrize(
    ("covers", "compactions", "alive", "changed", "remaining"),
    [
        ([0, 1, 2], [], [0, 1, 2], [1], [0, 2]),
        ([0, 1], [], [0, 1, 2], [2], [0, 1]),
        ([0, 1, 9], [([0, 1], [4])], [4, 9], [4], [9]),
        ([0, 1, 9], [([0, 1], [4])], [4, 9], [9], [4]),
        ([0, 1, 2, 3], [([0, 1], [4]), ([4, 2], [5, 6])], [3, 5, 6], [5], [3, 6]),
        ([0, 1], [([0, 1], [4])], [4, 7], [7], [0, 1]),
    ],
)
def test_changed_values_lose_coverage(
    covers: list[int],
    compactions: list[tuple[list[int], list[int]]],
    alive: list[int],
    changed: list[int],
    remaining: list[int],
) -> None:
    index = segment(covers)
    entries = [reuse_entry_of(*compactions)] if compactions else []
    live = LiveFragments.of([index, *entries], alive)
    numbers = [FragmentId(number) for number in changed]
    (after,) = remove_coverage([index], numbers, live, on_fields=frozenset({A}))
    assert list(after.covers or ()) == remaining
    assert remove_coverage([index], numbers, live, on_fields=frozenset({X})) == (index,)


def test_an_external_reuse_entry_costs_coverage_only() -> None:
    index = segment([0, 1, 9])
    live = LiveFragments.of([index, reuse_entry_of(([0, 1], [4]), is_external=True)], [4, 9, 10])
    (after,) = remove_coverage([index], [FragmentId(9)], live, on_fields=frozenset({A}))
    assert list(after.covers or ()) == []
    assert live.covers_any(segment([0, 1]))
    (after,) = remove_coverage([index], [FragmentId(4)], live, on_fields=frozenset({A}))
    assert 4 not in (after.covers or ())
    assert not {0, 1} & set(after.covers or ())


def test_useless_segments_are_dropped() -> None:
    dead, alive, followed = segment([0, 1]), segment([7]), segment([2, 3])
    unknown, gone_field = segment(None), segment([7], field_id=77, name="other")
    live = LiveFragments.of([reuse_entry_of(([2, 3], [4]))], [4, 7])
    fields = frozenset({A, S, X, Y})
    assert drop_useless_segments([dead, alive, followed, unknown, gone_field], live, field_ids=fields) == (
        alive,
        followed,
        unknown,
    )
    assert drop_useless_segments([dead], live, field_ids=fields) == (dead,)
    older, newer = segment([0], version=0), segment([1], version=1)
    assert drop_useless_segments([newer, older], live, field_ids=fields) == (older,)


def update_that_moves(
    before: Mapping[int, list[int]], new: list[list[int] | None], assigned: list[int], **more: object
) -> Update:
    fragments = []
    for ids in new:
        fragment = fragment_of(0, 3)
        fragments.append(fragment if ids is None else fragment.with_lineage(row_ids=RowIdSequence.of(ids).encode()))
    updated = tuple(fragment_of(number, len(ids)) for number, ids in before.items())
    return Update(updated=updated, new=tuple(fragments), fields_assigned=tuple(assigned), **more)  # type: ignore[arg-type]


BEFORE = {0: [0, 1, 2], 1: [3, 4, 5]}


@pytest.mark.parametrize(
    ("index", "update", "gains"),
    [
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4]], [X]), [5]),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4], [5, 3, 2]], [X]), [5, 6]),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4], None], [X]), [5]),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1]], [X]), []),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 99]], [X]), []),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4]], [A]), []),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4]], []), []),
        (segment([0]), update_that_moves(BEFORE, [[0, 1, 4]], [X]), []),
        (segment(None), update_that_moves(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1]), update_that_moves({}, [[0, 1, 4]], [X]), []),
        (segment([0, 1]), update_that_moves(BEFORE, [[0, 1, 4]], [X], mode=UpdateMode.REWRITE_COLUMNS), []),
        (segment([0, 1], kind="BTree", version=1), update_that_moves(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], kind="BTree", version=0), update_that_moves(BEFORE, [[0, 1, 4]], [X]), [5]),
        (segment([0, 1], kind="ZoneMap"), update_that_moves(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], field_id=S), update_that_moves(BEFORE, [[0, 1, 4]], [X]), []),
        (segment([0, 1], field_id=X), update_that_moves(BEFORE, [[0, 1, 4]], [S]), []),
        (segment([0, 1], field_id=Y), update_that_moves(BEFORE, [[0, 1, 4]], [X]), [5]),
    ],
)
def test_coverage_extends_to_moved_rows(index: IndexMetadata, update: Update, gains: list[int]) -> None:
    before = {
        FragmentId(number): fragment_of(number, len(ids)).with_lineage(row_ids=RowIdSequence.of(ids).encode())
        for number, ids in BEFORE.items()
    }
    added = [fragment.with_id(5 + number) for number, fragment in enumerate(update.new)]
    (after,) = extend_to_moved_rows([index], update, before, added, SCHEMA)
    assert list(after.covers or ()) == [*(index.covers or ()), *gains]


def test_two_rewrites_of_one_index_conflict() -> None:
    """They conflict although they rewrite different fragments."""
    one, other = segment([0, 1, 2, 3]), segment([8, 9])

    def rewrite(number: int, *rewritten_segments: IndexMetadata) -> Transaction:
        group = RewriteGroup((fragment_of(number, 3),), (fragment_of(number + 10, 3),))
        rewritten = tuple((index.uuid.bytes, segment([number + 10])) for index in rewritten_segments)
        return Transaction(Version(1), f"{number}", Rewrite((group,), rewritten_indices=rewritten), {})

    def verdict_of(ours: Transaction, theirs: Transaction) -> Verdict:
        return judge(ours, [CommittedTransaction(Version(2), theirs)]).verdict

    assert verdict_of(rewrite(0, one), rewrite(1, one)) is Verdict.RETRY
    assert verdict_of(rewrite(0, one), rewrite(1, other)) is Verdict.COMPATIBLE
    assert verdict_of(rewrite(0, one), rewrite(1)) is Verdict.COMPATIBLE
    drop = Transaction(Version(1), "drop", CreateIndex(removed=(one,)), {})
    assert verdict_of(drop, rewrite(1, one)) is Verdict.RETRY
    assert verdict_of(drop, rewrite(1, other)) is Verdict.COMPATIBLE
