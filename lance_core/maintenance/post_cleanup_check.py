"""Post-cleanup check: verifies after a cleanup that a sample of the retained versions and of their files can still be
read.

The cleanup itself makes sure that no retained version references a removed file. This check does not rely on that: it
reads the manifests again and requests files by name. It needs a few requests, however large the table is. So it detects
a mistake that affects many files, but may miss one that affects a single file; `fsck` checks all files.
"""

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import TypeVar

from lance_core.errors import Corrupt, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests
from lance_core.storage.listing_view import view_of_small_store
from lance_core.storage.store import read_whole
from lance_core.versions.file_inventory import file_exists, references_of
from lance_core.versions.location import Location

VERSIONS_CHECKED = 3
"""The newest version, and others at random."""
FILES_CHECKED = 8
"""Files of each of these versions."""
_T = TypeVar("_T")
_REQUIRED_DIRECTORIES = (naming.DATA, naming.DELETIONS, naming.INDICES)
"""Directories whose files a reader needs."""


def verify_readable(
    location: Location, versions: Sequence[tuple[Version, str]], removed: Set[str], runtime: Runtime
) -> None:
    """Raise `Corrupt` if a sampled file of a sampled version is missing.

    `versions` are the retained ones with the paths of their manifests, the newest last; `removed` has the keys that
    the cleanup removed.
    """
    store, sample = location.store, _sample(versions, VERSIONS_CHECKED, runtime)
    sampled_keys = list(map_requests(store, lambda version: _sample_keys(location, version[1], runtime), sample))
    distinct = sorted(set().union(*sampled_keys))
    exist = dict(zip(distinct, _check_existence(location, distinct), strict=True))
    for (version, path), keys in zip(sample, sampled_keys, strict=True):
        missing = [key for key in keys if not exist[key]]
        if missing and location.store.head(path) is not None:
            missing_and_removed = [key for key in missing if key in removed]
            blame = "this cleanup removed it" if missing_and_removed else "this cleanup did not remove it"
            raise Corrupt(
                f"is missing, and the retained version {version} of {location.uri} references it ({blame}). Stop "
                "cleaning up this table, check it with `python -m lance_core fsck`, and restore the missing files from "
                "a backup, or an intact version",
                path=(missing_and_removed or missing)[0],
                field="fragments",
            )


def _check_existence(location: Location, keys: Sequence[str]) -> Iterator[bool]:
    """Yield whether each key has a file."""
    view = view_of_small_store(location.own_store) if len(keys) > 1 else None
    if view is None:
        return map_requests(location.store, partial(file_exists, location.store), keys)
    return (view.has(key) or bool(view.list(key)) for key in keys)


def _sample_keys(location: Location, path: str, runtime: Runtime) -> Sequence[str]:
    """Return a sample of the files of a version; none if another cleanup removed its manifest."""
    try:
        manifest = Manifest.decode(read_whole(location.store, path, MANIFEST_BYTES), path=path)
    except NotFound:
        return ()
    keys = sorted(key for key in references_of(manifest).required if key.startswith(_REQUIRED_DIRECTORIES))
    return _sample(keys, FILES_CHECKED, runtime)


def _sample(items: Sequence[_T], count: int, runtime: Runtime) -> Sequence[_T]:
    """Return `count` random items, always including the last one."""
    if len(items) <= count:
        return items
    return [*(items[int(runtime.random() * (len(items) - 1))] for _ in range(count - 1)), items[-1]]
