"""What lookups of single rows have open: fragments, their deletions, and the readers of their files, of the last few
versions that were asked. Files of a version never change, so nothing here can be out of date; how much is kept is
bounded, in versions, fragments and readers.

A scan of whole fragments opens what it reads and closes it. For one row, that would take longer than the row.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, TypeVar

from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.scan.morsels import LiveFragment
from lance_core.scan.plan import ScanPlan
from lance_core.scan.row_reader import RowReader
from lance_core.versions.location import Location

_VERSIONS_KEPT = 4
_FRAGMENTS_KEPT = 32
_READINGS_KEPT = 16

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """The last few that were asked for, for all threads. What two of them make at once, one keeps."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], Value], fits: Callable[[Value], bool] | None = None) -> Value:
        with self._lock:
            found = self._found.get(key)
            if found is not None and (fits is None or fits(found)):
                self._found.move_to_end(key)
                return found
        made = make()
        with self._lock:
            self._found[key] = made
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made


class ReaderCache:
    """Of one version."""

    def __init__(self, location: Location, manifest: Manifest) -> None:
        self._location = location
        self.manifest = manifest
        self._fragments: LruCache[LiveFragment] = LruCache(_FRAGMENTS_KEPT)
        self._readings: LruCache[RowReader] = LruCache(_READINGS_KEPT)

    @classmethod
    def of(cls, location: Location, manifest: Manifest) -> "ReaderCache":
        return _versions.of(id(manifest), lambda: cls(location, manifest), lambda warm: warm.manifest is manifest)

    def fragment(self, fragment: Fragment) -> LiveFragment:
        return self._fragments.of(fragment.id, lambda: LiveFragment(self._location, self.manifest, fragment))

    def reading(self, plan: ScanPlan, residual: Predicate | None) -> RowReader:
        """For rows that are picked, and looked at for what is left of the plan's condition."""
        key = (plan.output, residual, plan.limit, plan.offset)
        return self._readings.of(key, lambda: RowReader(self._location, replace(plan.looking_for(residual), tasks=())))


_versions: LruCache[ReaderCache] = LruCache(_VERSIONS_KEPT)
