"""Vector process: one build or one search in a process of its own, whose memory and requests are those of that work.

    python -m benchmarks.vector_process '{"work": "build", "system": "ours", ...}'

It prints the largest memory of the process in MB. Start with `run`, which the workloads call.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.vectors import BUILDS, Build, OurSearch, PylanceSearch, Search


def run(work: str, system: str, uri: str, options: Mapping[str, str] | None = None, **parameters: object) -> int:
    """Do the work in another process, and return the largest memory of that process in MB."""
    request = {"work": work, "system": system, "uri": uri, "options": options and dict(options), **parameters}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.vector_process", json.dumps(request)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(answer.stdout.split()[-1])


def main(request: Mapping[str, object]) -> None:
    system, uri, options = str(request["system"]), str(request["uri"]), request["options"]
    assert options is None or isinstance(options, dict)
    if request["work"] == "build":
        BUILDS[system](uri, Build(str(request["kind"]), int(str(request["partitions"]))), options)
    else:
        search = Search("", int(str(request["nprobes"])), None if (r := request["refine"]) is None else int(str(r)))
        searcher = (OurSearch if system == "ours" else PylanceSearch)(uri, options)
        searcher(np.ones((1, int(str(request["dimensions"]))), dtype=np.float32), search)
    print(_peak_megabytes())


def _peak_megabytes() -> int:
    """Return the largest memory of this process. `getrusage` counts that of the parent before the program started."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kilobytes >> 10


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
