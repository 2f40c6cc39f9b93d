"""Spark matrix: runs the operations of a table with each supported release of Spark, and writes the table of results.

    python -m tests.spark_releases              all releases
    python -m tests.spark_releases 3.5          one release again
    python -m tests.spark_releases 3.5 connect  one part of it: local, connect, speed, standalone or demo
    python -m tests.spark_releases 3.5 local index verify      steps by their first word, if they need no others

The last results of each release are stored below `.tools/spark/`. When all releases with results have passed, the
command writes the page `DOCUMENT` in docs. Without a result, a step keeps its cell of the page.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.spark_releases.environments import ENVIRONMENTS, RELEASES, ROOT, install_release
from tests.spark_releases.steps import DEMO, SPEED

RUN = "run"
DOCUMENT = ROOT / "docs" / "spark-releases.md"
INTRODUCTION = """\
# Releases of Spark

`make spark-matrix` writes this page. It runs each step with each release, compares the table with one that a single
process changed in the same way, and kills an executor in the middle of an operation. "Yes" marks a step that gave the
same table, "not run" one that was added after the last run of the release. An empty cell is a step that the release
does not have: the format `lance` needs Spark 4.0, its streaming sink 4.1 and its streaming source 4.2. Spark
distributes the Connect server of release 3.5 separately, so it is not tried.

The rows per second are those of 200,000 rows with 16 columns, as in `make bench`: appended from Parquet files, and read
into nothing. They include the start and the end of a job.

"""


def main(arguments: Sequence[str]) -> int:
    names = [each for each in arguments if each not in RELEASES]
    for release in [each for each in arguments if each in RELEASES] or RELEASES:
        lines = _run_release(release, names)
        if names:
            stored = json.loads(_results_of(release).read_text()) if _results_of(release).exists() else []
            lines = _replace_steps(stored, lines)
        _results_of(release).write_text(json.dumps(lines))
    results = {release: _load(_results_of(release)) for release in RELEASES if _results_of(release).exists()}
    table = _format_table(results, _documented_cells())
    print(table)
    failed = [
        f"{release} {place} {step}: {line['error']}"
        for release, lines in results.items()
        for (place, step), line in lines.items()
        if line["error"]
    ]
    print("\n".join(failed))
    if not failed:
        DOCUMENT.write_text(INTRODUCTION + table)
    return 1 if failed else 0


_Lines = Mapping[tuple[str, str], Mapping[str, object]]


def _results_of(release: str) -> Path:
    return ENVIRONMENTS / f"{release}.json"


def _load(path: Path) -> _Lines:
    return {(line["place"], line["step"]): line for line in json.loads(path.read_text())}


def _replace_steps(stored: Sequence[Mapping[str, object]], new: Sequence[Mapping[str, object]]) -> list:
    """Return stored lines, with the new line of each step that ran again."""
    ran = {(line["place"], line["step"]): line for line in new}
    kept = [ran.pop((line["place"], line["step"]), line) for line in stored if line["place"] != RUN]
    return [*kept, *ran.values()]


def _run_release(release: str, names: Sequence[str]) -> list[Mapping[str, object]]:
    python = install_release(release)
    with tempfile.TemporaryDirectory(prefix="spark-matrix-") as directory:
        process = subprocess.Popen(
            [python, "-m", "tests.spark_releases.steps", str(Path(directory) / "tables"), *names],
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
            lines.append({"place": RUN, "step": RUN, "error": error, "seconds": 0})
        return lines


def _documented_cells() -> Mapping[tuple[str, str, str], str]:
    """Return the cells of the page by release, place and step."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    _place, _step, *releases = _cells(lines[0])
    return {
        (release, place, step): cell
        for place, step, *cells in map(_cells, lines[2:])
        for release, cell in zip(releases, cells, strict=True)
        if cell
    }


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _format_table(results: Mapping[str, _Lines], documented: Mapping[tuple[str, str, str], str]) -> str:
    rows = {(place, _title(step)): None for lines in results.values() for place, step in lines}
    rows |= {(place, step): None for _release, place, step in documented}
    places = list(dict.fromkeys(place for place, _step in rows))
    text = f"| place | step | {' | '.join(RELEASES)} |\n|---|---|{'---|' * len(RELEASES)}\n"
    for place, step in sorted(rows, key=lambda row: places.index(row[0])):
        is_new = not any(documented.get((release, place, step)) for release in RELEASES)
        cells = []
        for release in RELEASES:
            lines = {(at, _title(name)): line for (at, name), line in results.get(release, {}).items()}
            if (place, step) in lines or _is_whole(lines):
                cells.append(_format_cell(lines.get((place, step))))
            else:
                has_place = any(documented.get((release, place, other)) for _place, other in rows)
                cells.append(documented.get((release, place, step), "not run" if is_new and has_place else ""))
        text += f"| {place} | {step} | {' | '.join(cells)} |\n"
    return text


def _is_whole(lines: _Lines) -> bool:
    """Return whether all parts ran, so that a step without a line is one that the release does not have."""
    return {"local", SPEED, DEMO} <= {place for place, _step in lines}


def _title(step: str) -> str:
    """Return the name of a step for the page; names of index types keep their underscores."""
    return " ".join(word if word.isupper() else word.replace("_", " ") for word in step.split())


def _format_cell(line: Mapping[str, object] | None) -> str:
    if line is None:
        return ""
    if line["error"]:
        return "failed"
    return f"{line['rate']:,.0f} rows/s" if line.get("rate") else "yes"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
