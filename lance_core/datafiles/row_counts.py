"""How many rows a fragment has, where its writer did not say, or not rightly: read from its files.

Releases before 0.8.x did not sign their manifests. The older of them counted neither rows nor deleted rows, and the
last ones, going on with such a table, took the rows that were left for all rows, and so counted deletions twice. So of
an unsigned manifest every count is read anew, once, when it is opened. Whatever reads the version, and whatever is
committed after it, has them then.
"""

from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.fragment_reader import count_file_rows, read_deletions
from lance_core.errors import Corrupt
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.storage.store import Store


def with_counts(store: Store, codec: DataCodec, manifest: Manifest) -> Manifest:
    """The manifest itself, where it can be trusted."""
    if manifest.has_writer:
        return manifest
    return manifest.with_fragments(
        fragment.with_counts(_physical_rows(store, codec, fragment, manifest.path), _deleted_rows(store, fragment))
        for fragment in manifest.fragments
    )


def _physical_rows(store: Store, codec: DataCodec, fragment: Fragment, path: str) -> int:
    if not fragment.files:
        raise Corrupt(f"fragment {fragment.id} has no files to count its rows in", path=path, field="fragments")
    return count_file_rows(store, codec, fragment.files[0])


def _deleted_rows(store: Store, fragment: Fragment) -> int:
    vector = read_deletions(store, fragment)
    return len(vector) if vector else 0
