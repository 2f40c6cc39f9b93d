"""What a version names: is it on the store, of the right size, and does it say what the version says of it.

Each file is looked at once, however many versions name it.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.fragment_reader import count_file_rows, read_deletions
from lance_core.errors import Corrupt, InvalidInput, LanceError, NotFound, Unsupported
from lance_core.format.fragment import DataFile, DeletionFile, Fragment
from lance_core.format.ids import RowId
from lance_core.format.manifest import Manifest
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.format.rowids import RowIdSequence
from lance_core.fsck.manifests import OVERWRITE, error, warning
from lance_core.fsck.report import Finding
from lance_core.versions.location import Location

_MISSING_REPAIR = (
    "Put it back from a copy; or delete the rows of its fragment, or restore a version that does not need it."
)


class FileChecker:
    """What was looked at so far."""

    def __init__(self, sizes: dict[str, int]) -> None:
        """`sizes` is of the table's own files, as they were listed."""
        self._sizes = sizes
        self._seen: set[str] = set()
        self._rows: dict[str, int] = {}
        self._deleted: dict[str, npt.NDArray[np.uint32]] = {}

    @property
    def count(self) -> int:
        return len(self._seen)

    def check_fragment(self, location: Location, manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
        """`location` is the version's, with its base paths."""
        for file in fragment.files:
            if file.qualified_path not in self._seen:
                found = list(self._check_file(location, manifest, file.qualified_path, file.size, "data_file"))
                yield from found or self._count_rows(location, manifest, file)
            rows = self._rows.get(file.qualified_path, fragment.physical_rows)
            if fragment.physical_rows and rows != fragment.physical_rows:
                what = f"it has {rows} rows, and fragment {fragment.id} says {fragment.physical_rows}"
                yield error(manifest, "file_rows", what, OVERWRITE, path=file.qualified_path)
        deleted = fragment.deletion_file
        if deleted is not None:
            if deleted.qualified_path not in self._seen:
                found = list(self._check_file(location, manifest, deleted.qualified_path, None, "deletion_file"))
                yield from found or self._read_deletions(location, manifest, fragment, deleted.qualified_path)
            if deleted.qualified_path in self._deleted:
                yield from _check_deletions(manifest, fragment, deleted, self._deleted[deleted.qualified_path])

    def check_indices(self, location: Location, manifest: Manifest) -> Iterator[Finding]:
        for index in manifest.indices:
            try:
                names = index.file_names
            except Corrupt as found:
                yield error(manifest, "index_file", f"{found.path} {found.what}", "Drop the index.")
                continue
            if not names and not index.is_system and not location.store.list(index.qualified_path):
                yield error(manifest, "index_file", f"the files of index {index.name!r} are gone", "Drop the index.")
            sizes = [file.size_bytes or None for file in index.message.files]
            for name, size in zip(names, sizes, strict=True):
                place = f"{index.qualified_path}/{name}"
                if place not in self._seen:
                    for finding in self._check_file(location, manifest, place, size, "index_file"):
                        what = f"{finding.what}; queries that use index {index.name!r} fail"
                        repair = f"Drop the index {index.name!r} and build it again."
                        yield Finding(finding.severity, finding.rule, finding.path, what, repair, finding.version)

    def check_unique_row_ids(self, manifest: Manifest) -> Iterator[Finding]:
        """Over a whole version, once its deletion files were looked at."""
        if not manifest.has_stable_row_ids:
            return
        fragments = []
        for fragment in manifest.fragments:
            deleted = fragment.deletion_file
            if fragment.row_ids is None or (deleted is not None and deleted.qualified_path not in self._deleted):
                return  # what is wrong there was said already
            gone = None if deleted is None else self._deleted[deleted.qualified_path]
            try:
                ids = RowIdSequence.decode(fragment.row_ids, rows=fragment.physical_rows, path=manifest.path)
            except Corrupt:
                return
            fragments.append(FragmentRowIds(fragment.id, ids, gone))
        try:
            RowIdIndex(fragments, path=manifest.path).locate_rows([RowId(0)])
        except Corrupt as found:
            repair = "Delete one of the two rows by its address (_rowaddr)."
            yield error(manifest, "row_id_live_twice", found.what.partition(";")[0], repair)

    def _check_file(
        self, location: Location, manifest: Manifest, place: str, size: int | None, rule: str
    ) -> Iterator[Finding]:
        self._seen.add(place)
        try:
            found = self._size_of(location, place)
        except InvalidInput as refused:
            what = f"it lies outside the table, and was not looked at: {refused}"
            yield warning(manifest, "outside", what, "Open the table with this place among its bases.", path=place)
            return
        except LanceError as failed:
            yield error(manifest, rule, f"it could not be looked at: {failed}", "Try again.", path=place)
            return
        if found is None:
            yield error(manifest, rule, "it does not exist", _MISSING_REPAIR, path=place)
        elif size is not None and size != found:
            yield error(
                manifest, rule, f"it has {found} bytes, and the version says {size}", _MISSING_REPAIR, path=place
            )

    def _size_of(self, location: Location, place: str) -> int | None:
        if place in self._sizes:
            return self._sizes[place]
        found = location.store.head(place)
        return None if found is None else found.size

    def _count_rows(self, location: Location, manifest: Manifest, file: DataFile) -> Iterator[Finding]:
        try:
            self._rows[file.qualified_path] = count_file_rows(location.store, location.codec, file)
        except Unsupported as found:
            yield warning(
                manifest, "data_file", str(found), "Look at it with a newer version.", path=file.qualified_path
            )
        except LanceError as found:
            yield error(
                manifest, "data_file", f"it cannot be opened: {found}", _MISSING_REPAIR, path=file.qualified_path
            )

    def _read_deletions(
        self, location: Location, manifest: Manifest, fragment: Fragment, place: str
    ) -> Iterator[Finding]:
        try:
            vector = read_deletions(location.store, fragment)
        except (Corrupt, NotFound, Unsupported) as found:
            repair = (
                "Put it back from a copy, or restore a version before the delete: which rows are gone, nobody knows."
            )
            yield error(manifest, "deletion_file", f"it cannot be read: {found}", repair, path=place)
            return
        assert vector is not None
        self._deleted[place] = vector.offsets


def _check_deletions(
    manifest: Manifest, fragment: Fragment, deleted: DeletionFile, offsets: npt.NDArray[np.uint32]
) -> Iterator[Finding]:
    if deleted.deleted_rows is not None and deleted.deleted_rows != len(offsets):
        what = f"it lists {len(offsets)} rows, and the version counts {deleted.deleted_rows}: counts of rows are wrong"
        repair = "Delete a row of this fragment: the rest is counted anew."
        yield error(manifest, "deletion_count", what, repair, path=deleted.qualified_path)
    if len(offsets) and fragment.physical_rows and int(offsets[-1]) >= fragment.physical_rows:
        what = f"it deletes row {offsets[-1]} of {fragment.physical_rows}"
        yield error(manifest, "deletion_file", what, OVERWRITE, path=deleted.qualified_path)
