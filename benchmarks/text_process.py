"""Text process: one build of a full-text index, in this process or in one of its own whose memory is that of the build.

    python -m benchmarks.text_process '{"system": "ours", "uri": "...", "with_position": true}'

It prints the largest memory of the process in MB. Start with `run`, which the workload calls.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lance_core import Table


@dataclass(frozen=True, slots=True)
class TextBuild:
    """Parameters of a build."""

    with_position: bool


def _build_ours(uri: str, build: TextBuild) -> None:
    Table.open(uri, durable=False).create_index("body", "INVERTED", with_position=build.with_position)


def _build_pylance(uri: str, build: TextBuild) -> None:
    import lance

    lance.dataset(uri).create_scalar_index("body", "INVERTED", with_position=build.with_position)


BUILDS: Mapping[str, Callable[[str, TextBuild], None]] = {"ours": _build_ours, "pylance": _build_pylance}


def run(system: str, uri: str, build: TextBuild) -> int:
    """Do the build in another process, and return the largest memory of that process in MB."""
    request = {"system": system, "uri": uri, "with_position": build.with_position}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.text_process", json.dumps(request)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(answer.stdout.split()[-1])


def main(request: Mapping[str, object]) -> None:
    BUILDS[str(request["system"])](str(request["uri"]), TextBuild(bool(request["with_position"])))
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print(kilobytes >> 10)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
