"""Run partitions: returns the partition keys that a step writes or loads, and refuses wrong keys from Dagster's cache.

Dagster caches the keys of a time window by its local start and end. It therefore confuses windows that begin or end at
a local time that occurs twice: a run for one such hour may get the keys of both hours, or of the other one. Start with
`output_keys`, `input_keys` and `step_keys`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import dagster as dg

from lance_core import InvalidInput


def output_keys(context: dg.OutputContext) -> list[str]:
    """Return the keys of the partitions that a step writes."""
    if context.has_partition_key:
        return [context.partition_key]
    keys, key_range = list(context.asset_partition_keys), context.step_context.partition_key_range
    _check_keys(context.asset_partitions_def, [key_range], keys)
    return keys


def input_keys(context: dg.InputContext) -> list[str]:
    """Return the keys of the partitions that an input loads."""
    step, keys = context.step_context, list(context.asset_partition_keys)
    if step.has_partitions and isinstance(step.run_partitions_def, dg.TimeWindowPartitionsDefinition):
        run_range = step.partition_key_range
        _check_keys(
            step.run_partitions_def, [run_range], step.run_partitions_def.get_partition_keys_in_range(run_range)
        )
    if isinstance(context.asset_partitions_def, dg.TimeWindowPartitionsDefinition):
        subset = step.asset_partitions_subset_for_input(context.name)
        _check_keys(context.asset_partitions_def, subset.get_partition_key_ranges(context.asset_partitions_def), keys)
    return keys


def step_keys(context: dg.AssetExecutionContext) -> list[str]:
    """Return the keys of the partitions of a step that writes a table itself."""
    if context.has_partition_key:
        return [str(context.partition_key)]
    keys, partitions = list(context.partition_keys), context.assets_def.partitions_def
    if partitions is not None:
        _check_keys(partitions, [context.partition_key_range], keys)
    return keys


def shown_keys(keys: Sequence[str]) -> str:
    """Return the name of partitions in intents and properties: the key, or the first and the last one."""
    return keys[0] if len(keys) == 1 else f"{keys[0]}...{keys[-1]}"


def _check_keys(
    partitions: dg.PartitionsDefinition[str], key_ranges: Sequence[dg.PartitionKeyRange], keys: Sequence[str]
) -> None:
    """Raise `InvalidInput` if these are not the keys of the ranges; check only windows that Dagster can confuse."""
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return
    if not any(_has_ambiguous_end(partitions, key_range) for key_range in key_ranges):
        return
    expected = [key for key_range in key_ranges for key in _keys_in_range(partitions, key_range)]
    if sorted(expected) != sorted(keys):
        raise InvalidInput(
            f"Dagster returned the partitions {', '.join(keys)} instead of {', '.join(expected)}, because clocks were "
            "turned back at their start or end. Nothing was read or written; launch the run again, in a process of its "
            "own or one partition at a time"
        )


def _has_ambiguous_end(partitions: dg.TimeWindowPartitionsDefinition, key_range: dg.PartitionKeyRange) -> bool:
    start = partitions.time_window_for_partition_key(key_range.start).start
    end = partitions.time_window_for_partition_key(key_range.end).end
    return _is_ambiguous(start) or _is_ambiguous(end)


def _is_ambiguous(moment: datetime) -> bool:
    return moment.replace(fold=0).utcoffset() != moment.replace(fold=1).utcoffset()


def _keys_in_range(partitions: dg.TimeWindowPartitionsDefinition, key_range: dg.PartitionKeyRange) -> Iterator[str]:
    """Yield the keys of a range, window by window."""
    window: dg.TimeWindow | None = partitions.time_window_for_partition_key(key_range.start)
    end = partitions.time_window_for_partition_key(key_range.end).end.timestamp()
    while window is not None and window.start.timestamp() < end:
        yield partitions.get_partition_key_for_timestamp(window.start.timestamp())
        window = partitions.get_next_partition_window(window.end, respect_bounds=False)
