"""Workload `vector_recall`: recall of indices that we and pylance built, each searched by both, for three shapes of
data and three metrics.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

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
    write_table,
)
from benchmarks.workloads.index import link_table

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 2_000, Scale.DEFAULT: 20_000, Scale.FULL: 200_000}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 1, Scale.FULL: 3}
_QUERIES, _SIZE = 200, 64
_ROWS_PER_PARTITION = 400
_CASES = (
    *(("l2", kind) for kind in ("IVF_PQ", "IVF_SQ", "IVF_RQ")),
    ("cosine", "IVF_PQ"),
    ("cosine", "IVF_SQ"),
    ("dot", "IVF_PQ"),
    ("dot", "IVF_SQ"),
)
_SEARCHES = (Search("8 partitions", 8), Search("8 partitions, refined", 8, 5))


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
        return {"rows": _ROWS[scale], "dimensions": _SIZE, "queries": _QUERIES}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        rows = _ROWS[stage.scale]
        for shape in SHAPES:
            for metric, kind in _CASES:
                data = Data.draw(rows, _SIZE, _QUERIES, shape=shape, metric=metric)
                place = stage.workspace / "table"
                write_table(place, data)
                places = {name: place.with_name(f"{name}-index") for name in BUILDS}
                for name, make in BUILDS.items():
                    link_table(place, places[name])
                    make(str(places[name]), Build(kind, max(4, rows // _ROWS_PER_PARTITION), metric))
                for search in _SEARCHES:
                    yield Case(f"{shape}, {metric}, {kind}, {search.description}", _entrants(places, data, search))
                for each in (place, *places.values()):
                    shutil.rmtree(each)


WORKLOAD = VectorRecall()


def _entrants(places: Mapping[str, Path], data: Data, search: Search) -> tuple[Entrant, ...]:
    def entrant(name: str, side: Side, maker: str, system: Callable[[str], SearchSystem]) -> Entrant:
        needs = () if name == "ours" else PYLANCE
        return Entrant(name, side, lambda: SearchRunner(places[maker], data, search, system, _QUERIES), needs)

    return (
        entrant("ours", Side.OURS, "ours", OurSearch),
        entrant("pylance", Side.PEER, "pylance", PylanceSearch),
        entrant("ours on theirs", Side.PEER, "pylance", OurSearch),
        entrant("pylance on ours", Side.PEER, "ours", PylanceSearch),
    )
