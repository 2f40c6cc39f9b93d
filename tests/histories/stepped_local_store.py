"""Local store for crash points: every call can be stopped, and the contents of a directory and of a manifest database
can be saved and restored.

Files are never changed in place, only put and removed, so a copy can share them through hard links. The version hint is
the exception: it records how long ago it was written, and copies leave it out because no reader depends on it.
"""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from lance_core.storage.local import LocalStore
from lance_core.storage.store import ObjectInfo, Put
from lance_core.versions.version_hint import HINT
from tests.lance_core.storage.manifest_stores.fault_injection import FaultPlan


@dataclass(frozen=True, slots=True)
class SteppedLocalStore(LocalStore):
    steps: FaultPlan = field(default_factory=FaultPlan, compare=False)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.steps.run(f"read {path}", lambda: LocalStore.read(self, path, start, length))

    def head(self, path: str) -> ObjectInfo | None:
        return self.steps.run(f"head {path}", lambda: LocalStore.head(self, path))

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return self.steps.run(f"list {directory}", lambda: LocalStore.list(self, directory, start_after))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self.steps.run(f"walk {directory}", lambda: LocalStore.walk(self, directory))

    def put(self, path: str, data: bytes) -> None:
        self.steps.run(f"put {path}", lambda: LocalStore.put(self, path, data))

    def put_unsynced(self, path: str, data: bytes) -> None:
        self.steps.run(f"put {path}", lambda: LocalStore.put_unsynced(self, path, data))

    def create(self, path: str, data: bytes) -> Put:
        return self.create_after(path, data, ())

    def create_after(self, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        return self.steps.run_put(f"create {path}", lambda: LocalStore.create_after(self, path, data, unsynced))

    def delete(self, path: str) -> None:
        self.steps.run(f"delete {path}", lambda: LocalStore.delete(self, path))

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.steps.run("settle", lambda: LocalStore.ensure_durable(self, paths))

    def put_volatile(self, path: str, data: bytes) -> None:
        self.steps.run(f"note {path}", lambda: LocalStore.put_volatile(self, path, data))

    def remove_empty_directories(self, directory: str) -> None:
        self.steps.run(f"prune {directory}", lambda: LocalStore.remove_empty_directories(self, directory))

    def create_directory(self, directory: str) -> None:
        self.steps.run(f"make {directory}", lambda: LocalStore.create_directory(self, directory))


def copy_directory(directory: Path, target: Path) -> None:
    shutil.copytree(directory, target, copy_function=_hard_link, ignore=_select_hints)


def _hard_link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _select_hints(_directory: str, names: list[str]) -> set[str]:
    return {HINT.rpartition("/")[2]} & set(names)


def read_manifest_rows(database: Path) -> list[tuple[object, ...]]:
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT * FROM lance_manifests").fetchall()


def restore_manifest_rows(database: Path, rows: list[tuple[object, ...]]) -> None:
    if not database.exists():
        return
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM lance_manifests")
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO lance_manifests VALUES ({marks})", rows)
