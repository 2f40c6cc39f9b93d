"""Planted defects of a writer to local files, which the fault harnesses must detect.

Each function changes this process permanently, so that only a process of its own calls it.
"""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lance_core.storage.local import LocalStore
from lance_core.storage.store import ObjectInfo, Put

_sync = os.fsync


def _skip_directory_syncs() -> None:
    def sync(fd: Any) -> None:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            _sync(fd)

    os.fsync = sync


def _ignore_sync_errors() -> None:
    def sync(fd: Any) -> None:
        with suppress(OSError):
            _sync(fd)

    os.fsync = sync


def _put_manifest_before_data_files() -> None:
    """Data files get their names and are synced after the manifest that references them."""
    create, ensure_durable, head = LocalStore.create_after, LocalStore.ensure_durable, LocalStore.head
    late: list[Path] = []

    def hide(store: LocalStore, paths: Sequence[str]) -> list[str]:
        for path in map(store.resolve_path, paths):
            if path.suffix == ".lance":
                path.rename(f"{path}.late")
                late.append(path)
        return [path for path in paths if not path.endswith(".lance")]

    def hide_and_sync(store: LocalStore, paths: Sequence[str]) -> None:
        ensure_durable(store, hide(store, paths))

    def create_and_show(store: LocalStore, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        put = create(store, path, data, hide(store, unsynced))
        if path.endswith(".manifest"):
            for file in late:
                Path(f"{file}.late").rename(file)
                ensure_durable(store, [str(file.relative_to(store.root))])
            late.clear()
        return put

    def head_of_hidden(store: LocalStore, path: str) -> ObjectInfo | None:
        return head(store, f"{path}.late" if store.resolve_path(path) in late else path)

    LocalStore.ensure_durable = hide_and_sync  # type: ignore[assignment, method-assign]
    LocalStore.create_after = create_and_show  # type: ignore[assignment, method-assign]
    LocalStore.head = head_of_hidden  # type: ignore[assignment, method-assign]


def _put_manifest_before_syncs() -> None:
    """The manifest gets its name before the files that it references are durable."""
    create = LocalStore.create_after

    def create_and_sync(store: LocalStore, path: str, data: bytes, unsynced: Sequence[str]) -> Put:
        put = create(store, path, data, ())
        store.ensure_durable(unsynced)
        return put

    LocalStore.create_after = create_and_sync  # type: ignore[assignment, method-assign]


SKIPPED_DIRECTORY_SYNC = "skips the sync of directories"
IGNORED_SYNC_ERROR = "ignores errors of syncs"
MANIFEST_BEFORE_DATA = "puts the manifest before the data files"
MANIFEST_BEFORE_SYNCS = "puts the manifest before it syncs the files of the commit"
DEFECTS: Mapping[str, Callable[[], None]] = {
    SKIPPED_DIRECTORY_SYNC: _skip_directory_syncs,
    IGNORED_SYNC_ERROR: _ignore_sync_errors,
    MANIFEST_BEFORE_DATA: _put_manifest_before_data_files,
    MANIFEST_BEFORE_SYNCS: _put_manifest_before_syncs,
}
