"""Workload `group`: group commit of threads in one process that append to one table, compared with one thread that
makes all appends."""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.appending import OURS, OURS_NO_FSYNC, PYLANCE, Library, System, make_row
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts

_THREADS: Mapping[Scale, tuple[int, ...]] = {Scale.SMOKE: (2,), Scale.DEFAULT: (16,), Scale.FULL: (4, 16, 64)}
_APPENDS: Mapping[Scale, int] = {Scale.SMOKE: 3, Scale.DEFAULT: 10, Scale.FULL: 20}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}


class Group:
    name = "group"
    summary = "threads of one process that append one row at a time to one table"
    notes = (
        "every system makes the same number of appends; each append opens the newest version by path",
        "x 'one thread': time relative to one thread; its reciprocal is the gain in rate",
        "peers take part with many threads only",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"threads_max": max(_THREADS[scale]), "appends_of_each": _APPENDS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        for threads in _THREADS[stage.scale]:
            for system in (OURS, OURS_NO_FSYNC):
                appends = threads * _APPENDS[stage.scale]
                case = f"{threads} threads, {appends} appends{system.name.removeprefix(OURS.name)}"
                place = stage.workspace / case.replace(", ", "-").replace(" ", "-")
                place.mkdir()
                yield Case(
                    case,
                    (
                        Entrant("ours", Side.OURS, _runner_factory(place, system, threads, appends)),
                        Entrant("one thread", Side.PEER, _runner_factory(place, system, 1, appends)),
                        Entrant("pylance", Side.PEER, _runner_factory(place, PYLANCE, threads, appends), PYLANCE.needs),
                    ),
                )


WORKLOAD = Group()


@dataclass
class _ThreadsRunner:
    directory: Path
    system: System
    library: Library
    threads: int
    appends: int
    _calls: int = 0
    _uri: str = ""

    def before(self) -> None:
        self._calls += 1
        self._uri = str(self.directory / f"{self.system.name}-{self.threads}-{self._calls}")
        self.library.create(self._uri, {})

    def call(self) -> None:
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(
                lambda number: self.library.append(self._uri, make_row(number), {}, None), range(self.appends)
            ):
                pass

    def facts(self) -> Facts:
        ids = self.library.read_ids(self._uri, {})
        return {"rows": len(ids), "distinct": len(set(ids))}


def _runner_factory(directory: Path, system: System, threads: int, appends: int) -> Callable[[], Runner]:
    return lambda: _ThreadsRunner(directory, system, system.load(), threads, appends)
