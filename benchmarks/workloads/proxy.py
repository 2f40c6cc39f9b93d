"""Processes that append to one table in an object store, over a network and to a store that fail now and then: what
each library makes of answers that never come.

The store is an emulator on this machine, and the faults are made by a proxy before it: requests that are lost before or
after they are done, 409, 429, 500 and 503, answers cut short, and none for a while.
"""

from collections.abc import Callable, Generator, Mapping

from benchmarks.appending import DELTA, OURS, PYLANCE, Options, System
from benchmarks.fleet import Fleet, Race, fleet, race
from benchmarks.harness import Case, Scale, Stage
from tests.histories.hammer_places import faults
from tests.lance_core.storage.chaos import between
from tests.lance_core.storage.servers import Bucket, s3, s3_options

_WRITERS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 8, Scale.FULL: 8}
_APPENDS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 10, Scale.FULL: 25}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_SYSTEMS = (OURS, PYLANCE, DELTA)
_PART_PERCENT = 5
_TIMEOUT = "2s"
_SEED = 1


class Proxy:
    name = "proxy"
    summary = "processes that append to one table in an object store where requests fail"
    notes = (
        "who gets an error tries again until it lands, as a user would, and 'failed' counts that; ours with an intent=",
        "the peers know no intents: what failed for them and had landed all the same, they do twice",
        "lost is what was acknowledged and is not there, doubled what is there more than once",
        "the store is an emulator in Python: its time is part of everybody's",
        f"each request has a chance of {_PART_PERCENT} in 100 to fail, and {_TIMEOUT} for its answer",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"writers": _WRITERS[scale], "appends_of_each": _APPENDS[scale], "faults_percent": _PART_PERCENT}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        writers, appends = _WRITERS[stage.scale], _APPENDS[stage.scale]
        with s3() as server, fleet(writers) as processes:
            for part in (_PART_PERCENT,) if stage.scale is Scale.SMOKE else (0, _PART_PERCENT):
                with between(server.endpoint, faults(part / 100, _SEED)) as chaos:
                    options = {**s3_options(chaos.endpoint), "timeout": _TIMEOUT}
                    name = f"{writers} writers, {writers * appends} appends, {part} % faults"
                    yield race(name, _SYSTEMS, _entering(stage, processes, server.bucket(), options, writers, appends))


WORKLOAD = Proxy()


def _entering(
    stage: Stage, processes: Fleet, bucket: Bucket, options: Options, writers: int, appends: int
) -> Callable[[System], Race]:
    return lambda system: Race(
        fleet=processes,
        system=system,
        library=system.load(),
        writers=writers,
        appends=appends,
        place=lambda name: f"{bucket.uri}/{name}",
        options=options,
        quiet_options=bucket.options,
        intents=True,
        is_compared=False,
        log=stage.log,
    )
