"""Morsels: the units of work of a scan. A morsel is a range of rows of a fragment, so small that several fit in
memory.

Morsels are grouped, and one thread reads a group at a time: morsels of small fragments share a group. If a limit asks
for a few matching rows, the first morsels are small. This module reads nothing except the deletions of a fragment
whose live rows have to be counted. Start with `morsel_groups`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.error_context import ReadContext
from lance_core.datafiles.fragment_reader import FragmentReader, is_joinable, load_deletions
from lance_core.datafiles.open_fragment import OpenFragment
from lance_core.expressions import Predicate
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.plan import MORSEL_BYTES, ScanPlan, ScanTask
from lance_core.scan.resident_rows import ResidentRows
from lance_core.scan.selection import FragmentSelection, Offsets
from lance_core.scan.system_columns import SystemColumns
from lance_core.storage.local import LocalStore
from lance_core.versions.location import Location

_GROUP_ROWS = 65_536
_GROUP_MORSELS = 16
_GROUP_JOINED = 256
"""Morsels of a group that are read by one call of the codec."""
JOINED_BYTES_MAX = 256 * 1024
"""Fragments of a local disk up to this size are read by one call of the codec, since a call takes as long as copying
this many bytes."""
_FIRST_MORSEL_ROWS = 16_384
_GROWTH = 4
_OPEN_READERS_MAX = 6
"""Readers per fragment, one for each set of columns that are read together."""
PICK_ONE_IN = 50
"""Rows are picked by number if at most one in this many is requested. Measured on 16 columns of mixed types: picking 1
percent takes half as long as reading all rows, picking 10 percent twice as long."""
_RUN_ROWS_MIN = 256
_RUN_GAP_MAX = 1024
"""Rows that are further apart belong to different runs."""


class LiveFragment:
    """A fragment with what all of its morsels share: its deletions, system columns and open files."""

    def __init__(self, location: Location, manifest: Manifest, fragment: Fragment) -> None:
        self._location = location
        self.fragment = fragment
        path = manifest_path(location, manifest)
        self._context = ReadContext(path, fragment.id)
        self.system_columns = SystemColumns(manifest, fragment, path=path)
        self._deletions: tuple[DeletionVector | None] | None = None
        self._open: dict[FragmentReader, OpenFragment] = {}
        self._rows: dict[FragmentReader, ResidentRows] = {}

    def open_with(self, reader: FragmentReader) -> OpenFragment:
        """Return the open files of the fragment for a reader. Two concurrent threads may both open them,
        which is harmless."""
        opened = self._open.get(reader)
        if opened is None:
            opened = reader.open(self.fragment)
            if len(self._open) >= _OPEN_READERS_MAX:
                self._open = {}
            self._open[reader] = opened
        return opened

    def rows_of(self, reader: FragmentReader) -> ResidentRows:
        """Return the rows of the fragment for a reader, from which single rows are taken."""
        opened, rows = self.open_with(reader), self._rows.get(reader)
        if rows is None or rows.opened is not opened:
            if len(self._rows) >= _OPEN_READERS_MAX:
                self._rows = {}
            rows = self._rows[reader] = ResidentRows(opened)
        return rows

    @property
    def deletions(self) -> DeletionVector | None:
        if self._deletions is None:
            with self._context.named_in_errors():
                self._deletions = (load_deletions(self._location.store, self.fragment),)
        return self._deletions[0]

    def physical_offset(self, live: int) -> int:
        """Return the offset of the live row with this number; the end of the fragment for the number after the last."""
        rows, deleted = self.fragment.physical_rows, self.deletions
        if not deleted or live >= rows - len(deleted):
            return min(live, rows) if not deleted else rows
        return int(deleted.to_physical_offsets(np.array([live]))[0])


@dataclass(frozen=True, slots=True)
class Morsel:
    """Consecutive physical rows of a fragment that are read in one pass."""

    source: LiveFragment
    start: int
    count: int
    picked: "PickedRows | None" = None
    """Rows to read; `None` for all rows of the range."""
    is_joinable: bool = False
    """`True` if it is a whole fragment that is read in less time together with others."""

    @property
    def byte_count(self) -> int:
        """Estimated bytes of its rows in the files."""
        fragment = self.source.fragment
        return fragment.file_bytes * self.count // max(1, fragment.physical_rows)


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Live rows that an index selected, and the condition that they still have to be tested against."""

    offsets: Offsets
    residual: Predicate | None

    @property
    def is_dense(self) -> bool:
        """`True` if reading all rows between the first and the last is faster than picking them."""
        count = len(self.offsets)
        return count >= _RUN_ROWS_MIN and bool(_is_run(count, self.offsets[-1:] - self.offsets[:1])[0])


def morsel_groups(
    location: Location,
    plan: ScanPlan,
    opened: Callable[[Fragment], LiveFragment] | None = None,
    *,
    morsel_bytes: int = MORSEL_BYTES,
) -> Iterator[list[Morsel]]:
    """Yield the morsels of a plan, in groups. `opened` returns cached fragments, from which rows are picked."""
    group: list[Morsel] = []
    rows, size = 0, 0
    sizes = plan.morsel_sizes()
    stops_early = plan.predicate is not None and plan.limit is not None
    is_local = isinstance(location.own_store, LocalStore)
    single_morsels_max = _GROUP_MORSELS if is_local else 1
    for task in plan.tasks:
        width = sizes.row_bytes(task.fragment)
        for morsel in _morsels_of_task(
            location, plan, task, sizes.rows_per_morsel(width, morsel_bytes), opened, grows=stops_early
        ):
            group.append(morsel)
            read = morsel.count if morsel.picked is None else len(morsel.picked.offsets)
            rows, size = rows + read, size + read * width
            morsels_max = _GROUP_JOINED if morsel.is_joinable else single_morsels_max
            if stops_early or rows >= _GROUP_ROWS or size >= morsel_bytes or len(group) >= morsels_max:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group


def _morsels_of_task(
    location: Location,
    plan: ScanPlan,
    task: ScanTask,
    rows_max: int,
    opened: Callable[[Fragment], LiveFragment] | None,
    *,
    grows: bool,
) -> Iterator[Morsel]:
    """Yield the morsels of a task. With `grows` the first ones are small, since they may already hold the
    requested rows."""
    picks = task.selection is not None and not task.selection.is_most_of(task.fragment.physical_rows)
    source = opened(task.fragment) if picks and opened else LiveFragment(location, plan.manifest, task.fragment)
    if picks:
        assert task.selection is not None
        yield from _morsels_of_selection(source, task.selection, rows_max, grows=grows)
        return
    start, stop = 0, task.fragment.physical_rows
    if not task.is_whole:
        start = source.physical_offset(task.skip)
        stop = stop if task.take is None else source.physical_offset(task.skip + task.take)
    if not stop:  # the manifest says that the fragment is empty; its files must agree
        yield Morsel(source, 0, 0)
    step = min(rows_max, _FIRST_MORSEL_ROWS) if grows else rows_max
    if not start and stop == task.fragment.physical_rows <= step:
        is_local = isinstance(location.own_store, LocalStore)
        yield Morsel(source, 0, stop, is_joinable=(is_joined if is_local else is_joinable)(task.fragment))
        return
    while start < stop:
        yield Morsel(source, start, min(step, stop - start))
        start += step
        step = min(rows_max, step * _GROWTH)


def is_joined(fragment: Fragment) -> bool:
    """Return whether a fragment is so small that it is read in less time together with others."""
    return 0 < fragment.file_bytes <= JOINED_BYTES_MAX and is_joinable(fragment)


def _morsels_of_selection(
    source: LiveFragment, selection: FragmentSelection, rows_max: int, *, grows: bool
) -> Iterator[Morsel]:
    """Yield the morsels of selected rows: runs with many of them separately, and the scattered rows between
    runs together. If the rows still have to be tested, a run is an ordinary morsel, for which the whole filter
    is evaluated."""
    offsets = selection.live_offsets(source.deletions)
    yield from morsels_of_rows(source, offsets, rows_max, residual=selection.residual, grows=grows)


def morsels_of_rows(
    source: LiveFragment,
    offsets: Offsets,
    rows_max: int,
    *,
    residual: Predicate | None = None,
    grows: bool = False,
) -> Iterator[Morsel]:
    """Yield the morsels of rows at these offsets, which are live."""
    step = min(rows_max, _FIRST_MORSEL_ROWS) if grows else rows_max
    start = 0
    for stop in _run_boundaries(offsets):
        is_run = PickedRows(offsets[start:stop], None).is_dense
        while start < stop:
            part = offsets[start : min(stop, start + step)]
            if is_run:
                part = part[: np.searchsorted(part, part[0] + step)]
            picked = PickedRows(part, residual)
            first, count = int(part[0]), int(part[-1]) + 1 - int(part[0])
            yield Morsel(source, first, count, None if picked.is_dense and residual is not None else picked)
            start += len(part)
            step = min(rows_max, step * _GROWTH)


def _run_boundaries(offsets: Offsets) -> Sequence[int]:
    """Return where runs that are read as a whole begin and end, and the end of the rows."""
    if len(offsets) < _RUN_ROWS_MIN:
        return (len(offsets),)
    ends = np.append(np.flatnonzero(np.diff(offsets) > _RUN_GAP_MAX) + 1, len(offsets))
    starts = np.concatenate([[0], ends[:-1]])
    is_run = _is_run(ends - starts, offsets[ends - 1] - offsets[starts])
    cuts: list[int] = np.unique(np.concatenate([starts[is_run], ends[is_run], [len(offsets)]])).tolist()
    return cuts if cuts[0] else cuts[1:]


def _is_run(count: Offsets | int, span: Offsets) -> npt.NDArray[np.bool_]:
    return np.asarray((count >= _RUN_ROWS_MIN) & (count * PICK_ONE_IN >= span))


def manifest_path(location: Location, manifest: Manifest) -> str:
    """Return the path of the manifest for error messages."""
    return f"{location.uri}/{manifest.path}"
