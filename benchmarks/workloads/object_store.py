"""Workload `object_store`: operations on tables in an object store that answers each request after 30 ms.

The store is an emulator of S3 in a process of its own; `object_store_azure` and `object_store_gcs` use those of other
stores. Each call meets a fresh copy of its table, so that no cache knows it. Further cases repeat some operations while
the store throttles: bursts of 503 SlowDown and lost connections. The operations are those of the request budget
(`tests/request_budget/operations.py`).
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from benchmarks.harness import CallFigures, Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.memory import PeakMemory
from benchmarks.report import Facts
from lance_core import LanceError
from tests.lance_core.storage.counting_process import CountedStore
from tests.lance_core.storage.request_counts import KINDS
from tests.lance_core.storage.s3_process import s3_process
from tests.request_budget import tables
from tests.request_budget.counting import TableCopies
from tests.request_budget.operations import LARGE_OPERATIONS, OPERATIONS, Operation, Prepare, TableAddress
from tests.request_budget.tables import TableKind

_LATENCY: Mapping[Scale, timedelta] = {
    Scale.SMOKE: timedelta(milliseconds=1),
    Scale.DEFAULT: timedelta(milliseconds=30),
    Scale.FULL: timedelta(milliseconds=30),
}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_SMOKE = ("open, 100 versions", "append with an intent", "scan 10 fragments", "cleanup of 9 versions")
_DEFAULT = (
    "open, 100 versions",
    "open by the timestamp of version 50 of 100",
    "history of 100 versions",
    "append",
    "append with an intent",
    "scan 100 fragments",
    "2 of 5 columns, 10 fragments",
    "count with a filter, 10 fragments",
    "filter of 1 %, all columns, 10 fragments",
    "take 10 rows of 10 fragments",
    "delete 1 % of the rows of 10 fragments",
    "upsert 100 rows, half of them new",
    "merge a column by key",
    "lookup by a b-tree, cold",
    "lookup by a b-tree, warm",
    "create a b-tree",
    "vector search, cold",
    "text search, cold",
    "compact 100 fragments",
    "cleanup of 99 versions",
    "fsck, 100 versions",
    "sensor tick of an idle table",
    "sensor tick of 20 idle tables",
    "commit 10,000 new files, table open",
)
_THROTTLED = (
    "append",
    "scan 100 fragments",
    "delete 1 % of the rows of 10 fragments",
    "compact 100 fragments",
    "cleanup of 99 versions",
)
_ALL = {operation.name: operation for operation in (*OPERATIONS, *LARGE_OPERATIONS)}
_SELECTED: Mapping[Scale, tuple[str, ...]] = {Scale.SMOKE: _SMOKE, Scale.DEFAULT: _DEFAULT, Scale.FULL: tuple(_ALL)}
_THROTTLED_AT: Mapping[Scale, tuple[str, ...]] = {
    Scale.SMOKE: ("append",),
    Scale.DEFAULT: _THROTTLED,
    Scale.FULL: _THROTTLED,
}


@dataclass(frozen=True)
class ObjectStore:
    name: str
    summary: str
    start: Callable[[], AbstractContextManager[CountedStore]]
    """Starts the emulator of the store."""
    excluded: tuple[str, ...] = ()
    """Operations that the emulator cannot do, by the beginnings of their names."""
    operations_per_server: int = 1_000
    """Number of operations after which the emulator is started again."""
    notes = (
        "requests: of one call, the highest of all; in flight: the highest number at one time",
        "each call meets a fresh copy of its table, and opens it first unless the name of the case says otherwise",
        "the store is an emulator in a process of its own; that of S3 takes 0.2 ms of processor time for a request",
        "throttled: of 50 requests 5 in a row get 503 SlowDown, and 5 % of the others lose their connection",
        "errors: calls that failed while the store throttled",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"latency_ms": _LATENCY[scale] // timedelta(milliseconds=1)}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        operations = [
            *((_ALL[name], False) for name in filter(self._is_possible, _SELECTED[stage.scale])),
            *((_ALL[name], True) for name in filter(self._is_possible, _THROTTLED_AT[stage.scale])),
        ]
        copies: TableCopies | None = None
        for start in range(0, len(operations), self.operations_per_server):
            with self.start() as server:
                copies = replace(copies, server=server) if copies else TableCopies(server, stage.workspace)
                store = _Store(server, copies, _LATENCY[stage.scale], stage.log)
                store.load_libraries()
                for operation, is_throttled in operations[start : start + self.operations_per_server]:
                    yield _case(store, operation, is_throttled=is_throttled)

    def _is_possible(self, operation: str) -> bool:
        return not operation.startswith(self.excluded)


WORKLOAD = ObjectStore(
    "object_store", "operations on an object store that answers each request after 30 ms", s3_process
)


@dataclass(frozen=True, slots=True)
class _Store:
    server: CountedStore
    copies: TableCopies
    latency: timedelta
    log: Callable[[str], None]

    def load_libraries(self) -> None:
        """Append, so that later calls do not contain the first check of the bucket or the imports of a process."""
        address = self.copies.create(TableKind.FEW_VERSIONS, "ours")
        address.ours().append(tables.rows(10))
        address.pylance().to_table()


def _case(store: _Store, operation: Operation, *, is_throttled: bool) -> Case:
    def entrant(system: str, side: Side, prepare: Prepare) -> Entrant:
        needs = () if system == "ours" else ("pylance",)
        return Entrant(system, side, partial(_enter, store, operation.table, system, prepare, is_throttled), needs)

    systems = [entrant("ours", Side.OURS, operation.ours)]
    if operation.pylance:
        systems.append(entrant("pylance", Side.PEER, operation.pylance))
    return Case(
        f"{operation.name}{', throttled' if is_throttled else ''}", tuple(systems), warm_ups=not operation.is_long
    )


def _enter(store: _Store, kind: TableKind, system: str, prepare: Prepare, is_throttled: bool) -> Runner:
    return _Runner(store, kind, system, prepare, is_throttled)


@dataclass(slots=True)
class _Runner:
    store: _Store
    kind: TableKind
    system: str
    prepare: Prepare
    is_throttled: bool
    _address: TableAddress | None = None
    _call: Callable[[], object] | None = None
    _prepared: ExitStack = field(default_factory=ExitStack)
    _memory: PeakMemory = field(default_factory=PeakMemory)
    _errors: int = 0
    _calls: int = 0

    def before(self) -> None:
        self._end_previous()
        self._address = self.store.copies.create(self.kind, self.system)
        prepared = self.prepare(self._address)
        if isinstance(prepared, AbstractContextManager):
            self._call = self._prepared.enter_context(prepared)
        else:
            self._call = prepared
        self._calls += 1
        self.store.server.set_latency(self.store.latency, throttling=self._calls if self.is_throttled else 0)
        self.store.server.take_requests()
        self._memory.begin_call()

    def call(self) -> None:
        assert self._call is not None
        self._errors = 0
        try:
            self._call()
        except (LanceError, OSError) as error:
            if not self.is_throttled:
                raise
            self.store.log(f"{self.system}: {error}")
            self._errors = 1

    def call_figures(self) -> CallFigures:
        """Return the requests and the errors, and let the store answer at once until the next call."""
        memory = self._memory.end_call()
        observed = self.store.server.take_requests()
        self.store.server.set_latency(timedelta(0))
        peaks = {"requests": observed.counts.total, **dict(zip(KINDS, observed.counts.by_kind, strict=True))}
        errors = {"errors": self._errors} if self.is_throttled else {}
        return CallFigures(counts=errors, peaks={**peaks, "in flight": observed.in_flight_max, **memory})

    def facts(self) -> Facts:
        """Return the size of the table if there is one, and throttling cannot have ended the last call."""
        assert self._address is not None
        if self.is_throttled or self.kind in tables.LAKES:
            return {}
        table = self._address.ours()
        return {"rows": table.count_rows(), "columns": len(table.schema.names)}

    def _end_previous(self) -> None:
        self._prepared.close()
        if self._address is not None:
            self.store.copies.remove(self._address)
