"""Writer process of a mixed fleet: one engine that changes its own rows of a shared table until it is killed.

It announces each change before it begins and acknowledges it afterwards, in one message each. A writer of this library
repeats the change that a killed predecessor had announced, under the same intent. pylance has no intents, so that a
change of a killed process of pylance stays undecided, and its row is not changed again.
"""

import importlib
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from lance_core import CommitUndecided, RetryableConflict, StorageError, Table

warnings.filterwarnings("ignore", message="lance is not fork-safe")  # the parent of the forks uses no thread of it
_VERB_WEIGHTS = {"append": 60, "update": 15, "upsert": 15, "delete": 10}
_ERRORS_MAX = 60
_PAUSES = {"ours": 0.0, "pylance": 0.1}
"""Seconds between two changes of a writer. pylance retries a conflicting commit at once, while this library waits;
without a pause, pylance makes 30 of 31 changes."""
_MAINTENANCE_PAUSE = 0.1
_RETENTION = timedelta(seconds=90)
"""Age of the versions that a cleanup removes; a commit takes less."""
_RETAINED = 10


@dataclass(frozen=True, slots=True)
class RowChange:
    """Change of one row to a value; `None` deletes it. A maintenance verb changes no row."""

    number: int
    verb: str
    row: int = 0
    value: int | None = None

    @property
    def intent(self) -> str:
        return f"{self.row} {self.number} {self.verb}"


@dataclass(frozen=True, slots=True)
class WriterJob:
    engine: str
    """`ours` or `pylance`; with ` maintenance` for a process that compacts and cleans up."""
    uri: str
    options: Mapping[str, str]
    writer: int
    seed: int
    first_number: int = 0
    pending: RowChange | None = None
    rows: Mapping[int, int] = field(default_factory=dict)
    """Rows that the writer may change, with their values."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message of a writer: `begin` or `done` of a change, or `failed` with its error."""

    kind: str
    change: RowChange
    error: str = ""


def run_writer(job: WriterJob, output: Connection, stop: Connection) -> None:
    """Change rows until a message arrives at `stop`. A change that a killed process had announced comes first."""
    generator = random.Random(f"{job.seed} {job.writer} {job.first_number}")
    rows = dict(job.rows)
    number, pending = job.first_number, job.pending
    pause = _PAUSES.get(job.engine, _MAINTENANCE_PAUSE)
    while pending or not stop.poll(pause):
        change = pending or _choose_change(job, number, rows, generator)
        pending = None
        number = change.number + 1
        output.send(Message("begin", change))
        error = _run_change(job, change)
        output.send(Message("failed" if error else "done", change, error))
        if error or change.value is None:
            rows.pop(change.row, None)
        elif change.verb in _VERB_WEIGHTS:
            rows[change.row] = change.value


def make_row(row: int, value: int) -> pa.Table:
    return pa.table({"id": pa.array([row], pa.int64()), "n": pa.array([value], pa.int64())})


def _choose_change(job: WriterJob, number: int, rows: Mapping[int, int], generator: random.Random) -> RowChange:
    if job.engine.endswith("maintenance"):
        return RowChange(number, generator.choice(("compact", "compact", "clean up")))
    (verb,) = generator.choices(list(_VERB_WEIGHTS), list(_VERB_WEIGHTS.values()))
    if not rows or verb == "append":
        return RowChange(number, "append", job.writer * 1_000_000 + number, number)
    row = generator.choice(sorted(rows))
    return RowChange(number, verb, row, None if verb == "delete" else number)


def _run_change(job: WriterJob, change: RowChange) -> str:
    """Run the change and return its error; the empty text if it is acknowledged."""
    verbs = _OUR_VERBS if job.engine.startswith("ours") else _PYLANCE_VERBS
    if verbs is _PYLANCE_VERBS:
        try:
            verbs[change.verb](job, change)
        except (OSError, RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""
    errors: list[str] = []
    while True:
        try:
            verbs[change.verb](job, change)
        except (CommitUndecided, RetryableConflict, StorageError) as error:
            errors.append(f"{type(error).__name__}: {error}")
            if len(errors) == _ERRORS_MAX or change.verb not in _VERB_WEIGHTS:
                return errors[-1]
        else:
            return ""


def _open_ours(job: WriterJob) -> Table:
    return Table.open(job.uri, storage_options=dict(job.options) or None, durable=False)


def _open_pylance(job: WriterJob) -> Any:
    lance = importlib.import_module("lance")
    return lance.dataset(job.uri, storage_options=dict(job.options) or None)


def _upsert_pylance(job: WriterJob, change: RowChange) -> object:
    merge = _open_pylance(job).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return merge.execute(make_row(change.row, change.value or 0))


def _append_pylance(job: WriterJob, change: RowChange) -> object:
    lance = importlib.import_module("lance")
    rows = make_row(change.row, change.value or 0)
    return lance.write_dataset(rows, job.uri, mode="append", storage_options=dict(job.options) or None)


_OUR_VERBS: Mapping[str, Callable[[WriterJob, RowChange], object]] = {
    "append": lambda job, it: _open_ours(job).append(make_row(it.row, it.value or 0), intent=it.intent),
    "update": lambda job, it: _open_ours(job).update({"n": str(it.value)}, f"id = {it.row}", intent=it.intent),
    "upsert": lambda job, it: _open_ours(job).upsert(make_row(it.row, it.value or 0), on="id", intent=it.intent),
    "delete": lambda job, it: _open_ours(job).delete(f"id = {it.row}", intent=it.intent),
    "compact": lambda job, it: _open_ours(job).compact(),
    "clean up": lambda job, it: _open_ours(job).cleanup(older_than=_RETENTION, keep=_RETAINED),
}
_PYLANCE_VERBS: Mapping[str, Callable[[WriterJob, RowChange], object]] = {
    "append": _append_pylance,
    "update": lambda job, it: _open_pylance(job).update({"n": str(it.value)}, f"id = {it.row}"),
    "upsert": _upsert_pylance,
    "delete": lambda job, it: _open_pylance(job).delete(f"id = {it.row}"),
    "compact": lambda job, it: _open_pylance(job).optimize.compact_files(),
    "clean up": lambda job, it: _open_pylance(job).cleanup_old_versions(older_than=_RETENTION),
}
