"""What a scan will read: which fragments, which of their rows, which columns. Pure: a manifest in, a plan out."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate, with_metadata_columns
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Live rows `skip` to `skip + take` of one fragment; all that are left where `take` is None."""

    fragment: Fragment
    skip: int = 0
    take: int | None = None


@dataclass(frozen=True, slots=True)
class ScanPlan:
    manifest: Manifest
    columns: tuple[str, ...]
    """What comes back, in this order."""
    tasks: tuple[ScanTask, ...]
    predicate: Predicate | None = None
    """Rows that do not match are left out; `skip` and `take` of tasks are then unused, for nobody knows which match."""
    limit: int | None = None
    offset: int = 0
    """Both count matching rows over the whole scan. Without a predicate the tasks say it all already."""

    @property
    def columns_read(self) -> tuple[str, ...]:
        also = self.predicate.columns if self.predicate else ()
        return (*self.columns, *(name for name in also if name not in self.columns))


def plan_scan(
    manifest: Manifest,
    *,
    columns: Sequence[str] | None,
    filter: str | None = None,
    limit: int | None = None,
    offset: int | None = None,
) -> ScanPlan:
    """All columns where none are named; fragments that hold no wanted row are left out."""
    if (limit is not None and limit < 0) or (offset is not None and offset < 0):
        raise InvalidInput(f"limit={limit} and offset={offset} count rows from the start; neither may be negative")
    arrow = with_metadata_columns(manifest.schema.arrow)
    names = manifest.schema.arrow.names
    for name in columns or ():
        if name not in arrow.names:
            raise InvalidInput(_unknown_column(name, names))
    if columns is not None and len(set(columns)) != len(columns):
        raise InvalidInput(f"a column is named twice in {list(columns)}")
    chosen = tuple(names if columns is None else columns)
    everything = tuple(map(ScanTask, manifest.fragments))
    if filter is not None:
        predicate = Predicate.parse(filter, arrow)
        return ScanPlan(manifest, chosen, everything, predicate, limit, offset or 0)
    if limit is None and not offset:
        return ScanPlan(manifest, chosen, everything)
    return ScanPlan(manifest, chosen, tuple(_window(manifest, offset or 0, limit)))


def _window(manifest: Manifest, offset: int, limit: int | None) -> list[ScanTask]:
    tasks = []
    to_skip, to_take = offset, limit
    for fragment in manifest.fragments:
        if to_take == 0:
            break
        rows = fragment.live_rows
        if to_skip >= rows:
            to_skip -= rows
            continue
        take = rows - to_skip if to_take is None else min(rows - to_skip, to_take)
        tasks.append(ScanTask(fragment, skip=to_skip, take=take))
        to_skip = 0
        to_take = None if to_take is None else to_take - take
    return tasks


def _unknown_column(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
    return f"there is no column {name!r}{hint}"
