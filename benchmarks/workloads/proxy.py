"""Workload `proxy`: processes append to one table in an object store whose requests fail, which shows how each library
handles lost responses.

The store is an emulator on this machine, and a proxy in front of it injects the faults: requests that are lost before
or after they are executed, status 409, 429, 500 and 503, truncated responses, and delayed ones.
"""

from collections.abc import Callable, Generator, Mapping

from benchmarks.appending import DELTA, OURS, PYLANCE, Options, System
from benchmarks.fleet import Fleet, Race, race_case, start_fleet
from benchmarks.harness import Case, Scale, Stage
from tests.histories.hammer_locations import random_faults
from tests.lance_core.storage.buckets import Bucket, s3_options
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import s3

_WRITERS: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 8, Scale.FULL: 8}
_APPENDS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 10, Scale.FULL: 25}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_SYSTEMS = (OURS, PYLANCE, DELTA)
_FAULTS_PERCENT = 5
_TIMEOUT = "2s"
_SEED = 1


class Proxy:
    name = "proxy"
    summary = "processes that append to one table in an object store where requests fail"
    notes = (
        "a failed append is retried until it commits, as a user would do, and 'failed' counts it; ours passes intent=",
        "the peers have no intents: they repeat an append that reported an error but was committed",
        "lost rows were acknowledged but are missing, doubled rows are stored more than once",
        "the store is an emulator in Python: its time is part of every measurement",
        f"{_FAULTS_PERCENT} of 100 requests fail at random, and a response must arrive within {_TIMEOUT}",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"writers": _WRITERS[scale], "appends_of_each": _APPENDS[scale], "faults_percent": _FAULTS_PERCENT}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        writers, appends = _WRITERS[stage.scale], _APPENDS[stage.scale]
        with s3() as server, start_fleet(writers) as processes:
            for percent in (_FAULTS_PERCENT,) if stage.scale is Scale.SMOKE else (0, _FAULTS_PERCENT):
                with proxy_to(server.endpoint, random_faults(percent / 100, _SEED)) as chaos:
                    options = {**s3_options(chaos.endpoint), "timeout": _TIMEOUT}
                    name = f"{writers} writers, {writers * appends} appends, {percent} % faults"
                    yield race_case(
                        name, _SYSTEMS, _race_factory(stage, processes, server.bucket(), options, writers, appends)
                    )


WORKLOAD = Proxy()


def _race_factory(
    stage: Stage, processes: Fleet, bucket: Bucket, options: Options, writers: int, appends: int
) -> Callable[[System], Race]:
    return lambda system: Race(
        fleet=processes,
        system=system,
        library=system.load(),
        writers=writers,
        appends=appends,
        uri_for=lambda name: f"{bucket.uri}/{name}",
        options=options,
        fault_free_options=bucket.options,
        intents=True,
        is_compared=False,
        log=stage.log,
    )
