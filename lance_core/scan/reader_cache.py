"""Reader cache: open fragments, their deletion vectors and the readers of their files, for lookups of single rows.

A scan of whole fragments opens and closes the files that it reads. For a single row, opening would take longer than
reading, so row lookups share this cache. It covers the versions that were used last. The files of a version never
change, so no entry can be out of date; the numbers of versions, fragments and readers are bounded.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lance_core.errors import Corrupt
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.morsels import LiveFragment
from lance_core.scan.plan import ScanPlan, plan_columns
from lance_core.scan.row_reader import RowReader
from lance_core.storage.lru_cache import LruCache
from lance_core.versions.location import Location

_VERSIONS_MAX = 4
_FRAGMENTS_MAX = 32
_READERS_MAX = 16
_ROWS_MAX = 2**32 - 1
"""Maximum number of rows in a fragment."""

Ints = npt.NDArray[np.int64]


class ReaderCache:
    """Open fragments and readers of one version, shared by all threads."""

    def __init__(self, location: Location, manifest: Manifest) -> None:
        self._location = location
        self.manifest = manifest
        self._fragments: LruCache[int, LiveFragment] = LruCache(_FRAGMENTS_MAX)
        self._plans: LruCache[tuple[str, ...] | None, ScanPlan] = LruCache(_READERS_MAX)
        self._readers: LruCache[Hashable, RowReader] = LruCache(_READERS_MAX)

    @classmethod
    def of(cls, location: Location, manifest: Manifest) -> "ReaderCache":
        return _versions.get_or_create(
            id(manifest), lambda: cls(location, manifest), lambda cached: cached.manifest is manifest
        )

    @cached_property
    def fragment_order(self) -> Ints:
        """Positions of the fragments in the version, ordered by fragment id."""
        return np.argsort(self._fragment_ids, kind="stable")

    @cached_property
    def ordered_fragment_ids(self) -> Ints:
        return self._fragment_ids[self.fragment_order]

    @cached_property
    def _fragment_ids(self) -> Ints:
        self.manifest.check_ids()
        return np.fromiter((each.id for each in self.manifest.message.fragments), dtype=np.int64)

    @cached_property
    def physical_rows(self) -> Ints:
        """Number of rows of each fragment, deleted ones included."""
        return self._checked([each.physical_rows for each in self.manifest.message.fragments])

    @cached_property
    def live_rows(self) -> Ints:
        """Number of rows of each fragment that are not deleted."""
        fragments = self.manifest.message.fragments
        return self._checked([each.physical_rows - each.deletion_file.num_deleted_rows for each in fragments])

    def _checked(self, counts: list[int]) -> Ints:
        for count in (min(counts, default=0), max(counts, default=0)):
            if not 0 <= count <= _ROWS_MAX:
                broken = self.manifest.message.fragments[counts.index(count)].id
                message = f"fragment {broken} cannot have {count} rows; examine the table with fsck()"
                raise Corrupt(message, path=self.manifest.path, field=f"fragments[id={broken}]")
        return np.array(counts, dtype=np.int64)

    def fragment(self, fragment: Fragment) -> LiveFragment:
        return self._fragments.get_or_create(fragment.id, lambda: LiveFragment(self._location, self.manifest, fragment))

    def plan_columns(self, columns: Sequence[str] | None) -> ScanPlan:
        """Return the plan that reads these columns of rows that are located in another way than by scanning."""
        key = None if columns is None else tuple(columns)
        return self._plans.get_or_create(key, lambda: plan_columns(self.manifest, columns))

    def row_reader(self, plan: ScanPlan, residual: Predicate | None) -> RowReader:
        """Return the reader for rows that an index selected and that still have to be tested against `residual`."""
        key = (plan.output, residual, plan.limit, plan.offset)
        return self._readers.get_or_create(
            key, lambda: RowReader(self._location, replace(plan.with_residual(residual), tasks=()))
        )


_versions: LruCache[int, ReaderCache] = LruCache(_VERSIONS_MAX)
