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
from lance_core.format.row_lineage import RowIdSequence
from lance_core.format.row_sets import RowSet
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


class CompactionModel:
    """Model of a table that is compacted: its fragments, and the current address of each original row."""

    def __init__(self, sizes: list[int]) -> None:
        self.live_fragments = dict(enumerate(sizes))
        self.current = {
            address(id, position): address(id, position)
            for id, rows in self.live_fragments.items()
            for position in range(rows)
        }
        self.origins = list(self.current)
        self.reuse = FragmentReuse.empty()
        self.version, self.last = 1, len(sizes) - 1

    def compact(self, groups: list[tuple[list[int], set[int]]], rows_max: int) -> None:
        """Compact groups; each has its fragments and the addresses that do not survive."""
        rewrites: list[FragmentRewrite] = []
        for old, dead in groups:
            rows = [
                address(id, position)
                for id in sorted(old)
                for position in range(self.live_fragments[id])
                if address(id, position) not in dead
            ]
            first: int = self.last + 1 + sum(len(each.new) for each in rewrites)
            sizes = [min(rows_max, len(rows) - start) for start in range(0, len(rows), rows_max)]
            new = [fragment(first + number, size) for number, size in enumerate(sizes)]
            target_addresses = [address(each.id, position) for each in new for position in range(each.physical_rows)]
            new_addresses = dict(zip(rows, target_addresses, strict=True))
            self.current = {
                origin: new_addresses.get(position, position)
                for origin, position in self.current.items()
                if position in new_addresses or (position >> 32) not in old
            }
            deleted = [
                np.array(
                    [position for position in range(self.live_fragments[id]) if address(id, position) in dead],
                    dtype=np.uint32,
                )
                for id in old
            ]
            olds = [fragment(id, self.live_fragments[id]) for id in old]
            rewrites.append(FragmentRewrite(tuple(olds), tuple(deleted), tuple(new)))
        for group in rewrites:
            for each in group.old:
                del self.live_fragments[each.id]
            self.live_fragments |= {each.id: each.physical_rows for each in group.new}
            self.last += len(group.new)
        self.reuse = self.reuse.with_compaction(Version(self.version), rewrites)
        self.version += 1


@st.composite
def compaction_models(draw: st.DrawFn) -> CompactionModel:
    history = CompactionModel(draw(st.lists(st.integers(1, 9), min_size=2, max_size=6)))
    for _ in range(draw(st.integers(0, 3))):
        if not history.live_fragments:
            break
        ids = draw(st.permutations(sorted(history.live_fragments)))
        chosen = ids[: draw(st.integers(1, len(ids)))]
        cut = draw(st.integers(0, len(chosen)))
        dead = set(draw(st.lists(st.sampled_from(sorted(history.current.values()) or history.origins), max_size=9)))
        groups = [(sorted(part), dead) for part in (chosen[:cut], chosen[cut:]) if part]
        history.compact(groups, draw(st.integers(1, 20)))
    return history


@settings(max_examples=200, deadline=None)
@given(compaction_models(), st.data())
def test_rows_are_followed_through_compactions(history: CompactionModel, data: st.DataObject) -> None:
    alive = sorted(history.live_fragments)
    covered = BitMap(data.draw(st.lists(st.sampled_from(alive)))) if alive else BitMap()
    rows = np.array(data.draw(st.lists(st.sampled_from(history.origins))), dtype=np.uint64)
    remap = FollowCompactions(CompactionLog(history.reuse, path="m"), covered)
    new_rows, is_kept = remap.remap(rows)
    known = {origin: position for origin, position in history.current.items() if (position >> 32) in covered}
    assert is_kept.tolist() == [each in known for each in rows.tolist()]
    assert new_rows[is_kept].tolist() == [known[each] for each in rows[is_kept].tolist()]
    all_rows = RowSet.of(np.array(sorted(history.current), dtype=np.uint64))
    assert list(remap.remap_set(all_rows)) == sorted(known.values())


def test_same_addresses_keep_rows_of_live_fragments() -> None:
    rows = np.array([address(0, 1), address(2, 5), address(3, 0)], dtype=np.uint64)
    remap = SameAddresses(BitMap([0, 3]))
    assert remap.remap(rows)[1].tolist() == [True, False, True]
    assert list(remap.remap_set(RowSet.of(rows))) == [address(0, 1), address(3, 0)]
    assert not mask_within(rows, BitMap()).any()


def test_row_ids_are_resolved_or_kept() -> None:
    old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    new = FragmentRowIds(FragmentId(4), RowIdSequence.of([11, 20]))
    located = ResolveRowIds(RowIdIndex([old, new], path="m"), BitMap([3]))
    ids = np.array([12, 10, 11, 99], dtype=np.uint64)
    new_rows, is_kept = located.remap(ids)
    assert (new_rows[:2].tolist(), is_kept.tolist()) == ([address(3, 2), address(3, 0)], [True, True, False, False])
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
    log = CompactionLog(FragmentReuse.decode(content.SerializeToString(), path="m"), path="m")
    with pytest.raises(Corrupt, match=r"a set of rows|maps 2 of 3 rows to 3") as raised:
        log.follow(np.array([0], dtype=np.uint64))
    assert raised.value.field == "changed_row_addrs"


def test_fragments_created_since_a_version() -> None:
    history = CompactionModel([2, 2, 2])
    history.compact([([0], set())], 10)
    history.compact([([1], set())], 10)
    log = CompactionLog(history.reuse, path="m")
    assert [list(log.fragments_created_since(version)) for version in (1, 2, 3)] == [[3, 4], [4], []]
    assert log.rows_under == {0: 2, 1: 2}
