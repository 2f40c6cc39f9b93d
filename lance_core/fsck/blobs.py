"""Blob file checks: the files of blobs exist, and are as long as their blobs require.

Only the descriptors of blobs are read, once for each column of each data file. External blobs are not checked. Start
with `BlobChecker`.
"""

from collections.abc import Iterator

from lance_core.datafiles.blob_locations import BlobLocations
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.fragment_reader import FragmentReader
from lance_core.errors import Corrupt, LanceError
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field, TableSchema
from lance_core.fsck.manifests import error
from lance_core.fsck.report import Finding
from lance_core.versions.location import Location

_MISSING_REPAIR = (
    "Restore it from a copy, delete the rows whose blobs are in it, or restore a version without such rows."
)


class BlobChecker:
    """Checks blob columns, and remembers those that are already checked."""

    def __init__(self, sizes: dict[str, int]) -> None:
        """Prepare the checks. `sizes` are the sizes of the table's own files, from a listing."""
        self._sizes = sizes
        self._seen: set[tuple[str, int]] = set()

    def check_fragment(self, location: Location, manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
        """Check the blobs of a fragment whose data files have no findings. `location` is the one of the version, with
        its base paths."""
        try:
            fields = manifest.schema.fields
        except Corrupt:
            return  # the schema is already reported as damaged
        for field in filter(is_blob, fields):
            for file in fragment.files:
                column = (file.qualified_path, field.id)
                if field.id in file.field_ids and not file.version.is_legacy and column not in self._seen:
                    self._seen.add(column)
                    yield from self._check_column(location, manifest, fragment, field, file)

    def _check_column(
        self, location: Location, manifest: Manifest, fragment: Fragment, field: Field, file: DataFile
    ) -> Iterator[Finding]:
        ends: dict[str, tuple[int, int]] = {}
        schema, path = manifest.schema, f"{location.uri}/{manifest.path}"
        projection = TableSchema((field,), schema.metadata)
        reader = FragmentReader(location.store, location.codec, schema, projection, path=path, describe_blobs=True)
        try:
            for rows in reader.read_live(fragment, None):
                locations = BlobLocations.of(rows.batch.column(0), column=field.name, file=file)
                for _row, _blob in locations.external_blobs():
                    pass  # raises `Corrupt` for a reference outside its base path
                for blob_path, stored in locations.rows_by_path():
                    count, end = ends.get(blob_path, (0, 0))
                    last = int((locations.positions[stored] + locations.sizes[stored]).max())
                    ends[blob_path] = (count + len(stored), max(end, last))
            for blob_path, (count, end) in ends.items():
                size = self._size_of(location, blob_path)
                if size is None:
                    what = f"it does not exist, but column {field.name!r} has {count} blobs in it"
                    yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=blob_path)
                elif size < end:
                    what = f"it has {size} bytes, but blobs of column {field.name!r} extend to byte {end}"
                    yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=blob_path)
        except LanceError as failed:
            what = f"the blob locations of column {field.name!r} cannot be read: {failed}"
            yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=file.qualified_path)

    def _size_of(self, location: Location, path: str) -> int | None:
        if path in self._sizes:
            return self._sizes[path]
        info = location.store.head(path)
        return None if info is None else info.size
