"""Many processes that append to one table at once: how many commits a second they get done together, and how long the
unluckiest of them waits.
"""

from collections.abc import Generator, Mapping

from benchmarks.appending import DELTA, OURS, OURS_NO_FSYNC, PYLANCE, System
from benchmarks.fleet import Fleet, Race, fleet, race
from benchmarks.harness import Case, Scale, Stage

_WRITERS: Mapping[Scale, tuple[int, ...]] = {Scale.SMOKE: (2,), Scale.DEFAULT: (8, 16), Scale.FULL: (1, 2, 4, 8, 16)}
_APPENDS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 20, Scale.FULL: 50}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}


class Writers:
    name = "writers"
    summary = "processes that append one row at a time to one table, all at once"
    notes = (
        "the time runs until the last writer has made its last commit: commits a second are commits by that time",
        "each append opens the newest version by path; who fails tries again until it lands, and 'failed' counts that",
        "'slowest append' is that of the unluckiest writer, its failures included",
        "'ours' fsyncs everything it acknowledges; 'ours, no fsync' is the like for like with the peers",
        "lost is what was acknowledged and is not there, doubled what is there more than once",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"writers_max": max(_WRITERS[scale]), "appends_of_each": _APPENDS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        with fleet(max(_WRITERS[stage.scale])) as processes:
            for writers in _WRITERS[stage.scale]:
                yield _case(stage, processes, writers, _APPENDS[stage.scale])


WORKLOAD = Writers()


def _case(stage: Stage, processes: Fleet, writers: int, appends: int) -> Case:
    def enter(system: System) -> Race:
        return Race(
            fleet=processes,
            system=system,
            library=system.load(),
            writers=writers,
            appends=appends,
            place=lambda name: str(stage.workspace / name),
            log=stage.log,
        )

    return race(f"{writers} writers, {writers * appends} commits", (OURS, OURS_NO_FSYNC, PYLANCE, DELTA), enter)
