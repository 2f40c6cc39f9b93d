"""One writing process: `python -m benchmarks.writer`, told by lines of JSON what to append where, answering with lines.

What lives here: the other side of `fleet.py`. An append that fails is tried again until it lands, as a user would, and
counted. What the libraries say of themselves on the standard output goes to the standard error.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from benchmarks.appending import SYSTEMS, Library, Options, row

_TRIES_MAX = 50


@dataclass(frozen=True, slots=True)
class Task:
    """`count` appends of one row, with the ids that begin at `first`."""

    system: str
    uri: str
    options: Options
    first: int
    count: int
    intents: bool

    @property
    def ids(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))


@dataclass(frozen=True, slots=True)
class Done:
    slowest: float
    """Seconds of one append, from the first try until it landed."""
    failed: int
    """Tries that ended in an error."""
    given_up: int
    error: str = ""
    """The last one."""


def carried_out(task: Task, library: Library) -> Done:
    slowest, failed, given_up, error = 0.0, 0, 0, ""
    for number in task.ids:
        begun = time.perf_counter()
        for _ in range(_TRIES_MAX):
            try:
                library.append(task.uri, row(number), task.options, f"row {number}" if task.intents else None)
                break
            except library.errors as raised:
                failed += 1
                error = f"{type(raised).__name__}: {raised}"
        else:
            given_up += 1
        slowest = max(slowest, time.perf_counter() - begun)
    return Done(slowest, failed, given_up, error)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    libraries: dict[str, Library] = {}
    with suppress(BrokenPipeError, KeyboardInterrupt), answers:
        for line in sys.stdin:
            task = Task(**json.loads(line))
            if task.system not in libraries:
                libraries[task.system] = SYSTEMS[task.system].load()
            print(json.dumps(asdict(carried_out(task, libraries[task.system]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
