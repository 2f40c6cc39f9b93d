"""Manifest migration: renames the manifests of an old table to names that sort newest first.

`12.manifest` becomes `1844…603.manifest`. The migration is not safe while other writers are active. It creates each
manifest under its new name before it deletes the old one, so a second call completes an interrupted migration; until
then, opening the table without a version number is refused.
"""

from lance_core.errors import Corrupt, StorageError
from lance_core.format import naming
from lance_core.format.naming import NamingScheme
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.store import Put, read_whole
from lance_core.versions.location import Location


def migrate_manifest_names(location: Location) -> int:
    """Rename all manifests and return the number of those renamed."""
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
        raise StorageError(f"{location.uri}: it is unknown whether {path} was written; repeat the migration")
    if read_whole(location.store, path, MANIFEST_BYTES) != data:
        raise Corrupt(
            "differs from the manifest of the same version under its old name: two writers, unaware of each other, "
            "wrote them. Move the wrong one away",
            path=f"{location.uri}/{path}",
            field="names",
        )
