"""Row ids, and the versions of rows, that a fragment keeps in a file of its own: put where the others have them.

The format knows that place, and no release of the reference writes it or reads it. So it is followed once, when a
version is opened; what is committed after that has all of it in the manifest.
"""

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import framing, naming
from lance_core.format.external_lineage import IN_COLUMNS, LineageFile, lineage_files, external_lineage_fields, inline_sequences
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.limits import LINEAGE_BYTES, LINEAGE_BYTES_TOGETHER
from lance_core.storage.store import Store

OFFSET_MAX = 2**48


def with_lineage(store: Store, manifest: Manifest) -> Manifest:
    """The manifest itself, where it holds all of it."""
    if not manifest.has_stable_row_ids:
        return manifest
    found = external_lineage_fields(framing.extract_manifest_message(manifest.encode(), path=manifest.path), path=manifest.path)
    if not found:
        return manifest
    if not found.isdisjoint(IN_COLUMNS):
        raise Unsupported(
            f"{manifest.path} keeps row ids or versions of rows as hidden columns of data files; this version cannot "
            "read them"
        )
    sizes = [file.size for fragment in manifest.fragments for file in lineage_files(fragment)]
    LINEAGE_BYTES.check(max(sizes, default=0), path=f"a fragment of {manifest.path}")
    LINEAGE_BYTES_TOGETHER.check(sum(sizes), path=manifest.path)  # many may name one file; each gets a copy
    return manifest.with_fragments(_with_all(store, fragment, manifest.path) for fragment in manifest.fragments)


def _with_all(store: Store, fragment: Fragment, path: str) -> Fragment:
    files = lineage_files(fragment)
    return inline_sequences(fragment, {file.field: _read(store, file, fragment, path) for file in files}) if files else fragment


def _read(store: Store, file: LineageFile, fragment: Fragment, path: str) -> bytes:
    field = f"fragments[id={fragment.id}].{file.field}"
    if not naming.is_confined(file.path):
        raise Corrupt(f"the file {file.path!r} lies outside the table", path=path, field=field)
    if file.offset > OFFSET_MAX:
        raise Corrupt(f"{file.path} has no byte {file.offset}, where they would be", path=path, field=field)
    data = store.read(file.path, file.offset, file.size)
    if len(data) != file.size:
        raise Corrupt(f"{file.path} has {len(data)} of the {file.size} bytes it should have", path=path, field=field)
    return data
