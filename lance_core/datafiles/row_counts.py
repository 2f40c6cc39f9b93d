"""Row counts: reads the row counts of fragments from their files if the writer recorded none, or wrong ones.

Releases before 0.8.x did not sign their manifests. The older ones counted neither rows nor deleted rows. The last of
them, when they continued such a table, recorded the remaining rows as all rows, and so counted deletions twice. Every
count of an unsigned manifest is therefore read from the files, once, when the version is opened. All readers of the
version use these counts, and later commits record them.
"""

from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.fragment_reader import count_file_rows, read_deletions
from lance_core.errors import Corrupt
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.storage.store import Store


def with_counts(store: Store, codec: DataCodec, manifest: Manifest) -> Manifest:
    """Return the manifest with correct counts; unchanged if it is signed."""
    if manifest.has_writer:
        return manifest
    return manifest.with_fragments(
        fragment.with_counts(_physical_rows(store, codec, fragment, manifest.path), _deleted_rows(store, fragment))
        for fragment in manifest.fragments
    )


def _physical_rows(store: Store, codec: DataCodec, fragment: Fragment, path: str) -> int:
    if not fragment.files:
        raise Corrupt(
            f"fragment {fragment.id} has no files in which its rows could be counted", path=path, field="fragments"
        )
    return count_file_rows(store, codec, fragment.files[0])


def _deleted_rows(store: Store, fragment: Fragment) -> int:
    vector = read_deletions(store, fragment)
    return len(vector) if vector else 0
