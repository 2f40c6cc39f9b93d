"""Request budget from the command line (`make requests`): counts the requests of all operations, ours and pylance's.

    python -m tests.request_budget [text ...] [--update] [--ours]

A text selects the operations whose names contain it. Prints one line for each operation and exits with 1 if one exceeds
its budget; `--update` writes the counts into the table instead.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.request_budget.budget import UPDATE, BudgetRow, read_budget, row_of, write_budget
from tests.request_budget.counting import request_counter
from tests.request_budget.operations import OPERATIONS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make requests", description="Count requests to an S3 emulator.")
    parser.add_argument("operation", nargs="*", help="part of the name of an operation (default: all of them)")
    parser.add_argument("--update", action="store_true", help="write the counts into request_budget.md")
    parser.add_argument("--ours", action="store_true", help="leave pylance out, and its counts as they are")
    options = parser.parse_args(arguments)
    selected = [each for each in OPERATIONS if not options.operation or any(p in each.name for p in options.operation)]
    if not selected:
        parser.error(f"no operation has {' or '.join(options.operation)} in its name")
    budget = read_budget()
    exceeded = fewer = above_pylance = 0
    print(f"{'operation':<48} {'ours':>6} {'budget':>6} {'pylance':>7}", flush=True)
    with request_counter() as counter:
        for operation in selected:
            counts = counter.measure(operation, with_pylance=not options.ours)
            row, before = row_of(counts), budget.get(operation.name)
            if options.ours and before:
                row = BudgetRow(row.ours, before.pylance)
            allowed = row.ours.requests if before is None else before.ours.requests
            excess = (
                "no budget yet" if before is None else before.ours.describe_excess(counts.ours, operation.variation)
            )
            exceeded += bool(excess)
            fewer += row.ours.requests < allowed - operation.variation
            pylance = row.pylance.requests if row.pylance else ""
            print(f"{operation.name:<48} {row.ours.requests:>6} {allowed:>6} {pylance:>7} {excess}", flush=True)
            above_pylance += row.pylance is not None and row.ours.requests > row.pylance.requests
            budget[operation.name] = row
    print(f"{above_pylance} operations send more requests than pylance does, those with intents among them")
    if options.update:
        write_budget({each.name: budget[each.name] for each in OPERATIONS if each.name in budget})
        return 0
    if fewer:
        print(f"{fewer} operations send fewer requests than their budget: {UPDATE}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
