"""Workload `vector`: time and memory of vector index builds, and warm, cold, filtered and batch searches with their
recall.

The vectors are clustered. Each build and each search works on a table of its own that shares data files by hard links;
the searches of one case use the same index, which the system itself built. `hits` are rows among the exact 10 nearest.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import vector_process
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.vectors import (
    BUILDS,
    PYLANCE,
    Build,
    Data,
    K,
    OurSearch,
    PylanceSearch,
    Search,
    SearchSystem,
    search_entrants,
    write_table,
)
from benchmarks.workloads.index import link_table
from lance_core import Table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 4_000, Scale.DEFAULT: 100_000, Scale.FULL: 1_000_000}
_DIMENSIONS: Mapping[Scale, int] = {Scale.SMOKE: 16, Scale.DEFAULT: 128, Scale.FULL: 128}
_WIDE_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 1_000, Scale.DEFAULT: 20_000, Scale.FULL: 200_000}
_WIDE_DIMENSIONS = 768
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_QUERIES_PER_CALL, _BATCH = 20, 1000
_ROWS_PER_PARTITION = 800
_KINDS = ("IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ")
_FAISS = ("faiss-cpu",)

_SEARCHES = (
    Search("1 partition", 1),
    Search("16 partitions, refined", 16, 10),
    Search("64 partitions, refined", 64, 10),
    *(
        Search(f"16 partitions, refined, a filter of {percent} %", 16, 10, f"of_1000 < {passing}")
        for percent, passing in (("0.1", 1), ("1", 10), ("10", 100), ("50", 500))
    ),
    Search(f"{_BATCH} queries, 16 partitions", 16, is_batch=True),
    Search(f"{_BATCH} queries, 16 partitions, refined", 16, 10, is_batch=True),
)
_ONE_SEARCH = Search("16 partitions, refined", 16, 10)
_GRAPH_SEARCHES = (Search("1 partition", 1), Search("1 partition, refined", 1, 10))


class Vector:
    name = "vector"
    summary = "vector index builds, and searches with their recall"
    notes = (
        "builds: by one process, commit included; faiss trains and adds vectors that are in memory, and writes nothing",
        "searches: warm, with two columns of the result; each system searches the index that it built itself",
        "processor time: of all threads of this process; on a busy machine its ratios are the ones to read",
        f"hits: rows among the exact {K} nearest, of `nearest` in all; a filter's nearest are not counted",
        f"{_BATCH} queries: one call of ours, one call for each query of pylance",
        "cold: the table is opened under a new path for each search; libraries are loaded, files are in memory",
        "peak MB: of the first build in a process of its own, libraries included",
        "lancedb searches the index of pylance",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "rows": _ROWS[scale],
            "dimensions": _DIMENSIONS[scale],
            "wide_rows": _WIDE_ROWS[scale],
            "wide_dimensions": _WIDE_DIMENSIONS,
            "queries_in_a_call": _QUERIES_PER_CALL,
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        rows = _ROWS[stage.scale]
        yield from _cases_of_table(
            stage, "", Data.draw(rows, _DIMENSIONS[stage.scale], _BATCH), _KINDS, _SEARCHES, _GRAPH_SEARCHES
        )
        wide = Data.draw(_WIDE_ROWS[stage.scale], _WIDE_DIMENSIONS, 100)
        yield from _cases_of_table(
            stage, f"{_WIDE_DIMENSIONS} dimensions, ", wide, ("IVF_PQ", "IVF_SQ"), (_ONE_SEARCH,)
        )
        for metric in ("cosine", "dot"):
            data = Data.draw(rows // 4, _DIMENSIONS[stage.scale], 100, metric=metric)
            yield from _cases_of_table(stage, f"{metric}, ", data, (), (_ONE_SEARCH,))


WORKLOAD = Vector()


def _cases_of_table(
    stage: Stage,
    prefix: str,
    data: Data,
    built: tuple[str, ...],
    searches: tuple[Search, ...],
    graph_searches: tuple[Search, ...] = (),
) -> Generator[Case, None, None]:
    """Yield the builds of these kinds, and searches of indices. The table is removed at the end."""
    place, rows, size = stage.workspace / "table", *data.vectors.shape
    stage.log(f"{prefix}writing {rows} vectors")
    write_table(place, data)
    partitions = max(4, rows // _ROWS_PER_PARTITION)
    sub_vectors = max(8, size // 16)
    for kind in built:
        build = Build(kind, _partitions_of(kind, rows), data.metric, sub_vectors)
        yield _build_case(place, prefix, build, data)
    if built:
        yield _memory_case(place, prefix, Build(built[0], partitions, data.metric))
    kinds = _KINDS[:3] if searches is _SEARCHES else ("IVF_PQ", "IVF_SQ")
    for kind in (*kinds, *(("IVF_HNSW_SQ",) if graph_searches else ())):
        places = _build_for_search(place, Build(kind, _partitions_of(kind, rows), data.metric, sub_vectors))
        for search in graph_searches if "HNSW" in kind else searches:
            entrants = search_entrants(places, data, search, _QUERIES_PER_CALL)
            calls = 1 if search.is_batch else 3
            yield Case(f"{prefix}{kind}, {search.description}", entrants, calls=calls, warm_ups=2)
        if searches is _SEARCHES and "HNSW" not in kind:
            yield _cold_case(places, kind, data)
        for each in places.values():
            shutil.rmtree(each)
    shutil.rmtree(place)


def _partitions_of(kind: str, rows: int) -> int:
    return max(1, rows // 100_000) if "HNSW" in kind else max(4, rows // _ROWS_PER_PARTITION)


def _build_for_search(place: Path, build: Build) -> Mapping[str, Path]:
    places = {name: place.with_name(f"searched-{name}-{build.kind}.lance") for name in BUILDS}
    for name, make in BUILDS.items():
        link_table(place, places[name])
        make(str(places[name]), build)
    return places


def _build_case(place: Path, prefix: str, build: Build, data: Data) -> Case:
    entrants = [
        Entrant(name, side, partial(_BuildRunner, place, name, build), needs)
        for name, side, needs in (("ours", Side.OURS, ()), ("pylance", Side.PEER, PYLANCE))
    ]
    if build.kind == "IVF_PQ":
        entrants.append(Entrant("faiss", Side.PEER, partial(_FaissRunner, data, build), _FAISS))
    return Case(f"{prefix}build {build.kind}", tuple(entrants), warm_ups=0)


def _memory_case(place: Path, prefix: str, build: Build) -> Case:
    entrants = tuple(
        Entrant(name, side, partial(_ProcessRunner, place, name, build), needs)
        for name, side, needs in (("ours", Side.OURS, ()), ("pylance", Side.PEER, PYLANCE))
    )
    return Case(f"{prefix}build {build.kind} in a process of its own", entrants, warm_ups=0)


def _cold_case(places: Mapping[str, Path], kind: str, data: Data) -> Case:
    systems: tuple[tuple[str, Side, Callable[[str], SearchSystem], tuple[str, ...]], ...] = (
        ("ours", Side.OURS, OurSearch, ()),
        ("pylance", Side.PEER, PylanceSearch, PYLANCE),
    )
    entrants = tuple(
        Entrant(name, side, partial(_ColdRunner, places[name], data, system), needs)
        for name, side, system, needs in systems
    )
    return Case(f"{kind}, cold, {_ONE_SEARCH.description}", entrants, calls=5)


@dataclass(slots=True)
class _BuildRunner:
    source: Path
    system: str
    build: Build

    @property
    def uri(self) -> Path:
        return self.source.with_name(f"{self.system}-{self.build.kind}")

    def before(self) -> None:
        link_table(self.source, self.uri)

    def call(self) -> None:
        BUILDS[self.system](str(self.uri), self.build)

    def facts(self) -> Facts:
        (index,) = Table.open(str(self.uri)).index_statistics()
        shutil.rmtree(self.uri)
        return {"index": index.kind, "covered rows": index.covered_rows}


@dataclass(slots=True)
class _ProcessRunner:
    """Build in a process of its own."""

    source: Path
    system: str
    build: Build
    _peaks: tuple[int, ...] = ()

    @property
    def uri(self) -> Path:
        return self.source.with_name(f"{self.system}-process")

    def before(self) -> None:
        link_table(self.source, self.uri)

    def call(self) -> None:
        figures = vector_process.run(
            "build", self.system, str(self.uri), kind=self.build.kind, partitions=self.build.partitions
        )
        self._peaks += (figures.peak_megabytes,)

    def call_figures(self) -> CallFigures:
        return CallFigures(counts={"peak MB": self._peaks[0]} if len(self._peaks) == 1 else {})

    def facts(self) -> Facts:
        (index,) = Table.open(str(self.uri)).index_statistics()
        shutil.rmtree(self.uri)
        return {"index": index.kind, "covered rows": index.covered_rows}


@dataclass(slots=True)
class _FaissRunner:
    """Build in memory, without a table."""

    data: Data
    build: Build
    _index: Any = None

    def before(self) -> None:
        import faiss

        size = self.data.vectors.shape[1]
        coarse = faiss.IndexFlatL2(size)
        self._index = faiss.IndexIVFPQ(coarse, size, self.build.partitions, self.build.sub_vectors, 8)
        self._index.cp.niter = self._index.pq.cp.niter = 50

    def call(self) -> None:
        self._index.train(self.data.vectors)
        self._index.add(self.data.vectors)

    def facts(self) -> Facts:
        return {"index": self.build.kind, "covered rows": self._index.ntotal}


@dataclass(slots=True)
class _ColdRunner:
    """Opens a copy of the table that no cache knows, and searches it once."""

    source: Path
    data: Data
    open_system: Callable[[str], SearchSystem]
    _calls: int = 0
    _found: int = 0

    @property
    def _copy(self) -> Path:
        return self.source.with_name(f"{self.source.stem}-cold-{self._calls}")

    def before(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        self._calls += 1
        link_table(self.source, self._copy)

    def call(self) -> None:
        query = self.data.queries[np.array([self._calls % len(self.data.queries)])]
        (rows,) = self.open_system(str(self._copy))(query, _ONE_SEARCH)
        self._found = len(rows)

    def facts(self) -> Facts:
        return {"rows found": self._found}
