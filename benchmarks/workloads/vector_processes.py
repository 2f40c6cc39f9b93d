"""Workload `vector_processes`: builds and searches of vector indices, each in a process of its own, by their processor
time and largest memory.

Neither the memory nor the threads of one system affect the other here, and `cold` is the first search of a process
whose libraries are loaded. The figures to read are those of the cases `processor time` and, on a quiet machine, `time
of the work`; the time of a whole call contains the start of a process.
"""

import shutil
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import vector_process
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.vector_process import ProcessFigures
from benchmarks.vectors import BUILDS, PYLANCE, Build, Data, write_table
from benchmarks.workloads.index import link_table
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 50_000, Scale.FULL: 200_000}
_LARGE_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_500, Scale.DEFAULT: 100_000, Scale.FULL: 1_000_000}
_WIDE_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 1_000, Scale.DEFAULT: 10_000, Scale.FULL: 200_000}
_SIZE, _WIDE_SIZE = 128, 768
_ROWS_PER_PARTITION = 800
_OTHER_ROWS = 2_000
_QUERIES = {Scale.SMOKE: 20, Scale.DEFAULT: 1_000, Scale.FULL: 1_000}
_FEW_QUERIES = 60
_WARM_UPS, _BATCH_WARM_UPS = 15, 2
_COLD_CALLS = 5
_SEARCHED: Mapping[Scale, tuple[str, ...]] = {
    Scale.SMOKE: ("IVF_RQ",),
    Scale.DEFAULT: ("IVF_PQ", "IVF_SQ", "IVF_RQ"),
    Scale.FULL: ("IVF_PQ", "IVF_SQ", "IVF_RQ"),
}


class VectorProcesses:
    name = "vector_processes"
    summary = "vector index builds and searches in processes of their own, with their memory"
    notes = (
        "processor time: of the work alone; the same work on a small table has loaded the libraries before",
        "peak MB: the largest memory of the process of the first build, libraries included",
        "each system searches the index that it built itself; warm: the same searches have run before",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1 if scale is Scale.SMOKE else 3

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "rows": _ROWS[scale],
            "large_rows": _LARGE_ROWS[scale],
            "wide_rows": _WIDE_ROWS[scale],
            "dimensions": _SIZE,
            "wide_dimensions": _WIDE_SIZE,
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        yield from _searches_and_builds(stage)
        others = (
            ("large table", _LARGE_ROWS[stage.scale], _SIZE, ("IVF_PQ",)),
            (f"{_WIDE_SIZE} dimensions", _WIDE_ROWS[stage.scale], _WIDE_SIZE, ("IVF_PQ", "IVF_SQ")),
        )
        for description, rows, size, kinds in others:
            place = stage.workspace / "table"
            write_table(place, Data.draw(rows, size, 10))
            for kind in kinds:
                yield _build_case(
                    place, f"{description}, build {kind}", Build(kind, _partitions(rows), "l2", size // 8)
                )
            shutil.rmtree(place)


WORKLOAD = VectorProcesses()


def _searches(batch: int) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the description, the file of the queries and the options of each search."""
    refined: dict[str, object] = {"nprobes": 16, "refine": 10}
    yield "cold, 16 partitions, refined", "one.npy", refined
    for nprobes in (16, 64):
        options = {**refined, "nprobes": nprobes, "warm_ups": _WARM_UPS}
        yield f"warm, {_FEW_QUERIES} queries, {nprobes} partitions, refined", "few.npy", options
    for refine in (None, 10):
        description = f"{batch:,} queries in a call, 16 partitions" + (", refined" if refine else "")
        options = {**refined, "refine": refine, "is_batch": True, "warm_ups": _BATCH_WARM_UPS}
        yield description, "queries.npy", options


def _partitions(rows: int) -> int:
    return max(4, rows // _ROWS_PER_PARTITION)


def _searches_and_builds(stage: Stage) -> Generator[Case, None, None]:
    place, rows = stage.workspace / "table", _ROWS[stage.scale]
    data = Data.draw(rows, _SIZE, _QUERIES[stage.scale])
    write_table(place, data)
    other = stage.workspace / "other"
    write_table(other, Data.draw(_OTHER_ROWS, _SIZE, 10))
    np.save(stage.workspace / "queries.npy", data.queries)
    np.save(stage.workspace / "few.npy", data.queries[:_FEW_QUERIES])
    np.save(stage.workspace / "one.npy", data.queries[:1])
    for kind in _SEARCHED[stage.scale]:
        build = Build(kind, _partitions(rows), "l2", _SIZE // 8)
        yield _build_case(place, f"build {kind}", build)
        places = {name: stage.workspace / f"{name}-{kind}.lance" for name in BUILDS}
        others = {name: stage.workspace / f"{name}-{kind}-other.lance" for name in BUILDS}
        for name, make in BUILDS.items():
            link_table(place, places[name])
            make(str(places[name]), build)
            link_table(other, others[name])
            make(str(others[name]), Build(kind, 4, "l2", _SIZE // 8))

        for description, queries, options in _searches(len(data.queries)):
            request = {"queries": str(stage.workspace / queries), **options}
            calls = 1 if "warm_ups" in options or stage.scale is Scale.SMOKE else _COLD_CALLS
            yield Case(f"{kind}, {description}", _search_entrants(places, others, request), calls=calls, warm_ups=0)
        for each in (*places.values(), *others.values()):
            shutil.rmtree(each)
    shutil.rmtree(place)
    shutil.rmtree(other)


_SYSTEMS: tuple[tuple[str, Side, tuple[str, ...]], ...] = (
    ("ours", Side.OURS, ()),
    ("pylance", Side.PEER, PYLANCE),
)


def _build_case(place: Path, name: str, build: Build) -> Case:
    entrants = tuple(
        Entrant(system, side, partial(_BuildRunner, place, system, build), needs) for system, side, needs in _SYSTEMS
    )
    return Case(name, entrants, warm_ups=0)


def _search_entrants(
    places: Mapping[str, Path], others: Mapping[str, Path], options: Mapping[str, object]
) -> tuple[Entrant, ...]:
    return tuple(
        Entrant(system, side, partial(_SearchRunner, system, places[system], others[system], options), needs)
        for system, side, needs in _SYSTEMS
    )


@dataclass(slots=True)
class _BuildRunner:
    source: Path
    system: str
    build: Build
    _figures: ProcessFigures | None = None
    _is_first: bool = True

    @property
    def uri(self) -> Path:
        return self.source.with_name(f"{self.system}-process")

    @property
    def other(self) -> Path:
        return self.source.with_name(f"{self.system}-small")

    def before(self) -> None:
        link_table(self.source, self.uri)
        shutil.rmtree(self.other, ignore_errors=True)
        write_table(self.other, Data.draw(_OTHER_ROWS, self.build.sub_vectors * 8, 10))

    def call(self) -> None:
        build = self.build
        self._is_first = self._figures is None
        self._figures = vector_process.run(
            "build",
            self.system,
            str(self.uri),
            kind=build.kind,
            partitions=build.partitions,
            sub_vectors=build.sub_vectors,
            loaded_by=str(self.other),
        )

    def call_figures(self) -> CallFigures:
        assert self._figures is not None
        counts = {"peak MB": self._figures.peak_megabytes} if self._is_first else {}
        return CallFigures(_times(self._figures), counts)

    def facts(self) -> Facts:
        (index,) = Table.open(str(self.uri)).index_statistics()
        shutil.rmtree(self.uri)
        shutil.rmtree(self.other)
        return {"index": index.kind, "covered rows": index.covered_rows}


@dataclass(slots=True)
class _SearchRunner:
    system: str
    uri: Path
    other: Path
    options: Mapping[str, Any]
    _figures: ProcessFigures | None = None

    def before(self) -> None:
        """Nothing to prepare: each call opens the table in a new process."""

    def call(self) -> None:
        self._figures = vector_process.run(
            "search", self.system, str(self.uri), loaded_by=str(self.other), **self.options
        )

    def call_figures(self) -> CallFigures:
        assert self._figures is not None
        return CallFigures(_times(self._figures))

    def facts(self) -> Facts:
        return {}


def _times(figures: ProcessFigures) -> Mapping[str, float]:
    return {"time of the work": figures.seconds, "processor time": figures.processor_seconds}
