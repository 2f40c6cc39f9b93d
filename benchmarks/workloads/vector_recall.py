"""Workload `vector_recall`: recall of indices that we and pylance built, each searched by both, for three shapes of
data and three metrics.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.harness import Case, Entrant, Scale, Side, Stage
from benchmarks.vectors import (
    BUILDS,
    PYLANCE,
    SHAPES,
    Build,
    Data,
    K,
    OurSearch,
    PylanceSearch,
    Search,
    SearchRunner,
    SearchSystem,
    Vectors,
    write_table,
)
from benchmarks.workloads.index import link_table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 20_000, Scale.FULL: 200_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 1, Scale.FULL: 3}
_QUERIES: Mapping[Scale, int] = {Scale.SMOKE: 50, Scale.DEFAULT: 1_000, Scale.FULL: 3_000}
_SIZE, _THREADS = 64, 16
_ROWS_PER_PARTITION = 400
_CASES = tuple((metric, kind) for metric in ("l2", "cosine", "dot") for kind in ("IVF_PQ", "IVF_SQ", "IVF_RQ"))
_SEARCHES = (
    Search("1 partition, refined", 1, 5),
    Search("8 partitions", 8),
    Search("8 partitions, refined", 8, 5),
)


class VectorRecall:
    name = "vector_recall"
    summary = "recall of indices of both makers, each searched by both"
    notes = (
        f"hits: rows among the exact {K} nearest, of `nearest` in all",
        "`ours on theirs` searches the index that pylance built, and `pylance on ours` the one that we built",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "dimensions": _SIZE, "queries": _QUERIES[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        rows, queries = _ROWS[stage.scale], _QUERIES[stage.scale]
        for shape in SHAPES:
            for metric, kind in _CASES:
                data = Data.draw(rows, _SIZE, queries, shape=shape, metric=metric)
                place = stage.workspace / "table"
                write_table(place, data)
                places = {name: place.with_name(f"{name}-index") for name in BUILDS}
                for name, make in BUILDS.items():
                    link_table(place, places[name])
                    make(str(places[name]), Build(kind, max(4, rows // _ROWS_PER_PARTITION), metric))
                for search in _SEARCHES:
                    yield Case(
                        f"{shape}, {metric}, {kind}, {search.description}", _entrants(places, data, search), warm_ups=0
                    )
                for each in (place, *places.values()):
                    shutil.rmtree(each)


WORKLOAD = VectorRecall()


class _InThreads:
    """Search that shares the queries among threads. Recall does not depend on time, and one query of pylance waits for
    its threads."""

    def __init__(self, system: SearchSystem) -> None:
        self._system = system

    def __call__(self, queries: Vectors, search: Search) -> list[list[int]]:
        with ThreadPoolExecutor(_THREADS) as pool:
            parts = pool.map(lambda part: self._system(part, search), np.array_split(queries, _THREADS))
            return [found for part in parts for found in part]


def _entrants(places: Mapping[str, Path], data: Data, search: Search) -> tuple[Entrant, ...]:
    def entrant(name: str, side: Side, maker: str, system: Callable[[str], SearchSystem]) -> Entrant:
        needs = () if name == "ours" else PYLANCE

        def open_system(uri: str) -> SearchSystem:
            return _InThreads(system(uri))

        return Entrant(
            name, side, lambda: SearchRunner(places[maker], data, search, open_system, len(data.queries)), needs
        )

    return (
        entrant("ours", Side.OURS, "ours", OurSearch),
        entrant("pylance", Side.PEER, "pylance", PylanceSearch),
        entrant("ours on theirs", Side.PEER, "pylance", OurSearch),
        entrant("pylance on ours", Side.PEER, "ours", PylanceSearch),
    )
