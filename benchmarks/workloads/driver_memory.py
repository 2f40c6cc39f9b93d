"""Workload `driver_memory`: memory that operations on a table of many fragments take in the Spark driver, namely the
peak of its Python process and its bounded Java heap.

Memory must not grow with rows or bytes, and little with fragments, because the driver holds only their metadata.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.spark_driver import OPS, Driver, Memory, build_table, start_driver
from lance_core import Table

HEAP = "512m"
_FRAGMENTS: Mapping[Scale, int] = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 10_000}
_ROWS_PER_FRAGMENT: Mapping[Scale, int] = {Scale.SMOKE: 10, Scale.DEFAULT: 10_000, Scale.FULL: 10_000}


class DriverMemory:
    name = "driver_memory"
    summary = "memory of a Spark driver by operation, on a table of many fragments"
    notes = (
        f"one driver for all ops, local[2] with a heap of {HEAP}, which also holds the Java part of the executors",
        "python_mib is the peak of the driver's own process, libraries included; its workers are not included",
        "heap_mib is in use after the operation and a garbage collection; heap_mib_max is the limit",
        "each fragment has one small file, all hard links to one",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"fragments": _FRAGMENTS[scale], "rows": _FRAGMENTS[scale] * _ROWS_PER_FRAGMENT[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        fragments = _FRAGMENTS[stage.scale]
        stage.log(f"building a table of {fragments} fragments")
        uri = build_table(stage.workspace / "table", fragments, _ROWS_PER_FRAGMENT[stage.scale])
        with start_driver(HEAP) as process:
            for op in OPS:
                yield Case(op, (Entrant("ours", Side.OURS, partial(_OpRunner, process, op, uri)),), warm_ups=0)


WORKLOAD = DriverMemory()


@dataclass
class _OpRunner:
    process: Driver
    op: str
    uri: str
    _last: Memory | None = None

    def before(self) -> None:
        """Each operation runs once."""

    def call(self) -> None:
        self._last = self.process.run_op(self.op, self.uri)

    def call_figures(self) -> CallFigures:
        assert self._last is not None

        return CallFigures(
            counts={
                "python_mib": self._last.python_mib,
                "heap_mib": self._last.heap_mib,
                "heap_mib_max": self._last.heap_mib_max,
            }
        )

    def facts(self) -> Facts:
        return {"rows": Table.open(self.uri).count_rows()}
