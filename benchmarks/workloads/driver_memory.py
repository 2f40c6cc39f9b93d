"""What ops on a table of many fragments take of the driver's memory: Python's peak, and Java's heap, which is bounded.

Memory must grow with neither rows nor bytes, and little with fragments: their metadata is all that a driver holds.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial

from benchmarks.harness import Case, Entrant, Scale, Side, Stage, Told
from benchmarks.report import Facts
from benchmarks.spark_driver import OPS, Driver, Memory, built, driver
from lance_core import Table

HEAP = "512m"
_FRAGMENTS: Mapping[Scale, int] = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 10_000}
_ROWS_PER_FRAGMENT: Mapping[Scale, int] = {Scale.SMOKE: 10, Scale.DEFAULT: 10_000, Scale.FULL: 10_000}


class DriverMemory:
    name = "driver_memory"
    summary = "memory of a Spark driver by op, on a table of many fragments"
    notes = (
        f"one driver for all ops, local[2] with a heap of {HEAP}, in which the executors' Java part works too",
        "python_mib is the peak of the driver's own process, libraries included; its workers are others",
        "heap_mib is what is in use after the op and a collection; heap_mib_max is what there can be",
        "the fragments hold one small file each, links to one",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"fragments": _FRAGMENTS[scale], "rows": _FRAGMENTS[scale] * _ROWS_PER_FRAGMENT[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        fragments = _FRAGMENTS[stage.scale]
        stage.log(f"building a table of {fragments} fragments")
        uri = built(stage.workspace / "table", fragments, _ROWS_PER_FRAGMENT[stage.scale])
        with driver(HEAP) as process:
            for op in OPS:
                yield Case(op, (Entrant("ours", Side.OURS, partial(_Op, process, op, uri)),), warm_ups=0)


WORKLOAD = DriverMemory()


@dataclass
class _Op:
    process: Driver
    op: str
    uri: str
    _last: Memory | None = None

    def before(self) -> None:
        """Each is done once."""

    def call(self) -> None:
        self._last = self.process.op(self.op, self.uri)

    def told(self) -> Told:
        assert self._last is not None
        last = self._last
        return Told(
            counts={
                "python_mib": last.python_mib,
                "heap_mib": last.heap_mib,
                "heap_mib_max": last.heap_mib_max,
            }
        )

    def facts(self) -> Facts:
        return {"rows": Table.open(self.uri).count_rows()}
