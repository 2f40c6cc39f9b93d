"""`make torture`: every harness at its full size, two processes at a time; names run those alone.

    python -m tests.torture [harness ...] [--size nightly|pr]

Prints one table, and what was found, each with the call that shows it again. Exits with 1 if there is any.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from tests.torture.harnesses import HARNESSES, SIZES, run_share
from tests.torture.report import Report, table, together

AT_ONCE = 2


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make torture", description="the harnesses at their full size")
    parser.add_argument("harness", nargs="*", help=f"of {', '.join(HARNESSES)}; all of them, where none is named")
    parser.add_argument("--size", choices=SIZES, default="nightly")
    options = parser.parse_args(arguments)
    os.environ.setdefault("LANCE_LOG", "error")  # pylance warns of each operation that it calls unstable
    if unknown := set(options.harness) - set(HARNESSES):
        parser.error(f"there is no harness {', '.join(sorted(unknown))}; there are {', '.join(HARNESSES)}")
    names = options.harness or list(HARNESSES)
    beside = [name for name in names if not HARNESSES[name].alone]
    reports = _run(beside, options.size, AT_ONCE) if beside else []
    for name in names:
        if HARNESSES[name].alone:
            reports += _run([name], options.size, 1)
    print(table(reports), flush=True)
    return 1 if any(report.found for report in reports) else 0


def _run(names: Sequence[str], size: str, processes: int) -> list[Report]:
    shares: dict[str, list[Report]] = {name: [] for name in names}
    done: dict[str, Report] = {}
    begun: dict[str, float] = {}
    start = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures = {
            pool.submit(run_share, name, size, share): name for name in names for share in range(HARNESSES[name].shares)
        }
        for future in as_completed(futures):
            name, report = futures[future], _report(futures[future], future)
            begun.setdefault(name, time.perf_counter() - report.seconds)
            shares[name].append(report)
            for found in report.found:
                print(f"FOUND by {name}: {found}", file=sys.stderr, flush=True)
            if len(shares[name]) < HARNESSES[name].shares:
                told = f"{name}: {report.tried:,} in {report.seconds:.0f} s, part {len(shares[name])}"
                print(
                    f"{time.perf_counter() - start:8.0f} s  {told} of {HARNESSES[name].shares}",
                    file=sys.stderr,
                    flush=True,
                )
            else:
                done[name] = together(shares[name], time.perf_counter() - begun[name])
                print(f"{time.perf_counter() - start:8.0f} s  {name} is done", file=sys.stderr, flush=True)
    return [done[name] for name in names]


def _report(name: str, future: "Future[Report]") -> Report:
    """A harness that breaks down has found something, and the others go on."""
    if broken := future.exception():
        return Report(name, 0, 0.0, (f"a part of it ended in {type(broken).__name__}: {broken}",), {})
    return future.result()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
