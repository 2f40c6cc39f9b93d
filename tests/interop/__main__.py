"""Fuzzing from the command line: `python -m tests.interop 5000 1` runs the programs of the seeds from 1 to 5000.

The output counts the steps by name and the differences that are allowed. A program that fails is printed, shortened, as
text that runs by itself; its seed belongs into `seeds.txt` once the defect is fixed. A single number is the number of
programs, and the first seed is then 0; `show 17` prints the program of seed 17. A tenth as many programs with indices
follow, and a twenty-fifth as many histories of tables with vector indices.
"""

import os
import sys
import tempfile
import traceback
from collections import Counter
from itertools import chain
from pathlib import Path

from lance_core.errors import LanceError
from tests.interop.fuzzing import fuzz_in_processes, fuzz_with_indices
from tests.interop.program_generator import generate_program
from tests.interop.vector_histories import history_of


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["show"]:
        for seed in arguments[1:]:
            print(generate_program(int(seed)))
        return 0
    count = int(arguments[0]) if arguments else 300
    first_seed = int(arguments[1]) if len(arguments) > 1 else 0
    counts: Counter[str] = Counter()
    failure_count = 0
    processes = os.cpu_count() or 1
    with_indices_count = max(1, count // 10)
    results = chain(
        fuzz_in_processes(range(first_seed, first_seed + count), processes),
        fuzz_in_processes(range(first_seed, first_seed + with_indices_count), processes, fuzz_with_indices),
    )
    for result in results:
        counts += result.counts
        for failure in result.failures:
            failure_count += 1
            print(f"{'=' * 100}\n{failure}", flush=True)
    failure_count += _run_vector_histories(range(first_seed, first_seed + max(1, count // 25)))
    for name, number in sorted(counts.items()):
        print(f"{number:9,}  {name}")
    print(f"{failure_count} of {count + with_indices_count} programs failed")
    return 1 if failure_count else 0


def _run_vector_histories(seeds: range) -> int:
    """Run a history of a table with a vector index for each seed, and return how many fail."""
    failures = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as directory:
            try:
                history_of(Path(directory, "table"), seed).run(8)
            except (AssertionError, LanceError, OSError, RuntimeError, ValueError):
                failures += 1
                print(f"{'=' * 100}\nvector history of seed {seed}\n{traceback.format_exc()}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
