"""Compatibility of each release of pylance with tables of this project: which of them it reads, writes and filters by
our indices. `docs/compatibility.md` has the same table."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lance_core import LanceError, Table
from tests.fleets.engines import Ours, Release, StepFailed
from tests.fleets.histories import (
    OURS,
    ROWS,
    ROWS_PER_FILE,
    STORAGE_VERSIONS,
    append,
    compact,
    delete,
    update_other,
    upsert,
)
from tests.fleets.rows import FILTERS, INDEXED

EVERY = ", ".join(STORAGE_VERSIONS)


@dataclass(frozen=True, slots=True)
class Support:
    """Support of a release for our tables."""

    reads: str
    """Storage versions."""
    writes: str
    """Storage versions in which appends, deletions, updates, upserts and compactions leave a sound table."""
    wrong: str = "none"
    """Index types that it misreads in a table that no other engine has changed."""

    def row(self, release: str) -> str:
        """Return the row of the table in the documentation."""
        return f"| {release} | {self.reads} | {self.writes} | {self.wrong} |"


_ZONES = "ZONEMAP and BLOOMFILTER where row ids are stable"

SUPPORT = {
    "0.39.0": Support("2.0, 2.1", "2.0, 2.1", f"BTREE and BITMAP; {_ZONES}"),
    "2.0.1": Support("2.0, 2.1", "2.0, 2.1", _ZONES),
    "4.0.0": Support(EVERY, EVERY, _ZONES),
    "8.0.0": Support(EVERY, EVERY, _ZONES),
    "10.0.0": Support(EVERY, EVERY),
    "12.0.0": Support(EVERY, EVERY),
    "13.0.0": Support(EVERY, EVERY),
    "14.0.2": Support(EVERY, EVERY),
}


def support_of(release: Release) -> Support:
    """Return the support of a release, by trying each storage version."""
    reads, writes, wrong = [], [], set[tuple[str, str]]()
    for storage in STORAGE_VERSIONS:
        attempts = [_Attempt(release, storage, stable) for stable in (False, True)]
        try:
            if not all(attempt.reads() for attempt in attempts):
                continue
            reads.append(storage)
            wrong |= {(attempt.numbers, kind) for attempt in attempts for kind in attempt.misread_indices()}
            if all(attempt.writes() for attempt in attempts):
                writes.append(storage)
        finally:
            for attempt in attempts:
                attempt.remove()
    return Support(", ".join(reads), ", ".join(writes), _describe(wrong))


def _describe(wrong: set[tuple[str, str]]) -> str:
    by_numbers = {
        numbers: [kind for kind in INDEXED.values() if (numbers, kind) in wrong] for numbers in ("", "stable")
    }
    parts = [" and ".join(by_numbers[""])]
    parts.append(" and ".join(kind for kind in by_numbers["stable"] if kind not in by_numbers[""]))
    texts = [parts[0], f"{parts[1]} where row ids are stable" if parts[1] else ""]
    return "; ".join(filter(None, texts)) or "none"


class _Attempt:
    """A table of ours, and a release that uses it."""

    def __init__(self, release: Release, storage: str, stable: bool) -> None:
        self.numbers = "stable" if stable else ""
        self._release, self._ours = release, Ours()
        self._root = tempfile.mkdtemp(prefix="fleet-")
        self._uri = str(Path(self._root, "t"))
        self._ours.create(self._uri, range(ROWS), stable, storage, ROWS_PER_FILE)

    def remove(self) -> None:
        shutil.rmtree(self._root)

    def reads(self) -> bool:
        return all(self._agrees(column, "scan") for column in INDEXED)

    def misread_indices(self) -> Iterator[str]:
        for column, kind in INDEXED.items():
            self._ours.index(self._uri, column, kind)
            if not self._agrees(column, "index"):
                yield kind
            Table.open(self._uri, durable=False).drop_index(f"{column}_idx")

    def writes(self) -> bool:
        """Return whether the rows are right and the table is sound after each kind of change. The same changes are made
        by this project to another table."""
        twin = str(Path(self._root, "twin"))
        shutil.copytree(self._uri, twin)
        for step in (append(OURS), delete(OURS), update_other(OURS), upsert(OURS), compact(OURS)):
            self._ours.perform(step.verb, uri=twin, **step.arguments)
            try:
                self._release.perform(step.verb, uri=self._uri, **step.arguments)
                table = Table.open(self._uri, durable=False)
                if table.to_table().sort_by("id") != Table.open(twin).to_table().sort_by("id"):
                    return False
                if not table.fsck("head").is_sound:
                    return False
            except (StepFailed, LanceError):
                return False
        return True

    def _agrees(self, column: str, way: str) -> bool:
        expected = self._ours.answer_filters(self._uri, FILTERS[column])
        try:
            found = self._release.perform("answer_filters", uri=self._uri, filters=FILTERS[column])
        except StepFailed:
            return False
        return all(found[text][way] == expected[text]["scan"] for text in FILTERS[column])
