"""Workload `growth`: time of operations by the size of a table, and the exponents of the curves.

The axes are columns, fragments, fragments of one row, versions, tags, segments of an index, and tables below a prefix
(`benchmarks/growth.py`). The workloads `commit`, `versions` and `fleet_plan` measure further curves of their own.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.growth import AXES, Axis, Step, copy_table
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.memory import PeakMemory
from benchmarks.report import Facts, GrowthPoint
from lance_core import Table

_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_CALLS_OF_READS = 3


class Growth:
    name = "growth"
    summary = "operations by number of columns, fragments, versions, tags, index segments and tables"
    notes = (
        "exponent e: time = c * size ** e; a constant cost lowers it, so that the last one is nearer to the curve",
        "a call opens its table, but for 'commit a file' and 'delete one fragment', which get an open one",
        "peak MB: additional resident memory during a call, the largest of all calls but the first",
        "fragments: all but one have no data files, since the steps read metadata; ours is not durable here",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {f"{axis.name.replace(' ', '_')}_max": max(axis.sizes[scale]) for axis in AXES}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        for axis in AXES:
            for size in axis.sizes[stage.scale]:
                directory = stage.workspace / f"{axis.name}-{size}".replace(" ", "-")
                stage.log(f"building {size} {axis.name}")
                axis.build(directory / "built", size)
                for step in axis.steps:
                    yield _case(axis, step, size, directory)
                shutil.rmtree(directory)


WORKLOAD = Growth()


@dataclass(slots=True)
class _Runner:
    axis: Axis
    step: Step
    prepare: Callable[[str], Callable[[], object]]
    directory: Path
    """Directory of the table and of its copies."""
    system: str
    _memory: PeakMemory = field(default_factory=PeakMemory)
    _call: Callable[[], object] | None = None

    @property
    def _path(self) -> Path:
        return self.directory / (self.system if self.step.changes_table else "built")

    def before(self) -> None:
        if self.step.changes_table:
            shutil.rmtree(self._path, ignore_errors=True)
            copy_table(self.directory / "built", self._path)
        self._call = self.prepare(str(self._path))
        self._memory.begin_call()

    def call(self) -> None:
        assert self._call is not None
        self._call()

    def call_figures(self) -> CallFigures:
        return CallFigures(peaks=self._memory.end_call())

    def facts(self) -> Facts:
        if not self.axis.is_one_table:
            return {}
        table = Table.open(self._path)
        return {"rows": table.count_rows(), "columns": len(table.schema.names)}


def _case(axis: Axis, step: Step, size: int, directory: Path) -> Case:
    runner = partial(_Runner, axis, step, directory=directory)
    ours = Entrant("ours", Side.OURS, lambda: runner(prepare=step.ours, system="ours"))
    entrants = [ours]
    if (pylance := step.pylance) is not None:
        peer = partial(runner, prepare=pylance, system="pylance")
        entrants.append(Entrant("pylance", Side.PEER, peer, needs=("pylance",)))
    return Case(
        f"{step.name}, {size} {axis.name}",
        tuple(entrants),
        calls=1 if step.changes_table else _CALLS_OF_READS,
        point=GrowthPoint(f"{axis.name}: {step.name}", size),
    )
