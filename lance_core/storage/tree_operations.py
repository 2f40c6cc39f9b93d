"""Tree operations: copying a file between stores and deleting a directory, which take several calls of a store."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from lance_core.errors import NotFound, StorageError
from lance_core.storage.local import LocalStore
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.object_upload import upload_file
from lance_core.storage.store import ObjectInfo, Store


def copy_file(source: Store, path: str, target: Store, to: str) -> None:
    """Copy a file into a store, replacing an existing one; it is as durable as after a `put`.

    Copies between local disks and object stores are streamed, so a large file is never held in memory.
    """
    source, target = _bare(source), _bare(target)
    match source, target:
        case LocalStore(), LocalStore():
            _copy_on_disk(source, path, target, to)
        case ObjectStore(), ObjectStore():
            if not source.copy_within(path, target, to):
                with tempfile.TemporaryDirectory(prefix="lance-copy-") as directory:
                    source.download(path, local_copy := Path(directory, "file"))
                    upload_file(target, local_copy, to)
        case ObjectStore(), LocalStore():
            target.create_directory(to.rpartition("/")[0])
            source.download(path, target.resolve_path(to))
            target.ensure_durable([to])
        case LocalStore(), ObjectStore():
            if not source.resolve_path(path).is_file():
                raise NotFound(f"{source.root / path} does not exist")
            upload_file(target, source.resolve_path(path), to)
        case _:
            target.put(to, source.read(path))


def _copy_on_disk(source: LocalStore, path: str, target: LocalStore, to: str) -> None:
    origin = source.resolve_path(path)
    target.create_directory(to.rpartition("/")[0])
    copied = target.resolve_path(to)
    try:
        shutil.copyfile(origin, copied)
    except FileNotFoundError as error:
        raise NotFound(f"{source.root / path} does not exist") from error
    except OSError as error:
        raise StorageError(f"could not copy {origin} to {copied}: {error.strerror or error}") from error
    target.ensure_durable([to])


def replace_file(source: Store, path: str, target: Store, to: str, *, check: Callable[[Store, str], object]) -> None:
    """Replace a file by a copy, in one step, once `check` has accepted the copy.

    A local copy is checked under a temporary name when it is durable. An object store replaces an object when all of it
    has arrived, so the source is checked before and the object afterwards."""
    bare = _bare(target)
    if not isinstance(bare, LocalStore):
        check(source, path)
        copy_file(source, path, target, to)
        check(target, to)
        return
    temporary = f"{to.rpartition('/')[0]}/.tmp-{uuid.uuid4().hex}"
    try:
        copy_file(source, path, bare, temporary)
        check(bare, temporary)
        os.replace(bare.resolve_path(temporary), bare.resolve_path(to))
    except OSError as error:
        raise StorageError(f"could not replace {bare.root / to}: {error.strerror or error}") from error
    finally:
        bare.delete(temporary)
    bare.ensure_durable([to])


def remove_tree(store: Store, directory: str) -> None:
    """Delete all objects below a directory, then the empty directories."""
    for info in store.walk(directory):
        store.delete(info.path)
    remove_empty_directories(store, directory)


def remove_empty_directories(store: Store, directory: str) -> None:
    """Remove a directory and the directories in it that are empty. Object stores have none, so this does nothing."""
    if isinstance(bare := _bare(store), LocalStore):
        bare.remove_empty_directories(directory)


def list_temporary_files(store: Store, directories: Sequence[str]) -> Sequence[ObjectInfo]:
    """Return the leftovers of interrupted writes directly in the root, and below these directories. Only local stores
    have any."""
    bare = _bare(store)
    return bare.temporary_files(directories) if isinstance(bare, LocalStore) else ()


def _bare(store: Store) -> Store:
    """Return the store without the two-phase manifest protocol, which no file here needs."""
    return store.table_store if isinstance(store, TwoPhaseStore) else store
