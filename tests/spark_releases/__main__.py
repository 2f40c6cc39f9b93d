"""Spark matrix: runs the operations of a table with each supported release of Spark, and writes the table of results.

    python -m tests.spark_releases              all releases
    python -m tests.spark_releases 3.5          one release again

The last results of each release are stored below `.tools/spark/`. When all releases have passed, the command writes
the page `DOCUMENT` in docs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.spark_releases.environments import ENVIRONMENTS, RELEASES, ROOT, install_release

DOCUMENT = ROOT / "docs" / "spark-releases.md"
INTRODUCTION = """\
# Releases of Spark

`make spark-matrix` writes this page. It runs each step with each release, compares the table with one that a single
process changed in the same way, and kills an executor in the middle of an operation. A cell has the seconds that the
step took, on a machine with two cores; the first step includes the start of the workers. An empty cell is a step that
the release does not have: the format `lance` needs Spark 4.0, its streaming sink 4.1 and its streaming source 4.2.
Spark distributes the Connect server of release 3.5 separately, so it is not tried.

"""


def main(releases: Sequence[str]) -> int:
    for release in releases or RELEASES:
        _results_of(release).write_text(json.dumps(_run_release(release)))
    results = {release: _load(_results_of(release)) for release in RELEASES if _results_of(release).exists()}
    table = _format_table(results)
    print(table)
    failed = [
        f"{release} {place} {step}: {line['error']}"
        for release, lines in results.items()
        for (place, step), line in lines.items()
        if line["error"]
    ]
    print("\n".join(failed))
    if len(results) == len(RELEASES) and not failed:
        DOCUMENT.write_text(INTRODUCTION + table)
    return 1 if failed else 0


_Lines = Mapping[tuple[str, str], Mapping[str, object]]


def _results_of(release: str) -> Path:
    return ENVIRONMENTS / f"{release}.json"


def _load(path: Path) -> _Lines:
    return {(line["place"], line["step"]): line for line in json.loads(path.read_text())}


def _run_release(release: str) -> list[Mapping[str, object]]:
    python = install_release(release)
    with tempfile.TemporaryDirectory(prefix="spark-matrix-") as directory:
        process = subprocess.Popen(
            [python, "-m", "tests.spark_releases.steps", str(Path(directory) / "tables")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        for text in process.stdout:
            print(release, text, end="", flush=True)
            lines.append(json.loads(text))
        if process.wait():
            error = f"the steps ended with exit code {process.returncode}"
            lines.append({"place": "run", "step": "run", "error": error, "seconds": 0})
        return lines


def _format_table(results: Mapping[str, _Lines]) -> str:
    rows = list(dict.fromkeys(key for lines in results.values() for key in lines))
    text = f"| place | step | {' | '.join(results)} |\n|---|---|{'---|' * len(results)}\n"
    for place, step in rows:
        cells = [_format_cell(lines.get((place, step))) for lines in results.values()]
        text += f"| {place} | {step.replace('_', ' ')} | {' | '.join(cells)} |\n"
    return text


def _format_cell(line: Mapping[str, object] | None) -> str:
    if line is None:
        return ""
    return "failed" if line["error"] else f"{line['seconds']} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
