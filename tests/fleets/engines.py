"""Engines of a fleet: this project, and processes of pylance releases, with the same steps.

engine.perform("append", uri=..., ids=[...])     the steps are the functions of `peer.py` and the methods of `Ours`
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from lance_core import Table
from tests.fleets.rows import rows
from tests.pylance_releases import ROOT

Answers = Mapping[str, Mapping[str, list[int] | str]]
"""Question -> "index" and "scan" -> the ids that were found, or an error."""


class StepFailed(Exception):
    """Error of an engine, in its own words."""


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    def perform(self, step: str, **arguments: Any) -> Any:
        """Perform a step and return its result. Raise `StepFailed` if the engine reports an error."""


class Release:
    """A release of pylance in a process of its own."""

    def __init__(self, release: str, python: str | Path) -> None:
        self.name = release
        self._process = subprocess.Popen(
            [python, "-m", "tests.fleets.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )

    @property
    def major(self) -> int:
        return int(self.name.partition(".")[0])

    def perform(self, step: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([step, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise StepFailed(f"the process of pylance {self.name} ended with code {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise StepFailed(reply["error"])
        return reply["result"]

    def __enter__(self) -> "Release":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


class Ours:
    """This project, in this process."""

    name = "ours"

    def perform(self, step: str, **arguments: Any) -> Any:
        return getattr(self, step)(**arguments)

    def create(self, uri: str, ids: Sequence[int], stable: bool, storage: str, per_file: int) -> None:
        Table.create(
            uri, rows(ids), stable_row_ids=stable, storage_version=storage, max_rows_per_file=per_file, durable=False
        )

    def append(self, uri: str, ids: Sequence[int]) -> None:
        self._open(uri).append(rows(ids))

    def delete(self, uri: str, where: str) -> None:
        self._open(uri).delete(where)

    def update(self, uri: str, values: Mapping[str, str], where: str) -> None:
        self._open(uri).update(values, where=where)

    def upsert(self, uri: str, ids: Sequence[int], revision: int) -> None:
        self._open(uri).upsert(rows(ids, revision), on="id")

    def compact(self, uri: str, target_rows: int, deferred: bool) -> None:
        self._open(uri).compact(target_rows=target_rows, remap="reuse" if deferred else None)

    def index(self, uri: str, column: str, kind: str) -> None:
        self._open(uri).create_index(column, kind, name=f"{column}_idx", replace=True)

    def optimize(self, uri: str, merge: bool) -> None:
        self._open(uri).optimize_indices(merge="all" if merge else "none")

    def answer_filters(self, uri: str, filters: Sequence[str]) -> Answers:
        table = self._open(uri)
        return {
            text: {
                way: sorted(table.to_table(["id"], text, use_indices=way == "index")["id"].to_pylist())
                for way in ("index", "scan")
            }
            for text in filters
        }

    def _open(self, uri: str) -> Table:
        return Table.open(uri, durable=False)
