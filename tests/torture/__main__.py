"""Torture runner (`make torture`): runs every harness at its full size in two processes; names select harnesses.

    python -m tests.torture [harness ...] [--size full|pr]

Prints one table, and each failure with the call that reproduces it. Exits with 1 if there are failures.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from tests.torture.harnesses import HARNESSES, SIZES, run_split
from tests.torture.report import Report, format_table, merge_reports

PROCESSES = 2


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make torture", description="Run the torture harnesses.")
    parser.add_argument("harness", nargs="*", help=f"one of {', '.join(HARNESSES)} (default: all of them)")
    parser.add_argument("--size", choices=SIZES, default="nightly")
    options = parser.parse_args(arguments)
    os.environ.setdefault("LANCE_LOG", "error")  # pylance logs a warning for each operation that it calls unstable
    if unknown := set(options.harness) - set(HARNESSES):
        parser.error(f"unknown harness {', '.join(sorted(unknown))}; choose from {', '.join(HARNESSES)}")
    names = options.harness or list(HARNESSES)
    concurrent = [name for name in names if not HARNESSES[name].is_exclusive]
    reports = _run_harnesses(concurrent, options.size, PROCESSES) if concurrent else []
    for name in names:
        if HARNESSES[name].is_exclusive:
            reports += _run_harnesses([name], options.size, 1)
    print(format_table(reports), flush=True)
    return 1 if any(report.failures for report in reports) else 0


def _run_harnesses(names: Sequence[str], size: str, processes: int) -> list[Report]:
    reports: dict[str, list[Report]] = {name: [] for name in names}
    done: dict[str, Report] = {}
    started: dict[str, float] = {}
    start = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures = {
            pool.submit(run_split, name, size, split_index): name
            for name in names
            for split_index in range(HARNESSES[name].splits)
        }
        for future in as_completed(futures):
            name, report = futures[future], _report_of(futures[future], future)
            started.setdefault(name, time.perf_counter() - report.seconds)
            reports[name].append(report)
            for failure in report.failures:
                print(f"FAILURE in {name}: {failure}", file=sys.stderr, flush=True)
            if len(reports[name]) < HARNESSES[name].splits:
                progress = f"{name}: {report.case_count:,} in {report.seconds:.0f} s, split {len(reports[name])}"
                print(
                    f"{time.perf_counter() - start:8.0f} s  {progress} of {HARNESSES[name].splits}",
                    file=sys.stderr,
                    flush=True,
                )
            else:
                done[name] = merge_reports(reports[name], time.perf_counter() - started[name])
                print(f"{time.perf_counter() - start:8.0f} s  {name} has finished", file=sys.stderr, flush=True)
    return [done[name] for name in names]


def _report_of(name: str, future: "Future[Report]") -> Report:
    """Return the report of a split. A split that raises counts as a failure, and the other harnesses continue."""
    if error := future.exception():
        return Report(name, 0, 0.0, (f"a split raised {type(error).__name__}: {error}",), {})
    return future.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
