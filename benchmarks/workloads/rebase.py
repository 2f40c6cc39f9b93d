"""Workload `rebase`: time of an append by a writer that opened the table some commits ago."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from benchmarks.appending import DELTA, OURS, OURS_NO_FSYNC, PYLANCE, Appender, Library, System, make_row
from benchmarks.harness import Case, Entrant, Runner, Scale, Stage
from benchmarks.report import Facts

_COMMITS_BEHIND: Mapping[Scale, tuple[int, ...]] = {
    Scale.SMOKE: (3,),
    Scale.DEFAULT: (0, 100),
    Scale.FULL: (0, 10, 100, 1_000),
}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}


class Rebase:
    name = "rebase"
    summary = "append of one row by a writer that opened the table some commits ago"
    notes = (
        "a new table per call: a writer opens it, others commit that many one-row appends, the clock starts",
        "the appends of the other writers use the same library",
        "'ours' fsyncs what it acknowledges; compare 'ours, no fsync' with the peers",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"commits_behind_max": max(_COMMITS_BEHIND[scale])}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        for behind in _COMMITS_BEHIND[stage.scale]:
            yield Case(
                f"append, {behind} commits behind",
                tuple(
                    Entrant(system.name, system.side, _stale_writer_factory(stage, system, behind), system.needs)
                    for system in (OURS, OURS_NO_FSYNC, PYLANCE, DELTA)
                ),
            )


WORKLOAD = Rebase()


@dataclass
class _StaleWriter:
    stage: Stage
    system: System
    library: Library
    behind: int
    _uri: str = ""
    _appender: Appender | None = None
    _calls: int = 0

    def before(self) -> None:
        self._calls += 1
        self._uri = str(self.stage.workspace / f"{self.system.name}-{self.behind}-{self._calls}")
        self.library.create(self._uri, {})
        self._appender = self.library.open_appender(self._uri, {})
        for number in range(self.behind):
            self.library.append(self._uri, make_row(number), {}, None)

    def call(self) -> None:
        assert self._appender is not None
        self._appender(make_row(self.behind))

    def facts(self) -> Facts:
        return {"rows": len(self.library.read_ids(self._uri, {}))}


def _stale_writer_factory(stage: Stage, system: System, behind: int) -> Callable[[], Runner]:
    return lambda: _StaleWriter(stage, system, system.load(), behind)
