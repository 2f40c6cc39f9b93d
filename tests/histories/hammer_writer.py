"""One process of the hammer: does its pieces of work one after the other, each under its intent, until it is killed or
done. `python -m tests.histories.hammer_writer`, with the job as JSON on its standard input; a line of JSON on its
standard output for all that its parent has to know.

What lives here: what a careful user's program does, and nothing that knows how it is tried. Start with `main`.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypedDict

import pyarrow as pa

from lance_core import CommitUndecided, RetryableConflict, StorageError, Table
from lance_core.table.base import Committed

WORK = "hammer.work"
"""The property of a version that says which piece of work made it."""
TRIES_MAX = 40
NOBODY = -(10**9)


@dataclass(frozen=True, slots=True)
class Work:
    intent: str
    verb: str
    row: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the caller of one piece of work was told."""

    intent: str
    version: int | None
    """None where there was nothing to do."""
    attempts: int
    seconds: float
    """From the call that was answered, its repetitions in the library included."""
    landed_before: bool
    raised: tuple[str, ...]
    """Errors after which it was called again, under the same intent."""


@dataclass(frozen=True, slots=True)
class Job:
    uri: str
    options: Mapping[str, str]
    durable: bool
    work: tuple[Work, ...]


def row(number: int, value: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "n": pa.array([value], pa.int64())})


_VERBS: Mapping[str, Callable[[Table, Work], Committed]] = {
    "append": lambda table, work: table.append(row(work.row, work.value), **_named(work)),
    "delete": lambda table, work: table.delete(f"id = {work.row}", **_named(work)),
    "update": lambda table, work: table.update({"n": "n + 1"}, f"id = {work.row}", **_named(work)),
    "upsert": lambda table, work: table.upsert(row(work.row, work.value), on="id", **_named(work)),
    "compact": lambda table, work: table.compact(**_named(work)),
}
VERBS = tuple(_VERBS)


class _Named(TypedDict):
    intent: str
    properties: Mapping[str, str]


def _named(work: Work) -> _Named:
    return {"intent": work.intent, "properties": {WORK: work.intent}}


def done(job: Job, work: Work) -> Answer:
    """As an orchestrator would: whatever may be repeated is, under its intent."""
    raised: list[str] = []
    while True:
        begun = time.perf_counter()
        try:
            table = Table.open(job.uri, storage_options=job.options or None, durable=job.durable)
            committed = _VERBS[work.verb](table, work)
        except (CommitUndecided, RetryableConflict, StorageError) as error:
            raised.append(f"{type(error).__name__}: {error}")
            if len(raised) == TRIES_MAX:
                raise
            continue
        changed = committed.already_committed or committed.files or committed.rows_removed
        return Answer(
            intent=work.intent,
            version=committed.version if changed else None,
            attempts=committed.attempts,
            seconds=time.perf_counter() - begun,
            landed_before=committed.already_committed,
            raised=tuple(raised),
        )


def main() -> None:
    told = json.load(sys.stdin)
    job = Job(told["uri"], told["options"], told["durable"], tuple(Work(**each) for each in told["work"]))
    # What a process loads once is loaded before it is said to be at work, so that it is killed at work.
    with suppress(StorageError):
        Table.open(job.uri, storage_options=job.options or None).count_rows(f"id = {NOBODY}")
    print("ready", flush=True)
    for work in job.work:
        print(json.dumps(asdict(done(job, work))), flush=True)


if __name__ == "__main__":
    main()
