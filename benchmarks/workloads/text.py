"""Workload `text`: time and memory of full-text index builds, by one process and in a process of its own.

Each build works on a table of its own that shares data files by hard links.
"""

import resource
import shutil
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks import text_process
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.text_process import BUILDS, TextBuild
from benchmarks.texts import draw_texts
from benchmarks.workloads.index import link_table
from lance_core import Table

_SHORT: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 200_000, Scale.FULL: 1_000_000}
_LONG: Mapping[Scale, int] = {Scale.SMOKE: 200, Scale.DEFAULT: 20_000, Scale.FULL: 100_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 3}
_FRAGMENTS = 4
_PYLANCE = ("pylance",)


class Text:
    name = "text"
    summary = "full-text index builds"
    notes = (
        "builds: by one process, commit included; English, with stemming and stop words",
        "short: 6 to 14 words; long: 60 to 140 words, with positions",
        "pylance: all cores; ours: one thread",
        "processor time: that of all threads; on a busy machine only this figure is meaningful",
        "peak MB: of the first build in a process of its own, libraries included",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"short_texts": _SHORT[scale], "long_texts": _LONG[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        corpora = (("short texts", _SHORT, (6, 14), False), ("long texts, positions", _LONG, (60, 140), True))
        for name, counts, (shortest, longest), with_position in corpora:
            place, count = stage.workspace / "table", counts[stage.scale]
            stage.log(f"{name}: writing {count} texts")
            rows = pa.table({"body": draw_texts(count, shortest, longest)})
            Table.create(place, rows, max_rows_per_file=-(-count // _FRAGMENTS), durable=False)
            build = TextBuild(with_position)
            yield Case(f"build, {name}", _entrants(place, _BuildRunner, build), warm_ups=0)
            yield Case(f"build, {name}, in a process of its own", _entrants(place, _ProcessRunner, build), warm_ups=0)
            shutil.rmtree(place)


WORKLOAD = Text()


@dataclass(slots=True)
class _BuildRunner:
    source: Path
    system: str
    build: TextBuild
    seconds: float = 0.0
    """Processor time of all threads."""

    @property
    def uri(self) -> Path:
        return self.source.with_name(self.system)

    def before(self) -> None:
        link_table(self.source, self.uri)

    def call(self) -> None:
        begin = time.process_time()
        BUILDS[self.system](str(self.uri), self.build)
        self.seconds = time.process_time() - begin

    def call_figures(self) -> CallFigures:
        return CallFigures({"processor time": self.seconds})

    def facts(self) -> Facts:
        (index,) = Table.open(str(self.uri)).index_statistics()
        shutil.rmtree(self.uri)
        return {"index": index.kind, "covered rows": index.covered_rows}


@dataclass(slots=True)
class _ProcessRunner(_BuildRunner):
    """Build in a process of its own."""

    peak: int = 0

    def call(self) -> None:
        begin = _seconds_of_children()
        self.peak = text_process.run(self.system, str(self.uri), self.build)
        self.seconds = _seconds_of_children() - begin

    def call_figures(self) -> CallFigures:
        return CallFigures({"processor time": self.seconds}, counts={"peak MB": self.peak})


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _entrants(place: Path, runner: type[_BuildRunner], build: TextBuild) -> tuple[Entrant, ...]:
    return tuple(
        Entrant(name, side, partial(runner, place, name, build), needs)
        for name, side, needs in (("ours", Side.OURS, ()), ("pylance", Side.PEER, _PYLANCE))
    )
