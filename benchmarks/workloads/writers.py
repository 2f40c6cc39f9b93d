"""Workload `writers`: processes append to one table concurrently; measures their commit rate and the slowest append."""

from collections.abc import Generator, Mapping

from benchmarks.appending import DELTA, OURS, OURS_NO_FSYNC, PYLANCE, System
from benchmarks.fleet import Fleet, Race, race_case, start_fleet
from benchmarks.harness import Case, Scale, Stage

_WRITERS: Mapping[Scale, tuple[int, ...]] = {Scale.SMOKE: (2,), Scale.DEFAULT: (8, 16), Scale.FULL: (1, 2, 4, 8, 16)}
_APPENDS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 20, Scale.FULL: 50}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}


class Writers:
    name = "writers"
    summary = "processes that concurrently append one row at a time to one table"
    notes = (
        "the time ends with the last commit; the commit rate is commits divided by that time",
        "each append opens the newest version by path and is retried until it commits; 'failed' counts the failures",
        "'slowest append' is that of the slowest writer, its failed attempts included",
        "'ours' fsyncs everything it acknowledges; compare 'ours, no fsync' with the peers",
        "lost rows were acknowledged but are missing, doubled rows are stored more than once",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"writers_max": max(_WRITERS[scale]), "appends_of_each": _APPENDS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        with start_fleet(max(_WRITERS[stage.scale])) as processes:
            for writers in _WRITERS[stage.scale]:
                yield _build_case(stage, processes, writers, _APPENDS[stage.scale])


WORKLOAD = Writers()


def _build_case(stage: Stage, processes: Fleet, writers: int, appends: int) -> Case:
    def enter(system: System) -> Race:
        return Race(
            fleet=processes,
            system=system,
            library=system.load(),
            writers=writers,
            appends=appends,
            uri_for=lambda name: str(stage.workspace / name),
            log=stage.log,
        )

    return race_case(f"{writers} writers, {writers * appends} commits", (OURS, OURS_NO_FSYNC, PYLANCE, DELTA), enter)
