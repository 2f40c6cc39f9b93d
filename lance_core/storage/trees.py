"""What takes more than one call of a store: a file copied into another store, a directory removed with all in it."""

import shutil

from lance_core.errors import NotFound, StorageError
from lance_core.storage.local import LocalStore
from lance_core.storage.store import Store


def copy(source: Store, path: str, target: Store, to: str) -> None:
    """Replaces what is there; durable as a `put` is. Between disks nothing is held in memory."""
    if not (isinstance(source, LocalStore) and isinstance(target, LocalStore)):
        target.put(to, source.read(path))
        return
    origin, copied = source.root / path, target.root / to
    target.make_directory(to.rpartition("/")[0])
    try:
        shutil.copyfile(origin, copied)
    except FileNotFoundError as error:
        raise NotFound(f"{origin} does not exist") from error
    except OSError as error:
        raise StorageError(f"could not copy {origin} to {copied}: {error.strerror or error}") from error
    target.settle([to])


def remove(store: Store, directory: str) -> None:
    """All objects below a directory."""
    for listed in store.walk(directory):
        store.delete(listed.path)
    prune(store, directory)


def prune(store: Store, directory: str) -> None:
    """Take away what is empty, where directories are something of their own."""
    if isinstance(store, LocalStore):
        store.prune(directory)
