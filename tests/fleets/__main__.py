"""Mixed fleets: `python -m tests.fleets [release ...]` lets this project and each release of pylance alternate.

First, each release reads, writes and filters a table of this project (`compatibility.py`). Then, for each release that
takes turns, every systematic history and some random ones run, and every answer by an index is compared with a scan.
The exit code is 1 if an answer is wrong that `faults.py` does not list.
"""

import argparse
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from lance_core.errors import IndexIgnored
from tests.fleets.compatibility import SUPPORT, support_of
from tests.fleets.engines import Release
from tests.fleets.faults import FAULTS, OLDEST_IN_FLEETS
from tests.fleets.histories import random_history, systematic_histories
from tests.fleets.running import Outcome, run_history
from tests.pylance_releases import install_release

RELEASES = tuple(release for release in SUPPORT if int(release.partition(".")[0]) >= OLDEST_IN_FLEETS)
"""Releases that alternate with this project; older ones only read, write and filter."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleets", description=__doc__)
    parser.add_argument("releases", nargs="*", default=SUPPORT, help=f"of {', '.join(SUPPORT)} (default: all)")
    parser.add_argument("--random", type=int, default=25, metavar="N", help="random histories for each release")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first random history")
    parser.add_argument(
        "--seconds", type=float, default=None, metavar="S", help="time for each release; then a sample of its histories"
    )
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore", IndexIgnored)
    failed, faults = not _check_support(chosen.releases), Counter[str]()
    with ExitStack() as stack:
        readers = {name: stack.enter_context(Release(name, install_release(name))) for name in RELEASES}
        for name in (name for name in readers if name in chosen.releases):
            outcome = _run_release(
                readers[name],
                list(readers.values()),
                range(chosen.seed, chosen.seed + chosen.random),
                chosen.seconds or math.inf,
            )
            failed |= bool(outcome.problems)
            faults += outcome.faults
    _print_faults(faults)
    return int(failed)


def _check_support(releases: Sequence[str]) -> bool:
    """Print the table of `docs/compatibility.md`, and return whether it is right."""
    is_right = True
    for name in releases:
        with Release(name, install_release(name)) as release:
            found = support_of(release)
        is_right &= found == SUPPORT[name]
        print(found.row(name) + ("" if found == SUPPORT[name] else f"  expected: {SUPPORT[name]}"), flush=True)
    return is_right


def _run_release(peer: Release, readers: Sequence[Release], seeds: range, seconds: float) -> Outcome:
    """Run the histories of a release until its time is over. A bounded run takes them in random order, so that those
    that run are a sample of all."""
    total, began, done = Outcome(), time.monotonic(), 0
    histories = [*systematic_histories(), *map(random_history, seeds)]
    if seconds < math.inf:
        random.Random(f"{peer.name} {seeds.start}").shuffle(histories)
    for history in histories:
        if time.monotonic() - began >= seconds:
            break
        outcome = run_history(history, peer, readers)
        for problem in outcome.problems:
            print(f"{problem}\n", flush=True)
        total.add(outcome)
        done += 1
    print(
        f"pylance {peer.name}: {done} of {len(histories)} histories, {total.answers:,} questions, "
        f"{total.faults.total():,} wrong answers by known faults of pylance, {len(total.problems)} problems, "
        f"{time.monotonic() - began:,.0f} s",
        flush=True,
    )
    return total


def _print_faults(faults: Counter[str]) -> None:
    for what in dict.fromkeys(fault.what for fault in FAULTS):
        print(f"{faults[what]:7,}  {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
