"""Writer process: `python -m benchmarks.writer` reads append tasks as lines of JSON and replies with one line of JSON
each.

`fleet.py` is its client. A failed append is counted and retried until it succeeds, as a user would do. Output of the
libraries to standard output is redirected to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from benchmarks.appending import SYSTEMS, Library, Options, make_row

_ATTEMPTS_MAX = 50


@dataclass(frozen=True, slots=True)
class Task:
    """`count` appends of one row each, with ids from `first`."""

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
class TaskResult:
    slowest: float
    """Longest time of one append in seconds, from the first attempt until it was committed."""
    failed: int
    """Attempts that ended in an error."""
    given_up: int
    error: str = ""
    """The last error."""


def run_task(task: Task, library: Library) -> TaskResult:
    slowest, failed, given_up, error = 0.0, 0, 0, ""
    for number in task.ids:
        started = time.perf_counter()
        for _ in range(_ATTEMPTS_MAX):
            try:
                library.append(task.uri, make_row(number), task.options, f"row {number}" if task.intents else None)
                break
            except library.errors as raised:
                failed += 1
                error = f"{type(raised).__name__}: {raised}"
        else:
            given_up += 1
        slowest = max(slowest, time.perf_counter() - started)
    return TaskResult(slowest, failed, given_up, error)


def main() -> None:
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    libraries: dict[str, Library] = {}
    with suppress(BrokenPipeError, KeyboardInterrupt), responses:
        for line in sys.stdin:
            task = Task(**json.loads(line))
            if task.system not in libraries:
                libraries[task.system] = SYSTEMS[task.system].load()
            print(json.dumps(asdict(run_task(task, libraries[task.system]))), file=responses, flush=True)


if __name__ == "__main__":
    main()
