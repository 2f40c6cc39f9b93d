"""Giving the manifests of an old table the names that sort, newest first: `12.manifest` becomes `1844…603.manifest`.

Not safe beside writers. A table half way is refused when it is opened without a number, and being done again completes
it: each manifest is there under its new name before the old one goes.
"""

from lance_core.errors import Corrupt, StorageError
from lance_core.format import naming
from lance_core.format.naming import NamingScheme
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import Put, read_whole
from lance_core.versions.location import Location


def migrate_manifest_names(location: Location) -> int:
    """How many were renamed."""
    store = location.store
    names = [listed.path for listed in store.list(naming.VERSIONS)]
    renamed = 0
    for path in names:
        parsed = naming.parse_manifest_name(path.rpartition("/")[2])
        if parsed is None or parsed[1] is NamingScheme.V2:
            continue
        data, target = read_whole(store, path, MANIFEST_BYTES), naming.manifest_path(parsed[0])
        if store.create(target, data) is not Put.CREATED:
            _check_same(location, target, data)
        store.delete(path)
        renamed += 1
    return renamed


def _check_same(location: Location, path: str, data: bytes) -> None:
    found = location.store.head(path)
    if found is None:
        raise StorageError(f"{location.uri}: whether {path} was written is not known; do it again")
    if read_whole(location.store, path, MANIFEST_BYTES) != data:
        raise Corrupt(
            "differs from the manifest of the same version under its old name; one of them is a writer's that did not "
            "know the other. Move aside the one that is wrong",
            path=f"{location.uri}/{path}",
            field="names",
        )
