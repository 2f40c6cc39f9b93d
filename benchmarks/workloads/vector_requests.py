"""Workload `vector_requests`: requests to an object store that the first search of a process makes, opening included.

The store is an emulator on this machine, and a proxy in front of it counts the requests. Each search runs in a process
of its own, whose start is part of the time.
"""

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks import vector_process
from benchmarks.harness import CallFigures, Case, Entrant, Scale, Side, Stage
from benchmarks.report import Facts
from benchmarks.vectors import BUILDS, PYLANCE, Build, Data, rows_of
from lance_core import Table
from tests.lance_core.storage.buckets import s3_options
from tests.lance_core.storage.faulty_proxy import FaultyProxy, proxy_to
from tests.lance_core.storage.object_servers import s3

_ROWS: Mapping[Scale, int] = {Scale.SMOKE: 1_000, Scale.DEFAULT: 20_000, Scale.FULL: 20_000}
_SIZE, _NPROBES = 64, 8
_PARTITIONS: Mapping[str, int] = {"IVF_PQ": 32, "IVF_SQ": 32, "IVF_RQ": 32, "IVF_HNSW_SQ": 2}


class VectorRequests:
    name = "vector_requests"
    summary = "requests to an object store that a cold vector search makes"
    notes = (
        "requests: of one search, from opening the table to the last row, by the proxy's count",
        "each search runs in a new process, and the store is an emulator in Python: the times say little",
        "each system searches the index that it built itself",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"rows": _ROWS[scale], "dimensions": _SIZE, "nprobes": _NPROBES}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        rows = rows_of(Data.draw(_ROWS[stage.scale], _SIZE, 10))
        with s3() as server, proxy_to(server.endpoint) as proxy:
            bucket, options = server.bucket(), s3_options(proxy.endpoint)
            for kind, partitions in _PARTITIONS.items():
                uris = {name: f"{bucket.uri}/{name}-{kind}" for name in BUILDS}
                for name, build in BUILDS.items():
                    Table.create(uris[name], rows, storage_options=options)
                    build(uris[name], Build(kind, partitions), options)
                for refine in (None, 10):
                    description = "refined" if refine else "not refined"
                    yield Case(
                        f"{kind}, {description}",
                        tuple(
                            Entrant(name, side, partial(_Runner, name, uris[name], options, refine, proxy), needs)
                            for name, side, needs in (("ours", Side.OURS, ()), ("pylance", Side.PEER, PYLANCE))
                        ),
                        warm_ups=0,
                    )


WORKLOAD = VectorRequests()


@dataclass(slots=True)
class _Runner:
    system: str
    uri: str
    options: Mapping[str, str]
    refine: int | None
    proxy: FaultyProxy
    _counts: Mapping[str, int] = field(default_factory=dict)

    def before(self) -> None:
        self.proxy.requests.clear()

    def call(self) -> None:
        arguments = {"nprobes": _NPROBES, "refine": self.refine, "dimensions": _SIZE}
        vector_process.run("search", self.system, self.uri, self.options, **arguments)
        methods = Counter(method for method, _, _ in self.proxy.requests)
        self._counts = {"requests": methods.total(), "HEAD": methods["HEAD"]}

    def call_figures(self) -> CallFigures:
        return CallFigures(counts=self._counts)

    def facts(self) -> Facts:
        return {}
