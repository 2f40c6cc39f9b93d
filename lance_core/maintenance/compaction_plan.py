"""Compaction plan: decides which fragments are worth a rewrite, and which of them are rewritten together.

Pure: fragments and index coverage in, groups out. Neighbouring fragments are joined, and the new fragments come after
all that stay, since fragments are read in the order of their ids. A group never mixes fragments that an index covers
with fragments that it does not, since the index would then cover only a part of a new fragment. A fragment with
overlays is always rewritten, which puts their values into its columns. The other rules are those of Lance, so that both
libraries agree on when a table needs no compaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from lance_core.datafiles.fragment_writer import BYTES_PER_FILE_MAX
from lance_core.format.fragment import Fragment

Group = tuple[Fragment, ...]
"""Fragments in ascending order of id."""

_DELETED_SHARE = 0.1
"""Share of deleted rows above which a fragment is worth a rewrite on its own."""
_BYTES_LARGE = BYTES_PER_FILE_MAX // 2
"""Size above which two data files do not fit into one."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Fragment that may be rewritten."""

    fragment: Fragment
    is_worth_rewriting_alone: bool
    """True if it is worth a rewrite without a neighbour."""
    covered_by: frozenset[int]


def plan_groups(
    fragments: Iterable[Fragment], coverage: Sequence[BitMap], *, target_rows: int, materialize_deletions: bool
) -> tuple[Group, ...]:
    """Return the groups to rewrite; none if there is nothing to do. `coverage` has one set of live fragment ids for
    each index segment."""
    groups: list[Group] = []
    for run in _runs(fragments, coverage, target_rows, materialize_deletions):
        if len(run) > 1 or run[0].is_worth_rewriting_alone:
            groups.extend(_split_run(run, target_rows))
    return tuple(groups)


def mixes_coverage(group: Group, coverage: Sequence[BitMap]) -> bool:
    """Return whether some index covers only a part of the group: the group was planned before the index was built."""
    return any(0 < sum(fragment.id in covered for fragment in group) < len(group) for covered in coverage)


def rows_per_fragment(rows: int, target_rows: int) -> list[int]:
    """Return the number of rows of each new fragment, as equal as possible, so that no small fragment remains."""
    if not rows:
        return []
    files = max(1, rows // target_rows)
    rows_each, remainder = divmod(rows, files)
    return [rows_each + 1] * remainder + [rows_each] * (files - remainder)


def _runs(
    fragments: Iterable[Fragment], coverage: Sequence[BitMap], target_rows: int, materialize_deletions: bool
) -> Iterator[list[_Candidate]]:
    """Yield runs of neighbouring candidates that may be joined."""
    run: list[_Candidate] = []
    for fragment in fragments:
        candidate = _as_candidate(fragment, coverage, target_rows, materialize_deletions)
        if run and (candidate is None or candidate.covered_by != run[-1].covered_by):
            yield run
            run = []
        if candidate is not None:
            run.append(candidate)
    if run:
        yield run


def _as_candidate(
    fragment: Fragment, coverage: Sequence[BitMap], target_rows: int, materialize_deletions: bool
) -> _Candidate | None:
    """Return the fragment as a candidate, or `None` if it needs no rewrite."""
    rows, live = fragment.physical_rows, fragment.live_rows
    has_deletions = materialize_deletions and rows - live > _DELETED_SHARE * rows
    is_worth_rewriting_alone = has_deletions or fragment.has_overlays
    is_small = rows < target_rows and fragment.file_bytes < _BYTES_LARGE
    if not (is_worth_rewriting_alone or is_small):
        return None
    covered_by = frozenset(number for number, covered in enumerate(coverage) if fragment.id in covered)
    return _Candidate(fragment, is_worth_rewriting_alone, covered_by)


def _split_run(run: Sequence[_Candidate], target_rows: int) -> Iterator[Group]:
    """Yield groups with the rows of at least one full fragment. The rest is not split off if it would not fill
    another one."""
    remaining = sum(candidate.fragment.live_rows for candidate in run)
    group: list[Fragment] = []
    rows = 0
    for candidate in run:
        if rows >= target_rows and remaining >= target_rows:
            yield tuple(group)
            group, rows = [], 0
        group.append(candidate.fragment)
        rows += candidate.fragment.live_rows
        remaining -= candidate.fragment.live_rows
    yield tuple(group)
