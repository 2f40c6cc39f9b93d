"""Row lineage: moves row ids and row versions that a fragment stores in an external file into the manifest.

The format defines external lineage, but no release of the reference implementation writes or reads it. This package
resolves it once, when a version is opened; later commits store all of it in the manifest.
"""

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import framing, naming
from lance_core.format.external_lineage import (
    IN_COLUMNS,
    LineageFile,
    external_lineage_fields,
    inline_sequences,
    lineage_files,
)
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.limits import LINEAGE_BYTES, LINEAGE_BYTES_TOGETHER
from lance_core.storage.store import Store

OFFSET_MAX = 2**48


def with_lineage(store: Store, manifest: Manifest) -> Manifest:
    """Return the manifest with all lineage inline; unchanged if it has no external lineage."""
    if not manifest.has_stable_row_ids:
        return manifest
    fields = external_lineage_fields(
        framing.extract_manifest_message(manifest.encode(), path=manifest.path), path=manifest.path
    )
    if not fields:
        return manifest
    if not fields.isdisjoint(IN_COLUMNS):
        raise Unsupported(
            f"{manifest.path} stores row ids or row versions as hidden columns of data files; this release cannot "
            "read them"
        )
    sizes = [file.size for fragment in manifest.fragments for file in lineage_files(fragment)]
    LINEAGE_BYTES.check(max(sizes, default=0), path=f"a fragment of {manifest.path}")
    LINEAGE_BYTES_TOGETHER.check(
        sum(sizes), path=manifest.path
    )  # many fragments may reference one file, and each gets a copy
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
