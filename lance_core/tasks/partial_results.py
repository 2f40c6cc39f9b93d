"""Partial results: caches the results of the partitions of a change on the driver, for a replan on a newer version.

A conflict makes the driver replan the change, and most fragments are unchanged by then: their results stay valid,
since their files are written. Only partitions with a changed fragment run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.tasks.driver import run_over_partitions
from lance_core.tasks.partitioning import PartitionFunction, Runner, partition_fragments
from lance_core.versions.snapshot import Snapshot

EncodedPartition = tuple[bytes, ...]


@dataclass(slots=True)
class PartialResults:
    """Cache of the results of one change. `function` must be a value that equals another one with the same effect."""

    _valid_for: tuple[TableSchema, bool, PartitionFunction] | None = None
    _results: dict[EncodedPartition, list[bytes]] = field(default_factory=dict)

    def restore(
        self, base: Snapshot, results: Mapping[EncodedPartition, list[bytes]], function: PartitionFunction
    ) -> None:
        """Take over results that an earlier driver recorded. The first of several partitions that share a fragment
        counts."""
        self._valid_for = (base.manifest.schema, base.manifest.has_stable_row_ids, function)
        seen: set[bytes] = set()
        for partition, encoded in results.items():
            if seen.isdisjoint(partition):
                seen.update(partition)
                self._results[partition] = encoded

    def over_fragments(
        self,
        base: Snapshot,
        fragments: Sequence[Fragment],
        partitions_max: int,
        function: PartitionFunction,
        runner: Runner,
    ) -> Mapping[int, list[bytes]]:
        """Return the results of `function` for each partition of these fragments, from this call or an earlier one,
        numbered in the order of the fragments. A partition without results is absent."""
        valid_for = (base.manifest.schema, base.manifest.has_stable_row_ids, function)
        known = self._results if self._valid_for == valid_for else {}
        positions = {fragment.encode(): position for position, fragment in enumerate(fragments)}
        results = {
            partition: cached
            for partition, cached in known.items()
            if all(encoded in positions for encoded in partition)
        }
        completed = {encoded for partition in results for encoded in partition}
        partitions = partition_fragments(
            [fragments[position] for encoded, position in positions.items() if encoded not in completed], partitions_max
        )
        fresh = run_over_partitions(base, partitions, function, runner)
        results |= {partition: fresh.get(number, []) for number, partition in enumerate(partitions)}
        self._valid_for, self._results = valid_for, results
        in_order = sorted(results, key=lambda partition: positions[partition[0]])
        return {number: results[partition] for number, partition in enumerate(in_order) if results[partition]}
