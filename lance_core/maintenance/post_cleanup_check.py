"""After a cleanup: a look whether what stayed can still be read, at a few versions and a few of their files.

Nothing that goes is named by a version that stays; that is what the cleanup itself sees to. This look believes none of
it: it reads versions anew and asks the store for files by name. It costs a few requests whatever the size of the table,
so it finds a mistake that concerns many files, not one that concerns a single one; `fsck` looks at all.
"""

from collections.abc import Sequence, Set
from typing import TypeVar

from lance_core.errors import Corrupt, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.store import read_whole
from lance_core.versions.file_inventory import file_exists, references_of
from lance_core.versions.location import Location

VERSIONS_CHECKED = 3
"""The newest, and others by chance."""
FILES_CHECKED = 20
"""Of each of them."""
_T = TypeVar("_T")
_READ = (naming.DATA, naming.DELETIONS, naming.INDICES)
"""Without one of these a version cannot be read."""


def verify_readable(
    location: Location, versions: Sequence[tuple[Version, str]], removed: Set[str], runtime: Runtime
) -> None:
    """`versions` that stayed, the newest last, with their manifests' paths; `removed` is what the cleanup took."""
    for version, path in _some(versions, VERSIONS_CHECKED, runtime):
        try:
            manifest = Manifest.decode(read_whole(location.store, path, MANIFEST_BYTES), path=path)
        except NotFound:
            continue  # another cleanup was at it
        keys = sorted(key for key in references_of(manifest).required if key.startswith(_READ))
        missing = [key for key in _some(keys, FILES_CHECKED, runtime) if not file_exists(location.store, key)]
        if missing and location.store.head(path) is not None:
            taken = [key for key in missing if key in removed]
            blame = "this cleanup removed it" if taken else "this cleanup did not remove it"
            raise Corrupt(
                f"version {version} of {location.uri} stays and names it, and it is not there ({blame}). Stop cleaning "
                "this table up, look at it with `python -m lance_core fsck`, and restore what is missing from a "
                "backup, or a version that is whole",
                path=(taken or missing)[0],
                field="fragments",
            )


def _some(of: Sequence[_T], count: int, runtime: Runtime) -> Sequence[_T]:
    """The last one always."""
    if len(of) <= count:
        return of
    return [*(of[int(runtime.random() * (len(of) - 1))] for _ in range(count - 1)), of[-1]]
