"""Blobs that a version names: are their files there, and do they go as far as the blobs do.

Only where blobs are is read, of each column of each data file once. What lies outside of the table is not looked at.
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
    "Put it back from a copy; or delete the rows whose blobs are in it, or restore a version that has no such rows."
)


class BlobChecker:
    """What was looked at so far."""

    def __init__(self, sizes: dict[str, int]) -> None:
        """`sizes` is of the table's own files, as they were listed."""
        self._sizes = sizes
        self._seen: set[tuple[str, int]] = set()

    def check_fragment(self, location: Location, manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
        """`location` is the version's, with its base paths. Of a fragment whose files are as they should be."""
        try:
            fields = manifest.schema.fields
        except Corrupt:
            return  # the schema was found damaged already
        for field in filter(is_blob, fields):
            for file in fragment.files:
                at = (file.qualified_path, field.id)
                if field.id in file.field_ids and not file.version.is_legacy and at not in self._seen:
                    self._seen.add(at)
                    yield from self._check_column(location, manifest, fragment, field, file)

    def _check_column(
        self, location: Location, manifest: Manifest, fragment: Fragment, field: Field, file: DataFile
    ) -> Iterator[Finding]:
        found: dict[str, tuple[int, int]] = {}
        schema, path = manifest.schema, f"{location.uri}/{manifest.path}"
        wanted = TableSchema((field,), schema.metadata)
        reader = FragmentReader(location.store, location.codec, schema, wanted, path=path, describe_blobs=True)
        try:
            for rows in reader.read_live(fragment, None):
                places = BlobLocations.of(rows.batch.column(0), column=field.name, file=file)
                for _row, _outside in places.external_blobs():
                    pass  # it says so itself where one of them leads where it must not
                for place, held in places.rows_by_path():
                    count, end = found.get(place, (0, 0))
                    last = int((places.positions[held] + places.sizes[held]).max())
                    found[place] = (count + len(held), max(end, last))
            for place, (count, end) in found.items():
                size = self._size_of(location, place)
                if size is None:
                    what = f"it does not exist, and {count} blobs of column {field.name!r} are to be there"
                    yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=place)
                elif size < end:
                    what = f"it has {size} bytes, and blobs of column {field.name!r} are to end at {end}"
                    yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=place)
        except LanceError as failed:
            what = f"where blobs of column {field.name!r} are cannot be read: {failed}"
            yield error(manifest, "blob_file", what, _MISSING_REPAIR, path=file.qualified_path)

    def _size_of(self, location: Location, place: str) -> int | None:
        if place in self._sizes:
            return self._sizes[place]
        found = location.store.head(place)
        return None if found is None else found.size
