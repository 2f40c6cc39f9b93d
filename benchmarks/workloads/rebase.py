"""What an append costs whose writer opened the table a while ago, and others committed since."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from benchmarks.appending import DELTA, OURS, OURS_NO_FSYNC, PYLANCE, Appender, Library, System, row
from benchmarks.harness import Case, Entrant, Runner, Scale, Stage
from benchmarks.report import Facts

_BEHIND: Mapping[Scale, tuple[int, ...]] = {Scale.SMOKE: (3,), Scale.DEFAULT: (0, 100), Scale.FULL: (0, 10, 100, 1_000)}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}


class Rebase:
    name = "rebase"
    summary = "append of one row by a writer that opened the table some commits ago"
    notes = (
        "the table is new for each call; its writer opens it, as many appends of one row land, then the clock runs",
        "the others' appends are made by the same library",
        "'ours' fsyncs what it acknowledges; 'ours, no fsync' is the like for like with the peers",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"commits_behind_max": max(_BEHIND[scale])}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        for behind in _BEHIND[stage.scale]:
            yield Case(
                f"append, {behind} commits behind",
                tuple(
                    Entrant(each.name, each.side, _entering(stage, each, behind), each.needs)
                    for each in (OURS, OURS_NO_FSYNC, PYLANCE, DELTA)
                ),
            )


WORKLOAD = Rebase()


@dataclass
class _Latecomer:
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
        self._appender = self.library.opened(self._uri, {})
        for number in range(self.behind):
            self.library.append(self._uri, row(number), {}, None)

    def call(self) -> None:
        assert self._appender is not None
        self._appender(row(self.behind))

    def facts(self) -> Facts:
        return {"rows": len(self.library.ids(self._uri, {}))}


def _entering(stage: Stage, system: System, behind: int) -> Callable[[], Runner]:
    return lambda: _Latecomer(stage, system, system.load(), behind)
