"""Workload `vector`: time of vector index builds and searches, with the recall of each.

The vectors are clustered. Each build and each search works on a table of its own that shares data files by hard links;
the searches of one case use the same index, which the system itself built. `hits` are rows among the exact 10 nearest.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.workloads.index import link_table
from lance_core import Table

Vectors = npt.NDArray[np.float32]
_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 4_000, Scale.DEFAULT: 100_000, Scale.FULL: 1_000_000}
_DIMENSIONS: Mapping[Scale, int] = {Scale.SMOKE: 16, Scale.DEFAULT: 128, Scale.FULL: 128}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_CLUSTERS, _SPREAD, _SEED = 500, 0.8, 5
_QUERIES_PER_CALL, _BATCH, _K = 20, 1000, 10
_ROWS_PER_PARTITION = 800
_KINDS = ("IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ")


@dataclass(frozen=True, slots=True)
class _Data:
    """Vectors of the table, queries, and the exact nearest rows of the queries."""

    vectors: Vectors
    queries: Vectors
    nearest: npt.NDArray[np.int64]

    @classmethod
    def draw(cls, rows: int, size: int) -> "_Data":
        random = np.random.default_rng(_SEED)
        centers = random.normal(size=(_CLUSTERS, size))

        def points(count: int) -> Vectors:
            noise = random.normal(size=(count, size)) * _SPREAD
            return (centers[random.integers(0, _CLUSTERS, count)] + noise).astype(np.float32)

        vectors, queries = points(rows), points(_BATCH)
        distances = (vectors**2).sum(axis=1) - 2 * queries @ vectors.T
        return cls(vectors, queries, np.argpartition(distances, _K, axis=1)[:, :_K])


@dataclass(frozen=True, slots=True)
class _Search:
    description: str
    nprobes: int
    refine: int | None = None
    filter: str | None = None
    is_batch: bool = False


_SEARCHES = (
    _Search("1 partition", 1),
    _Search("16 partitions, refined", 16, 10),
    _Search("64 partitions, refined", 64, 10),
    _Search("16 partitions, refined, a filter of 1 %", 16, 10, "of_1000 < 10"),
    _Search("16 partitions, refined, a filter of 50 %", 16, 10, "of_1000 < 500"),
    _Search(f"{_BATCH} queries, 16 partitions", 16, is_batch=True),
)


class Vector:
    name = "vector"
    summary = "vector index builds, and searches with their recall"
    notes = (
        "builds: by one process, commit included; faiss trains and adds vectors that are in memory, and writes nothing",
        "searches: warm, with two columns of the result; each system searches the index that it built itself",
        f"hits: rows among the exact {_K} nearest, of `nearest` in all; a filter's nearest are not counted",
        f"{_BATCH} queries: one call of ours, one call for each query of pylance",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "dimensions": _DIMENSIONS[scale], "queries_in_a_call": _QUERIES_PER_CALL}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        place, rows = stage.workspace / "table", _ROWS[stage.scale]
        stage.log(f"writing {rows} vectors")
        data = _Data.draw(rows, _DIMENSIONS[stage.scale])
        _write_table(place, data)
        partitions = max(4, rows // _ROWS_PER_PARTITION)
        for kind in _KINDS:
            build = _Build(kind, partitions if "HNSW" not in kind else max(1, rows // 100_000))
            entrants = [
                Entrant("ours", Side.OURS, partial(_BuildRunner, place, "ours", build, _build_ours)),
                Entrant("pylance", Side.PEER, partial(_BuildRunner, place, "pylance", build, _build_pylance), _PYLANCE),
            ]
            if kind == "IVF_PQ":
                entrants.append(Entrant("faiss", Side.PEER, partial(_FaissRunner, data, build), _FAISS))
            yield Case(f"build {kind}", tuple(entrants), warm_ups=0)
        for kind in _KINDS[:3]:
            build = _Build(kind, partitions)
            places = {name: place.with_name(f"searched-{name}-{kind}") for name in ("ours", "pylance")}
            for name, make in (("ours", _build_ours), ("pylance", _build_pylance)):
                link_table(place, places[name])
                make(str(places[name]), build)
            for search in _SEARCHES:
                yield Case(
                    f"{kind}, {search.description}",
                    (
                        Entrant("ours", Side.OURS, partial(_SearchRunner, places["ours"], data, search, _OurSearch)),
                        Entrant(
                            "pylance",
                            Side.PEER,
                            partial(_SearchRunner, places["pylance"], data, search, _PylanceSearch),
                            _PYLANCE,
                        ),
                    ),
                    calls=1 if search.is_batch else 3,
                    warm_ups=2,
                )


WORKLOAD = Vector()
_PYLANCE, _FAISS = ("pylance",), ("faiss-cpu",)


def _write_table(place: Path, data: _Data) -> None:
    ids = np.arange(len(data.vectors))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.vectors.ravel()), data.vectors.shape[1])
    rows = {"id": ids, "title": [f"title {number}" for number in ids], "of_1000": ids * 7919 % 1000, "v": vectors}
    Table.create(str(place), pa.table(rows), durable=False)


@dataclass(frozen=True, slots=True)
class _Build:
    kind: str
    partitions: int

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"num_partitions": self.partitions, **({"num_sub_vectors": 8} if self.kind == "IVF_PQ" else {})}


def _build_ours(uri: str, build: _Build) -> None:
    Table.open(uri, durable=False).create_index("v", build.kind, **build.parameters)


def _build_pylance(uri: str, build: _Build) -> None:
    import lance

    lance.dataset(uri).create_index("v", build.kind, metric="l2", **build.parameters)


@dataclass(slots=True)
class _BuildRunner:
    source: Path
    system: str
    build: _Build
    work: Callable[[str, _Build], None]

    @property
    def uri(self) -> Path:
        return self.source.with_name(f"{self.system}-{self.build.kind}")

    def before(self) -> None:
        link_table(self.source, self.uri)

    def call(self) -> None:
        self.work(str(self.uri), self.build)

    def facts(self) -> Facts:
        (index,) = Table.open(str(self.uri)).index_statistics()
        shutil.rmtree(self.uri)
        return {"index": index.kind, "covered rows": index.covered_rows}


@dataclass(slots=True)
class _FaissRunner:
    """Build in memory, without a table."""

    data: _Data
    build: _Build
    _index: Any = None

    def before(self) -> None:
        import faiss

        size = self.data.vectors.shape[1]
        parameters = self.build.parameters
        coarse = faiss.IndexFlatL2(size)
        self._index = faiss.IndexIVFPQ(coarse, size, parameters["num_partitions"], parameters["num_sub_vectors"], 8)
        self._index.cp.niter = self._index.pq.cp.niter = 50

    def call(self) -> None:
        self._index.train(self.data.vectors)
        self._index.add(self.data.vectors)

    def facts(self) -> Facts:
        return {"index": self.build.kind, "covered rows": self._index.ntotal}


class _OurSearch:
    def __init__(self, uri: str) -> None:
        self._table = Table.open(uri)

    def __call__(self, queries: Vectors, search: _Search) -> list[list[int]]:
        options: dict[str, Any] = {"nprobes": search.nprobes, "refine": search.refine, "filter": search.filter}
        if search.is_batch:
            found = self._table.search("v", queries, _K, columns=["id", "title"], **options)
            return [list(part) for part in found["id"].to_numpy().reshape(len(queries), _K)]
        return [
            self._table.search("v", query, _K, columns=["id", "title"], **options)["id"].to_pylist()
            for query in queries
        ]


class _PylanceSearch:
    def __init__(self, uri: str) -> None:
        import lance

        self._dataset = lance.dataset(uri)

    def __call__(self, queries: Vectors, search: _Search) -> list[list[int]]:
        columns, found = ["id", "title", "_distance"], []
        for query in queries:
            nearest: dict[str, Any] = {"column": "v", "q": query, "k": _K, "nprobes": search.nprobes}
            if search.refine is not None:
                nearest["refine_factor"] = search.refine
            rows = self._dataset.to_table(columns=columns, nearest=nearest, filter=search.filter, prefilter=True)
            found.append(rows["id"].to_pylist())
        return found


@dataclass(slots=True)
class _SearchRunner:
    """Runner of searches. All systems get the same queries, and each call gets different ones."""

    directory: Path
    data: _Data
    search: _Search
    open_system: Callable[[str], Callable[[Vectors, _Search], list[list[int]]]]
    _system: Callable[[Vectors, _Search], list[list[int]]] | None = None
    _calls: int = 0
    _numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    _found: list[list[int]] = field(default_factory=list)

    def before(self) -> None:
        self._system = self._system or self.open_system(str(self.directory))
        self._calls += 1
        count = _BATCH if self.search.is_batch else _QUERIES_PER_CALL
        self._numbers = np.random.default_rng(self._calls).permutation(_BATCH)[:count]

    def call(self) -> None:
        assert self._system is not None
        self._found = self._system(self.data.queries[self._numbers], self.search)

    def call_figures(self) -> CallFigures:
        if self.search.filter is not None:
            return CallFigures()
        pairs = zip(self._found, self.data.nearest[self._numbers], strict=True)
        hits = sum(len(set(found) & set(nearest.tolist())) for found, nearest in pairs)
        return CallFigures(counts={"hits": hits, "nearest": _K * len(self._numbers)})

    def facts(self) -> Facts:
        return {"rows found": sum(map(len, self._found))}
