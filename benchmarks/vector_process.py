"""Vector process: one build, or some searches, in a process of its own, whose memory, processor time and requests are
those of that work.

    python -m benchmarks.vector_process '{"work": "build", "system": "ours", ...}'

It prints the time and the processor time of the work in seconds, and the largest memory of the process in MB. The same
work on another table, if there is one, loads the libraries before the time starts. Start with `run`, which the
workloads call.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.vectors import BUILDS, Build, OurSearch, PylanceSearch, Search, Vectors


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Figures of the work of one process."""

    seconds: float
    processor_seconds: float
    peak_megabytes: int


def run(
    work: str, system: str, uri: str, options: Mapping[str, str] | None = None, **parameters: object
) -> ProcessFigures:
    """Do the work in another process, and return its figures."""
    request = {"work": work, "system": system, "uri": uri, "options": options and dict(options), **parameters}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.vector_process", json.dumps(request)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, processor_seconds, megabytes = answer.stdout.split()[-3:]
    return ProcessFigures(float(seconds), float(processor_seconds), int(megabytes))


def main(request: Mapping[str, object]) -> None:
    system, uri, options = str(request["system"]), str(request["uri"]), request["options"]
    assert options is None or isinstance(options, dict)
    if request["work"] == "build":
        build = Build(
            str(request["kind"]), int(str(request["partitions"])), sub_vectors=int(str(request.get("sub_vectors", 8)))
        )
        if other := request.get("loaded_by"):
            BUILDS[system](str(other), replace(build, partitions=2), options)
        begin = _clocks()
        BUILDS[system](uri, build, options)
    else:
        search = Search(
            "",
            int(str(request["nprobes"])),
            None if (r := request["refine"]) is None else int(str(r)),
            is_batch=bool(request.get("is_batch")),
        )
        queries = _queries(request)
        open_system = OurSearch if system == "ours" else PylanceSearch
        if other := request.get("loaded_by"):
            open_system(str(other), options)(queries[:1], search)
        if warm_ups := int(str(request.get("warm_ups", 0))):
            searcher = open_system(uri, options)
            for _ in range(warm_ups):
                searcher(queries, search)
            begin = _clocks()
            searcher(queries, search)
        else:
            begin = _clocks()
            open_system(uri, options)(queries, search)
    seconds, processor_seconds = _clocks()
    print(seconds - begin[0], processor_seconds - begin[1], _peak_megabytes())


def _clocks() -> tuple[float, float]:
    """Return the time and the processor time of this process so far."""
    return time.perf_counter(), time.process_time()


def _queries(request: Mapping[str, object]) -> Vectors:
    if path := request.get("queries"):
        queries: Vectors = np.load(str(path))
        return queries
    return np.ones((1, int(str(request["dimensions"]))), dtype=np.float32)


def _peak_megabytes() -> int:
    """Return the largest memory of this process. `getrusage` counts that of the parent before the program started."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kilobytes >> 10


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
