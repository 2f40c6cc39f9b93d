"""Command line: selects the workloads, their scale and repetitions, and the output file.

The work happens in a new directory next to the results, because a temporary directory may not be on a real disk; it is
removed at the end. The measurements themselves are defined in `workloads/`.
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
from benchmarks.report import Report, build_document
from benchmarks.text import render

RESULTS = Path(".benchmarks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    names: list[str] = options.workloads or list(workloads.names())
    if unknown := [name for name in names if name not in workloads.names()]:
        parser.error(f"unknown workload {unknown[0]!r}; choose one of {', '.join(workloads.names())}")
    if options.list:
        print("\n".join(f"{name:<16} {workloads.load(name).summary}" for name in workloads.names()))
        return 0
    started = datetime.now(UTC)
    reports = []
    try:
        for name in names:
            report = measure(
                workloads.load(name),
                scale=Scale(options.scale),
                repetitions=options.repetitions,
                results=options.directory,
            )
            print(render(report), end="\n\n", flush=True)
            reports.append(report)
    except ResultsDiffer as error:
        print(f"results differ: {error}", file=sys.stderr)
        return 1
    path: Path = options.json or options.directory / f"{'-'.join(names)}-{started:%Y%m%dT%H%M%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(build_document(reports), indent=1), encoding="utf-8")
    print(f"results written to {path}", file=sys.stderr)
    return 0


def measure(workload: Workload, *, scale: Scale, repetitions: int | None, results: Path) -> Report:
    results.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix="run-", dir=results)).resolve()
    input_cache = results.resolve() / "inputs"
    stage = Stage(workspace=workspace, input_cache=input_cache, scale=scale, log=_log)
    started, load_before = datetime.now(UTC), machine.load_average()
    count = workload.repetitions(scale) if repetitions is None else repetitions
    try:
        facts = machine.describe_machine(workspace)
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
        load_after=machine.load_average(),
        cases=measured,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure this library against its peers.")
    parser.add_argument("workloads", nargs="*", metavar="name", help="workloads to run (default: all of them)")
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    parser.add_argument(
        "--repetitions", type=_positive, help="number of repetitions, instead of the default of the workload"
    )
    parser.add_argument("--scale", choices=[scale.value for scale in Scale], default=Scale.DEFAULT.value)
    parser.add_argument("--json", type=Path, metavar="PATH", help="output file, instead of a new file in .benchmarks/")
    parser.add_argument(
        "--directory",
        type=Path,
        default=RESULTS,
        help="directory of the temporary tables, the cached inputs and the results (default: %(default)s)",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one repetition is needed")
    return number


def _log(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
