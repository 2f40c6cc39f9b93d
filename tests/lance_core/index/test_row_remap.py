"""Row remap compared with a dictionary of the new address of each row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, FragmentRewrite
from lance_core.format.ids import FragmentId, Version
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.format.row_sets import RowSet
from lance_core.format.rowids import RowIdSequence
from lance_core.index.row_remap import (
    CompactionLog,
    FollowCompactions,
    KeepRowIds,
    ResolveRowIds,
    SameAddresses,
    mask_within,
)


def fragment(number: int, rows: int) -> Fragment:
    return Fragment(table_pb2.DataFragment(id=number, physical_rows=rows))


def address(number: int, offset: int) -> int:
    return (number << 32) | offset


class History:
    """Model of a table that is compacted: its fragments, and the current address of each original row."""

    def __init__(self, sizes: list[int]) -> None:
        self.alive = dict(enumerate(sizes))
        self.now = {address(id, at): address(id, at) for id, rows in self.alive.items() for at in range(rows)}
        self.begun = list(self.now)
        self.reuse = FragmentReuse.empty()
        self.version, self.last = 1, len(sizes) - 1

    def compact(self, groups: list[tuple[list[int], set[int]]], most: int) -> None:
        """Compact groups; each has its fragments and the addresses that do not survive."""
        done: list[FragmentRewrite] = []
        for old, dead in groups:
            rows = [
                address(id, at) for id in sorted(old) for at in range(self.alive[id]) if address(id, at) not in dead
            ]
            first: int = self.last + 1 + sum(len(each.new) for each in done)
            sizes = [min(most, len(rows) - start) for start in range(0, len(rows), most)]
            new = [fragment(first + number, size) for number, size in enumerate(sizes)]
            places = [address(each.id, at) for each in new for at in range(each.physical_rows)]
            went = dict(zip(rows, places, strict=True))
            self.now = {
                begun: went.get(at, at) for begun, at in self.now.items() if at in went or (at >> 32) not in old
            }
            deleted = [
                np.array([at for at in range(self.alive[id]) if address(id, at) in dead], dtype=np.uint32) for id in old
            ]
            olds = [fragment(id, self.alive[id]) for id in old]
            done.append(FragmentRewrite(tuple(olds), tuple(deleted), tuple(new)))
        for group in done:
            for each in group.old:
                del self.alive[each.id]
            self.alive |= {each.id: each.physical_rows for each in group.new}
            self.last += len(group.new)
        self.reuse = self.reuse.with_compaction(Version(self.version), done)
        self.version += 1


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History(draw(st.lists(st.integers(1, 9), min_size=2, max_size=6)))
    for _ in range(draw(st.integers(0, 3))):
        if not history.alive:
            break
        ids = draw(st.permutations(sorted(history.alive)))
        chosen = ids[: draw(st.integers(1, len(ids)))]
        cut = draw(st.integers(0, len(chosen)))
        dead = set(draw(st.lists(st.sampled_from(sorted(history.now.values()) or history.begun), max_size=9)))
        groups = [(sorted(part), dead) for part in (chosen[:cut], chosen[cut:]) if part]
        history.compact(groups, draw(st.integers(1, 20)))
    return history


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_rows_are_followed_through_compactions(history: History, data: st.DataObject) -> None:
    alive = sorted(history.alive)
    covered = BitMap(data.draw(st.lists(st.sampled_from(alive)))) if alive else BitMap()
    asked = np.array(data.draw(st.lists(st.sampled_from(history.begun))), dtype=np.uint64)
    moves = FollowCompactions(CompactionLog(history.reuse, path="m"), covered)
    now, still = moves.remap(asked)
    known = {begun: at for begun, at in history.now.items() if (at >> 32) in covered}
    assert still.tolist() == [each in known for each in asked.tolist()]
    assert now[still].tolist() == [known[each] for each in asked[still].tolist()]
    every = RowSet.of(np.array(sorted(history.now), dtype=np.uint64))
    assert list(moves.remap_set(every)) == sorted(known.values())


def test_same_addresses_keep_rows_of_live_fragments() -> None:
    rows = np.array([address(0, 1), address(2, 5), address(3, 0)], dtype=np.uint64)
    moves = SameAddresses(BitMap([0, 3]))
    assert moves.remap(rows)[1].tolist() == [True, False, True]
    assert list(moves.remap_set(RowSet.of(rows))) == [address(0, 1), address(3, 0)]
    assert not mask_within(rows, BitMap()).any()


def test_row_ids_are_resolved_or_kept() -> None:
    old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    new = FragmentRowIds(FragmentId(4), RowIdSequence.of([11, 20]))
    located = ResolveRowIds(RowIdIndex([old, new], path="m"), BitMap([3]))
    ids = np.array([12, 10, 11, 99], dtype=np.uint64)
    now, still = located.remap(ids)
    assert (now[:2].tolist(), still.tolist()) == ([address(3, 2), address(3, 0)], [True, True, False, False])
    assert list(located.remap_set(RowSet.of(ids))) == [address(3, 0), address(3, 2)]
    kept = KeepRowIds(located)
    assert kept.remap(ids)[0] is ids
    assert list(kept.remap_set(RowSet.of(ids))) == [10, 12]


@pytest.mark.parametrize("surviving", [b"nonsense", bytes(BitMap64([0, 1]).serialize())])
def test_a_contradictory_reuse_record_is_rejected(surviving: bytes) -> None:
    content = table_pb2.FragmentReuseIndexDetails.InlineContent()
    group = content.versions.add(dataset_version=1).groups.add(changed_row_addrs=surviving)
    group.old_fragments.add(id=0, physical_rows=3)
    group.new_fragments.add(id=1, physical_rows=3)
    notes = CompactionLog(FragmentReuse.decode(content.SerializeToString(), path="m"), path="m")
    with pytest.raises(Corrupt, match=r"a set of rows|maps 2 of 3 rows to 3") as raised:
        notes.follow(np.array([0], dtype=np.uint64))
    assert raised.value.field == "changed_row_addrs"


def test_fragments_created_since_a_version() -> None:
    history = History([2, 2, 2])
    history.compact([([0], set())], 10)
    history.compact([([1], set())], 10)
    notes = CompactionLog(history.reuse, path="m")
    assert [list(notes.fragments_created_since(version)) for version in (1, 2, 3)] == [[3, 4], [4], []]
    assert notes.rows_under == {0: 2, 1: 2}
