"""What parts of a version gave back, kept for the next version of it.

When somebody was in the way, a change is planned again, and most fragments are as they were: what was done with those
stands, their files are written. Only parts of which a fragment changed are done once more. Of one change, on the
driver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.tasks.driver import over_partitions
from lance_core.tasks.partitioning import PartitionFunction, Runner, partition_fragments
from lance_core.versions.snapshot import Snapshot

EncodedPartition = tuple[bytes, ...]


@dataclass(slots=True)
class PartialResults:
    """`function` has to be a value, equal to another that does the same."""

    _under: tuple[TableSchema, bool, PartitionFunction] | None = None
    _results: dict[EncodedPartition, list[bytes]] = field(default_factory=dict)

    def over_fragments(
        self, base: Snapshot, fragments: Sequence[Fragment], partitions_max: int, function: PartitionFunction, runner: Runner
    ) -> Mapping[int, list[bytes]]:
        """What `function` gave back for each part of these fragments, now or before, numbered in the order of the
        fragments; a part that gave back nothing is missing."""
        under = (base.manifest.schema, base.manifest.has_stable_row_ids, function)
        known = self._results if self._under == under else {}
        places = {fragment.encode(): place for place, fragment in enumerate(fragments)}
        results = {part: found for part, found in known.items() if all(each in places for each in part)}
        done = {each for part in results for each in part}
        parts = partition_fragments([fragments[place] for each, place in places.items() if each not in done], partitions_max)
        fresh = over_partitions(base, parts, function, runner)
        results |= {part: fresh.get(number, []) for number, part in enumerate(parts)}
        self._under, self._results = under, results
        in_order = sorted(results, key=lambda part: places[part[0]])
        return {number: results[part] for number, part in enumerate(in_order) if results[part]}
