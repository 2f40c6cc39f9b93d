"""Writer process of the hammer: runs its operations one after the other, each under its intent, until it is killed or
done. `python -m tests.histories.hammer_writer` reads the job as JSON from its standard input, and writes one line of
JSON to its standard output for each result.

The module does what a careful program of a user does, and does not know how it is tested. Start with `main`.
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

WORK_PROPERTY = "hammer.work"
"""Property of a version that names the operation that made it."""
ATTEMPTS_MAX = 40
UNUSED_KEY = -(10**9)


@dataclass(frozen=True, slots=True)
class WorkItem:
    intent: str
    verb: str
    row: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class WorkResult:
    """Result that the caller of one operation received."""

    intent: str
    version: int | None
    """Version of the commit; `None` if there was nothing to change."""
    attempts: int
    seconds: float
    """Duration of the successful call, including its retries inside the library."""
    already_committed: bool
    errors: tuple[str, ...]
    """Errors after which the operation was repeated under the same intent."""


@dataclass(frozen=True, slots=True)
class Job:
    uri: str
    options: Mapping[str, str]
    durable: bool
    work: tuple[WorkItem, ...]


def make_row(number: int, value: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "n": pa.array([value], pa.int64())})


_VERBS: Mapping[str, Callable[[Table, WorkItem], Committed]] = {
    "append": lambda table, work: table.append(make_row(work.row, work.value), **_arguments_of(work)),
    "delete": lambda table, work: table.delete(f"id = {work.row}", **_arguments_of(work)),
    "update": lambda table, work: table.update({"n": "n + 1"}, f"id = {work.row}", **_arguments_of(work)),
    "upsert": lambda table, work: table.upsert(make_row(work.row, work.value), on="id", **_arguments_of(work)),
    "compact": lambda table, work: table.compact(**_arguments_of(work)),
}
VERBS = tuple(_VERBS)


class _Arguments(TypedDict):
    intent: str
    properties: Mapping[str, str]


def _arguments_of(work: WorkItem) -> _Arguments:
    return {"intent": work.intent, "properties": {WORK_PROPERTY: work.intent}}


def run_work(job: Job, work: WorkItem) -> WorkResult:
    """Run an operation as an orchestrator does: repeat it under its intent after every error that allows that."""
    errors: list[str] = []
    while True:
        started = time.perf_counter()
        try:
            table = Table.open(job.uri, storage_options=job.options or None, durable=job.durable)
            committed = _VERBS[work.verb](table, work)
        except (CommitUndecided, RetryableConflict, StorageError) as error:
            errors.append(f"{type(error).__name__}: {error}")
            if len(errors) == ATTEMPTS_MAX:
                raise
            continue
        has_changed = committed.already_committed or committed.files or committed.rows_removed
        return WorkResult(
            intent=work.intent,
            version=committed.version if has_changed else None,
            attempts=committed.attempts,
            seconds=time.perf_counter() - started,
            already_committed=committed.already_committed,
            errors=tuple(errors),
        )


def main() -> None:
    fields = json.load(sys.stdin)
    job = Job(fields["uri"], fields["options"], fields["durable"], tuple(WorkItem(**each) for each in fields["work"]))
    # Everything that a process loads once is loaded before it reports to be ready, so that a kill hits its work.
    with suppress(StorageError):
        Table.open(job.uri, storage_options=job.options or None).count_rows(f"id = {UNUSED_KEY}")
    print("ready", flush=True)
    for work in job.work:
        print(json.dumps(asdict(run_work(job, work))), flush=True)


if __name__ == "__main__":
    main()
