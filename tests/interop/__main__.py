"""Try any number of programs: `python -m tests.interop 5000 1` tries the seeds from 1 to 5000.

The kinds of steps and the differences that were allowed are counted; a seed that fails is printed as a program that
runs, and is to be added to `seeds.txt` once it is fixed. One number alone is how many, beginning with seed 0; `show 17`
prints the program of seed 17.
"""

import os
import sys
from collections import Counter

from tests.interop.fuzzing import try_seeds
from tests.interop.program_generator import program


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["show"]:
        for seed in arguments[1:]:
            print(program(int(seed)))
        return 0
    count = int(arguments[0]) if arguments else 300
    first = int(arguments[1]) if len(arguments) > 1 else 0
    counted: Counter[str] = Counter()
    failures = 0
    for tried in try_seeds(range(first, first + count), os.cpu_count() or 1):
        counted += tried.counted
        for failure in tried.failures:
            failures += 1
            print(f"{'=' * 100}\n{failure}", flush=True)
    for name, number in sorted(counted.items()):
        print(f"{number:9,}  {name}")
    print(f"{failures} of {count} programs failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
