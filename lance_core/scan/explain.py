"""A plan in words: what `explain` prints. The plan is the one that would run; nothing is read for it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lance_core.format.schema import TableSchema
from lance_core.scan.plan import SMALL_BYTES, ScanPlan
from lance_core.versions.location import Location

_RUNS_MAX = 8


@dataclass(frozen=True, slots=True)
class Indices:
    """What is told of them, by whoever knows any."""

    lines: Sequence[str] = ("indices   none used: every fragment is scanned",)
    narrow: bool = False
    """Whether they leave less than all rows to be looked at."""


def explained(location: Location, plan: ScanPlan, indices: Indices = Indices()) -> str:
    return "\n".join(_lines(location, plan, indices))


def _lines(location: Location, plan: ScanPlan, indices: Indices) -> Iterator[str]:
    yield f"scan {location.uri} at version {plan.manifest.version}"
    yield f"  returns   {_listed(plan.columns)}"
    if plan.predicate is None:
        yield f"  reads     {_listed(_columns(plan.first))}"
    else:
        yield f"  filter    {plan.predicate.sql}"
        whose = (
            "rows that an index does not tell exactly" if indices.narrow else "every row, where the filter is evaluated"
        )
        yield f"  reads     {_listed(_columns(plan.first))} of {whose}"
        if plan.then.fields:
            yield f"  then      {_listed(_columns(plan.then))} of rows that match"
            if small := sum(plan.reads_at_once(task.fragment) for task in plan.tasks):
                yield f"            at once with the others in {small} fragments of at most {SMALL_BYTES} bytes"
    if plan.limit is not None or plan.offset:
        yield f"  window    {'all' if plan.limit is None else plan.limit} matching rows after {plan.offset}"
    fragments = [task.fragment for task in plan.tasks]
    physical, live = sum(each.physical_rows for each in fragments), sum(each.live_rows for each in fragments)
    yield (
        f"  fragments {len(fragments)} of {len(plan.manifest.fragments)} ({runs(each.id for each in fragments)}), "
        f"{live} live rows, {physical - live} deleted"
    )
    for task in plan.tasks:
        if not task.is_whole:
            yield f"            of fragment {task.fragment.id} live rows {task.skip} to {task.skip + (task.take or 0)}"
    yield from (f"  {line}" for line in indices.lines)


def _columns(schema: TableSchema) -> Sequence[str]:
    """Structs that are read in part are told by their parts."""
    return [f"{each.name}: {each.type}" for each in schema.arrow]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no columns"


def runs(numbers: Iterable[int]) -> str:
    """`1-4, 7`, cut short."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    return ", ".join([*texts[:_RUNS_MAX], "…"] if len(texts) > _RUNS_MAX else texts) or "none"
