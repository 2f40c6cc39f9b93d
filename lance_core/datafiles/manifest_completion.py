"""Manifest completion: reads what a manifest leaves to its files, once, when a version is opened.

All readers of the version use the completed manifest, and later commits store all of it.

Row counts: releases before 0.8.x did not sign their manifests. The older ones counted neither rows nor deleted rows.
The last of them, when they continued such a table, recorded the remaining rows as all rows, and so counted deletions
twice. Every count of an unsigned manifest is therefore read from the files.

Row lineage: the format lets a fragment store row ids and row versions in an external file, but no release of the
reference implementation writes or reads that. They move into the manifest.
"""

from collections.abc import Collection

from lance_core.datafiles.codec import DataCodec
from lance_core.datafiles.fragment_reader import count_file_rows, read_deletions
from lance_core.errors import Corrupt, Unsupported
from lance_core.format import naming
from lance_core.format.external_lineage import LineageFile, inline_sequences, lineage_files
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.manifest_file import LINEAGE_IN_COLUMNS
from lance_core.limits import LINEAGE_BYTES, LINEAGE_BYTES_TOGETHER
from lance_core.storage.store import Store

OFFSET_MAX = 2**48
"""Largest offset of lineage in an external file."""


def with_counts(store: Store, codec: DataCodec, manifest: Manifest) -> Manifest:
    """Return a manifest that is not signed with the counts that its files have."""
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


def with_lineage(store: Store, manifest: Manifest, fields: Collection[str]) -> Manifest:
    """Return a manifest with all lineage inline; `fields` are those of external lineage that its fragments have."""
    if not set(fields).isdisjoint(LINEAGE_IN_COLUMNS):
        raise Unsupported(
            f"{manifest.path} stores row ids or row versions as hidden columns of data files; this release cannot "
            "read them"
        )
    sizes = [file.size for fragment in manifest.fragments for file in lineage_files(fragment)]
    LINEAGE_BYTES.check(max(sizes, default=0), path=f"a fragment of {manifest.path}")
    # Many fragments may reference one file, and each gets a copy.
    LINEAGE_BYTES_TOGETHER.check(sum(sizes), path=manifest.path)
    return manifest.with_fragments(_inline_lineage(store, fragment, manifest.path) for fragment in manifest.fragments)


def _inline_lineage(store: Store, fragment: Fragment, path: str) -> Fragment:
    files = lineage_files(fragment)
    return (
        inline_sequences(fragment, {file.field: _read_file(store, file, fragment, path) for file in files})
        if files
        else fragment
    )


def _read_file(store: Store, file: LineageFile, fragment: Fragment, path: str) -> bytes:
    field = f"fragments[id={fragment.id}].{file.field}"
    if not naming.is_confined(file.path):
        raise Corrupt(f"the file {file.path!r} is outside the table", path=path, field=field)
    if file.offset > OFFSET_MAX:
        raise Corrupt(f"{file.path} cannot have a byte {file.offset}, the recorded position", path=path, field=field)
    data = store.read(file.path, file.offset, file.size)
    if len(data) != file.size:
        raise Corrupt(f"{file.path} has only {len(data)} of the {file.size} recorded bytes", path=path, field=field)
    return data
