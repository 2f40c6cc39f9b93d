"""What takes more than one call of a store: a file copied into another store, a directory removed with all in it."""

import shutil
import tempfile
from pathlib import Path

from lance_core.errors import NotFound, StorageError
from lance_core.storage.local import LocalStore
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.object_store import ObjectStore
from lance_core.storage.store import Store


def copy(source: Store, path: str, target: Store, to: str) -> None:
    """Replaces what is there; durable as a `put` is. Where files can be large, nothing is held in memory."""
    source, target = _bare(source), _bare(target)
    match source, target:
        case LocalStore(), LocalStore():
            _copy_on_disk(source, path, target, to)
        case ObjectStore(), ObjectStore():
            if not source.copy_within(path, target, to):
                with tempfile.TemporaryDirectory(prefix="lance-copy-") as directory:
                    source.download(path, between := Path(directory, "file"))
                    target.upload(between, to)
        case ObjectStore(), LocalStore():
            target.make_directory(to.rpartition("/")[0])
            source.download(path, target.inside(to))
            target.ensure_durable([to])
        case LocalStore(), ObjectStore():
            if not source.inside(path).is_file():
                raise NotFound(f"{source.root / path} does not exist")
            target.upload(source.inside(path), to)
        case _:
            target.put(to, source.read(path))


def _copy_on_disk(source: LocalStore, path: str, target: LocalStore, to: str) -> None:
    origin = source.inside(path)
    target.make_directory(to.rpartition("/")[0])
    copied = target.inside(to)
    try:
        shutil.copyfile(origin, copied)
    except FileNotFoundError as error:
        raise NotFound(f"{source.root / path} does not exist") from error
    except OSError as error:
        raise StorageError(f"could not copy {origin} to {copied}: {error.strerror or error}") from error
    target.ensure_durable([to])


def remove(store: Store, directory: str) -> None:
    """All objects below a directory."""
    for listed in store.walk(directory):
        store.delete(listed.path)
    prune(store, directory)


def prune(store: Store, directory: str) -> None:
    """Take away what is empty, where directories are something of their own."""
    if isinstance(bare := _bare(store), LocalStore):
        bare.prune(directory)


def _bare(store: Store) -> Store:
    """Without the protocol around versions, of which there are none here."""
    return store.own if isinstance(store, TwoPhaseStore) else store
