"""Explain: describes a scan plan as text. The described plan is the one that would run; describing it reads nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lance_core.format.schema import TableSchema
from lance_core.scan.plan import SMALL_FRAGMENT_BYTES, ScanPlan
from lance_core.versions.location import Location

_RUNS_MAX = 8


@dataclass(frozen=True, slots=True)
class IndexUsage:
    """Report of the index lookup about a plan."""

    lines: Sequence[str] = ("indices   none used: every fragment is scanned",)
    is_selective: bool = False
    """`True` if the indices leave fewer than all rows to be tested."""


def explain_plan(location: Location, plan: ScanPlan, indices: IndexUsage = IndexUsage()) -> str:
    return "\n".join(_explain_lines(location, plan, indices))


def _explain_lines(location: Location, plan: ScanPlan, indices: IndexUsage) -> Iterator[str]:
    yield f"scan {location.uri} at version {plan.manifest.version}"
    yield f"  returns   {_join_names(plan.columns)}"
    if plan.predicate is None:
        yield f"  reads     {_join_names(_typed_columns(plan.early))}"
    else:
        yield f"  filter    {plan.predicate.sql}"
        tested_rows = (
            "rows that no index answers exactly" if indices.is_selective else "every row, to evaluate the filter"
        )
        yield f"  reads     {_join_names(_typed_columns(plan.early))} of {tested_rows}"
        if plan.late.fields:
            yield f"  then      {_join_names(_typed_columns(plan.late))} of rows that match"
            if small := sum(plan.reads_all_at_once(task.fragment) for task in plan.tasks):
                yield f"            in the same read in {small} fragments of at most {SMALL_FRAGMENT_BYTES} bytes"
    if plan.limit is not None or plan.offset:
        yield f"  window    {'all' if plan.limit is None else plan.limit} matching rows after {plan.offset}"
    fragments = [task.fragment for task in plan.tasks]
    physical, live = sum(each.physical_rows for each in fragments), sum(each.live_rows for each in fragments)
    ids = format_ranges(fragment.id for fragment in fragments)
    yield (
        f"  fragments {len(fragments)} of {len(plan.manifest.fragments)} ({ids}), "
        f"{live} live rows, {physical - live} deleted"
    )
    for task in plan.tasks:
        if not task.is_whole:
            yield f"            of fragment {task.fragment.id} live rows {task.skip} to {task.skip + (task.take or 0)}"
    yield from (f"  {line}" for line in indices.lines)


def _typed_columns(schema: TableSchema) -> Sequence[str]:
    """Return names and types; a struct of which only some children are read shows those."""
    return [f"{each.name}: {each.type}" for each in schema.arrow]


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "no columns"


def format_ranges(numbers: Iterable[int]) -> str:
    """Format numbers as `1-4, 7`; many ranges are shortened."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join([*texts[:_RUNS_MAX], "…"] if len(texts) > _RUNS_MAX else texts) or "none"
