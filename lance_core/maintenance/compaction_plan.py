"""Which fragments are worth being written anew, and which of them together. Pure: fragments and coverage in, groups
out.

Neighbours are joined, and what comes out lies behind all that stays, since fragments are read in the order of their
ids. A group never mixes fragments that an index covers with fragments that it does not, since the index would then
cover half of what comes out. The rules are those of Lance, so that both libraries find the same table in shape.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core.datafiles.fragment_writer import BYTES_PER_FILE_MAX
from lance_core.format.fragment import Fragment

Group = tuple[Fragment, ...]
"""In ascending order of id."""

_DELETED_SHARE = 0.1
"""With more deleted rows than this, a fragment is worth being written anew on its own."""
_BYTES_LARGE = BYTES_PER_FILE_MAX // 2
"""Of files this large two would not fit into one."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    fragment: Fragment
    alone: bool
    """Worth it without a neighbour."""
    covered_by: frozenset[int]


def plan_groups(
    fragments: Iterable[Fragment], coverage: Sequence[BitMap], *, target_rows: int, materialize_deletions: bool
) -> tuple[Group, ...]:
    """`coverage` is one set of fragment ids for each index segment, of live fragments. None means nothing to do."""
    groups: list[Group] = []
    for run in _runs(fragments, coverage, target_rows, materialize_deletions):
        if len(run) > 1 or run[0].alone:
            groups.extend(_split(run, target_rows))
    return tuple(groups)


def mixes_coverage(group: Group, coverage: Sequence[BitMap]) -> bool:
    """Whether some index covers a part of it: it was planned before that index was there."""
    return any(0 < sum(fragment.id in covered for fragment in group) < len(group) for covered in coverage)


def rows_per_fragment(rows: int, target_rows: int) -> list[int]:
    """How many rows each new fragment gets: as evenly as they go, so that no small one is left over."""
    if not rows:
        return []
    files = max(1, rows // target_rows)
    each, more = divmod(rows, files)
    return [each + 1] * more + [each] * (files - more)


def _runs(
    fragments: Iterable[Fragment], coverage: Sequence[BitMap], target_rows: int, materialize_deletions: bool
) -> Iterator[list[_Candidate]]:
    """Neighbours that may be joined, as long as they go on."""
    run: list[_Candidate] = []
    for fragment in fragments:
        candidate = _candidate(fragment, coverage, target_rows, materialize_deletions)
        if run and (candidate is None or candidate.covered_by != run[-1].covered_by):
            yield run
            run = []
        if candidate is not None:
            run.append(candidate)
    if run:
        yield run


def _candidate(
    fragment: Fragment, coverage: Sequence[BitMap], target_rows: int, materialize_deletions: bool
) -> _Candidate | None:
    rows, live = fragment.physical_rows, fragment.live_rows
    alone = materialize_deletions and rows - live > _DELETED_SHARE * rows
    small = rows < target_rows and fragment.file_bytes < _BYTES_LARGE
    if not (alone or small):
        return None
    covered_by = frozenset(number for number, covered in enumerate(coverage) if fragment.id in covered)
    return _Candidate(fragment, alone, covered_by)


def _split(run: Sequence[_Candidate], target_rows: int) -> Iterator[Group]:
    """A group ends when it has the rows of a full fragment, unless what is left would not make another one."""
    left = sum(each.fragment.live_rows for each in run)
    group: list[Fragment] = []
    rows = 0
    for each in run:
        if rows >= target_rows and left >= target_rows:
            yield tuple(group)
            group, rows = [], 0
        group.append(each.fragment)
        rows += each.fragment.live_rows
        left -= each.fragment.live_rows
    yield tuple(group)
