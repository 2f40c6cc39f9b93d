"""The command: which workloads, how often, how big, and where the numbers go.

Work happens in a fresh directory beside the results, since that is on a real disk where a temporary directory
may not be, and it is removed at the end. What is measured is decided in `workloads/`.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine, workloads
from benchmarks.harness import ResultsDiffer, Scale, Stage, Workload, run
from benchmarks.report import Report, document
from benchmarks.text import render

RESULTS = Path(".benchmarks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names: list[str] = chosen.workloads or list(workloads.names())
    if unknown := [name for name in names if name not in workloads.names()]:
        parser.error(f"no workload {unknown[0]!r}; there are {', '.join(workloads.names())}")
    if chosen.list:
        print("\n".join(f"{name:<16} {workloads.load(name).summary}" for name in workloads.names()))
        return 0
    started = datetime.now(UTC)
    reports = []
    try:
        for name in names:
            report = measure(
                workloads.load(name),
                scale=Scale(chosen.scale),
                repetitions=chosen.repetitions,
                results=chosen.directory,
            )
            print(render(report), end="\n\n", flush=True)
            reports.append(report)
    except ResultsDiffer as error:
        print(f"results differ: {error}", file=sys.stderr)
        return 1
    path: Path = chosen.json or chosen.directory / f"{'-'.join(names)}-{started:%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(reports), indent=1), encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)
    return 0


def measure(workload: Workload, *, scale: Scale, repetitions: int | None, results: Path) -> Report:
    results.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix="run-", dir=results)).resolve()
    kept = results.resolve() / "inputs"
    stage = Stage(workspace=workspace, kept=kept, scale=scale, log=_log)
    started, load_before = datetime.now(UTC), machine.load()
    count = workload.repetitions(scale) if repetitions is None else repetitions
    try:
        facts = machine.describe(workspace)
        with closing(workload.cases(stage)) as cases:
            measured = run(cases, repetitions=count, log=_log)
    finally:
        shutil.rmtree(workspace)
    return Report(
        workload=workload.name,
        summary=workload.summary,
        notes=workload.notes,
        scale=scale.value,
        repetitions=count,
        parameters=workload.parameters(scale),
        started=started.isoformat(timespec="seconds"),
        machine=facts,
        load_before=load_before,
        load_after=machine.load(),
        cases=measured,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure us against our peers.")
    parser.add_argument("workloads", nargs="*", metavar="name", help="workloads to run; all of them if none is named")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    parser.add_argument("--repetitions", type=_positive, help="instead of the workload's own number")
    parser.add_argument("--scale", choices=[scale.value for scale in Scale], default=Scale.DEFAULT.value)
    parser.add_argument("--json", type=Path, metavar="PATH", help="where the numbers go, instead of .benchmarks/")
    parser.add_argument(
        "--directory", type=Path, default=RESULTS, help="where work is done and numbers are kept: %(default)s"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one repetition is needed")
    return number


def _log(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
