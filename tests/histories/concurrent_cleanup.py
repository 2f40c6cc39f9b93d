"""A real table on this machine's disk: threads append, others name what they read, and a cleaner goes round and round
that keeps one version and is forced.

Cleanup leaves versions of less than a minute alone, and commits rely on it (`lance_core/commit/fencing.py`). Here a
minute is a third of a second for all of them, so that much is removed in little time, and a thread that waits for its
turn is one that stood still.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

from lance_core import AlreadyExists, CommitUndecided, ConflictError, LanceError, NotFound, StorageError, Table
from lance_core.commit import fencing
from lance_core.maintenance import cleanup
from lance_core.versions import version_hint

MINUTE = timedelta(milliseconds=300)


@dataclass
class Hammered:
    acknowledged: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    read: int = 0
    """Versions that were named, and then read."""
    removed: int = 0
    cleanups: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def shorter_minutes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "YOUNG_VERSION_AGE", MINUTE)
        patch.setattr(version_hint, "HINT_DELAY_MAX", MINUTE / 2)
        patch.setattr(fencing, "STALL_NS", MINUTE // timedelta(microseconds=1) * 1000 // 3)
        yield


def beside_a_cleaner(place: str, *, seconds: float, writers: int = 4) -> Hammered:
    met = Hammered()
    Table.create(place, pa.schema([("id", pa.int64())]), durable=False)
    end = time.perf_counter() + seconds

    def appending(writer: int) -> Callable[[int], None]:
        return lambda turn: _append(place, met, turn * writers + writer)

    works = [appending(writer) for writer in range(writers)]
    works += [lambda turn: _clean(place, met), lambda turn: _name_and_read(place, met, turn)]

    def again_and_again(work: Callable[[int], None]) -> None:
        turn = 0
        while time.perf_counter() < end and not met.wrong:
            try:
                work(turn)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is found
                met.wrong.append(f"{type(error).__name__}: {error}")
            turn += 1

    with shorter_minutes():
        threads = [threading.Thread(target=again_and_again, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _judged(place, met)


def _append(place: str, met: Hammered, value: int) -> None:
    try:
        Table.open(place, durable=False).append(pa.table({"id": [value]}))
    except CommitUndecided:
        met.unknown.append(value)
    except (ConflictError, NotFound):
        met.refused.append(value)
    else:
        met.acknowledged.append(value)


def _clean(place: str, met: Hammered) -> None:
    hour = timedelta(hours=1)
    table = Table.open(place, durable=False)
    report = table.cleanup(older_than=timedelta(0), keep=1, orphan_grace=hour, force=True)
    met.removed += len(report.versions)
    met.cleanups += 1


def _name_and_read(place: str, met: Hammered, turn: int) -> None:
    """What has a name is read to its end, however long that takes."""
    name = f"t{turn}"
    try:
        table = Table.open(place, durable=False)
        table.tags.create(name, table.version_numbers()[0])
    except (AlreadyExists, NotFound, StorageError):
        return
    named = Table.open(place, tag=name)
    rows = named.to_table().num_rows
    if rows != named.count_rows():
        met.wrong.append(f"version {named.version} has {rows} rows, and says {named.count_rows()}")
    table.tags.delete(name)
    met.read += 1


def _judged(place: str, met: Hammered) -> Hammered:
    try:
        rows = Counter(Table.open(place).to_table()["id"].to_pylist())
        by_lance = lance.dataset(place).count_rows()
    except LanceError as error:
        met.wrong.append(f"the table cannot be read: {error}")
        return met
    if by_lance != rows.total():
        met.wrong.append(f"pylance reads {by_lance} rows, and we {rows.total()}")
    if lost := set(met.acknowledged) - set(rows):
        met.wrong.append(f"{len(lost)} acknowledged rows are lost, {min(lost)} for one")
    if twice := {value for value, times in rows.items() if times > 1}:
        met.wrong.append(f"{len(twice)} rows are there twice, {min(twice)} for one")
    if there := set(met.refused) & set(rows):
        met.wrong.append(f"{len(there)} rows were refused and are there, {min(there)} for one")
    return met
