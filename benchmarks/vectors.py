"""Vector workloads: the vectors, and the builds and searches of each system. Each system works on a table of its own
that shares data files by hard links.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import CallFigures, Entrant, Side
from benchmarks.report import Facts
from lance_core import Table

Vectors = npt.NDArray[np.float32]
K = 10
SHAPES = ("clustered", "gaussian", "low rank")
_CLUSTERS, _SPREAD, _RANK, _SEED = 500, 0.8, 12, 5
PYLANCE, LANCEDB = ("pylance",), ("lancedb",)


@dataclass(frozen=True, slots=True)
class Data:
    """Vectors of the table, queries, and the exact nearest rows of the queries."""

    vectors: Vectors
    queries: Vectors
    nearest: npt.NDArray[np.int64]
    metric: str

    @classmethod
    def draw(cls, rows: int, size: int, queries: int, *, shape: str = "clustered", metric: str = "l2") -> "Data":
        drawn = _draw(rows + queries, size, shape)
        vectors, asked = drawn[:rows], drawn[rows:]
        products = asked @ vectors.T
        if metric == "l2":
            distances = (vectors**2).sum(axis=1) - 2 * products
        elif metric == "cosine":
            distances = -products / np.linalg.norm(vectors, axis=1)
        else:
            distances = -products
        return cls(vectors, asked, np.argpartition(distances, K, axis=1)[:, :K], metric)

    def hits(self, numbers: npt.NDArray[np.int64], found: Sequence[Sequence[int]]) -> int:
        """Return how many of the nearest rows were found for the queries with these numbers."""
        pairs = zip(found, self.nearest[numbers], strict=True)
        return sum(len(set(rows) & set(nearest.tolist())) for rows, nearest in pairs)


def _draw(count: int, size: int, shape: str) -> Vectors:
    random = np.random.default_rng(_SEED)
    if shape == "gaussian":
        return random.normal(size=(count, size)).astype(np.float32)
    if shape == "low rank":
        base = random.normal(size=(_RANK, size))
        noise = random.normal(size=(count, size)) * 0.1
        return (random.normal(size=(count, _RANK)) @ base + noise).astype(np.float32)
    centers = random.normal(size=(_CLUSTERS, size))
    noise = random.normal(size=(count, size)) * _SPREAD
    return (centers[random.integers(0, _CLUSTERS, count)] + noise).astype(np.float32)


def rows_of(data: Data) -> pa.Table:
    ids = np.arange(len(data.vectors))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.vectors.ravel()), data.vectors.shape[1])
    titles = [f"title {number}" for number in ids]
    return pa.table({"id": ids, "title": titles, "of_1000": ids * 7919 % 1000, "v": vectors})


def write_table(place: Path, data: Data) -> None:
    Table.create(str(place), rows_of(data), durable=False)


@dataclass(frozen=True, slots=True)
class Build:
    kind: str
    partitions: int
    metric: str = "l2"
    sub_vectors: int = 8

    @property
    def parameters(self) -> Mapping[str, Any]:
        products = {"num_sub_vectors": self.sub_vectors} if self.kind.endswith("PQ") else {}
        return {"num_partitions": self.partitions, "metric": self.metric, **products}


def build_ours(uri: str, build: Build, options: Mapping[str, str] | None = None) -> None:
    Table.open(uri, durable=False, storage_options=options).create_index("v", build.kind, **build.parameters)


def build_pylance(uri: str, build: Build, options: Mapping[str, str] | None = None) -> None:
    import lance

    lance.dataset(uri, storage_options=None if options is None else dict(options)).create_index(
        "v", build.kind, **build.parameters
    )


BUILDS: Mapping[str, Callable[..., None]] = {"ours": build_ours, "pylance": build_pylance}


@dataclass(frozen=True, slots=True)
class Search:
    description: str
    nprobes: int
    refine: int | None = None
    filter: str | None = None
    is_batch: bool = False


class SearchSystem(Protocol):
    def __call__(self, queries: Vectors, search: Search) -> list[list[int]]:
        """Return the ids of the nearest rows of each query."""


class OurSearch:
    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._table = Table.open(uri, storage_options=options)

    def __call__(self, queries: Vectors, search: Search) -> list[list[int]]:
        options: dict[str, Any] = {"nprobes": search.nprobes, "refine": search.refine, "filter": search.filter}
        if search.is_batch:
            found = self._table.search("v", queries, K, columns=["id", "title"], **options)
            return [list(part) for part in found["id"].to_numpy().reshape(len(queries), K)]
        return [
            self._table.search("v", query, K, columns=["id", "title"], **options)["id"].to_pylist() for query in queries
        ]


class PylanceSearch:
    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        import lance

        self._dataset = lance.dataset(uri, storage_options=None if options is None else dict(options))

    def __call__(self, queries: Vectors, search: Search) -> list[list[int]]:
        columns, found = ["id", "title", "_distance"], []
        for query in queries:
            nearest: dict[str, Any] = {"column": "v", "q": query, "k": K, "nprobes": search.nprobes}
            if search.refine is not None:
                nearest["refine_factor"] = search.refine
            rows = self._dataset.to_table(columns=columns, nearest=nearest, filter=search.filter, prefilter=True)
            found.append(rows["id"].to_pylist())
        return found


class LanceDbSearch:
    """Search of a table whose directory ends in `.lance`."""

    def __init__(self, uri: str) -> None:
        import lancedb  # type: ignore[import-not-found]

        place = Path(uri)
        self._table = lancedb.connect(str(place.parent)).open_table(place.stem)

    def __call__(self, queries: Vectors, search: Search) -> list[list[int]]:
        found = []
        for query in queries:
            asked = self._table.search(query, vector_column_name="v").nprobes(search.nprobes).limit(K)
            asked = asked.select(["id", "title", "_distance"])
            if search.refine is not None:
                asked = asked.refine_factor(search.refine)
            if search.filter is not None:
                asked = asked.where(search.filter, prefilter=True)
            found.append(asked.to_arrow()["id"].to_pylist())
        return found


@dataclass(slots=True)
class SearchRunner:
    """Runner of searches. All systems get the same queries, and each call gets different ones."""

    directory: Path
    data: Data
    search: Search
    open_system: Callable[[str], SearchSystem]
    queries_per_call: int
    _system: SearchSystem | None = None
    _calls: int = 0
    _numbers: npt.NDArray[np.int64] = field(default_factory=lambda: np.arange(0))
    _found: list[list[int]] = field(default_factory=list)
    _processor_seconds: float = 0.0

    def before(self) -> None:
        self._system = self._system or self.open_system(str(self.directory))
        self._calls += 1
        count = len(self.data.queries) if self.search.is_batch else self.queries_per_call
        self._numbers = np.random.default_rng(self._calls).permutation(len(self.data.queries))[:count]

    def call(self) -> None:
        assert self._system is not None
        begin = time.process_time()
        self._found = self._system(self.data.queries[self._numbers], self.search)
        self._processor_seconds = time.process_time() - begin

    def call_figures(self) -> CallFigures:
        seconds = {"processor time": self._processor_seconds}
        if self.search.filter is not None:
            return CallFigures(seconds)
        hits = self.data.hits(self._numbers, self._found)
        return CallFigures(seconds, {"hits": hits, "nearest": K * len(self._numbers)})

    def facts(self) -> Facts:
        return {"rows found": sum(map(len, self._found))}


def search_entrants(
    places: Mapping[str, Path], data: Data, search: Search, queries_per_call: int
) -> tuple[Entrant, ...]:
    """Return the systems that search an index of their own at these places; lancedb searches that of pylance."""

    def entrant(
        name: str, side: Side, system: Callable[[str], SearchSystem], place: Path, needs: tuple[str, ...]
    ) -> Entrant:
        return Entrant(name, side, lambda: SearchRunner(place, data, search, system, queries_per_call), needs)

    entrants = [
        entrant("ours", Side.OURS, OurSearch, places["ours"], ()),
        entrant("pylance", Side.PEER, PylanceSearch, places["pylance"], PYLANCE),
    ]
    if not search.is_batch:
        entrants.append(entrant("lancedb", Side.PEER, LanceDbSearch, places["pylance"], LANCEDB))
    return tuple(entrants)
