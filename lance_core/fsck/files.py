"""File checks: a referenced file exists, has the recorded size, and contains the recorded number of rows.

Each file is checked once, however many versions reference it. Start with `FileChecker`.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from lance_core.datafiles.fragment_reader import count_file_rows
from lance_core.errors import Corrupt, InvalidInput, LanceError, NotFound, Unsupported
from lance_core.format.fragment import DataFile, DeletionFile, Fragment
from lance_core.format.ids import RowId
from lance_core.format.manifest import Manifest
from lance_core.format.overlay import overlays_of
from lance_core.format.row_id_index import FragmentRowIds, RowIdIndex
from lance_core.format.row_lineage import RowIdSequence
from lance_core.fsck.manifests import OVERWRITE, error, warning
from lance_core.fsck.read_ahead import FilesAhead
from lance_core.fsck.report import Finding
from lance_core.versions.location import Location

_MISSING_REPAIR = "Restore it from a copy, delete the rows of its fragment, or restore a version that does not need it."


class FileChecker:
    """Checks files, and remembers those that are already checked."""

    def __init__(self, sizes: dict[str, int], ahead: FilesAhead) -> None:
        """Prepare the checks. `sizes` are the sizes of the table's own files, from a listing; `ahead` reads ahead."""
        self._sizes = sizes
        self._ahead = ahead
        self._seen: set[str] = set()
        self._rows: dict[str, int] = {}
        self._deleted: dict[str, npt.NDArray[np.uint32]] = {}

    @property
    def count(self) -> int:
        return len(self._seen)

    def check_fragment(self, location: Location, manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
        """Check the files of a fragment. `location` is the one of the version, with its base paths."""
        for file in fragment.files:
            if file.qualified_path not in self._seen:
                findings = list(self._check_file(location, manifest, file.qualified_path, file.size, "data_file"))
                yield from findings or self._count_rows(location, manifest, file)
            rows = self._rows.get(file.qualified_path, fragment.physical_rows)
            if fragment.physical_rows and rows != fragment.physical_rows:
                what = f"it has {rows} rows, but fragment {fragment.id} records {fragment.physical_rows}"
                yield error(manifest, "file_rows", what, OVERWRITE, path=file.qualified_path)
        yield from self._check_overlays(location, manifest, fragment)
        deleted = fragment.deletion_file
        if deleted is not None:
            if deleted.qualified_path not in self._seen:
                findings = list(self._check_file(location, manifest, deleted.qualified_path, None, "deletion_file"))
                yield from findings or self._read_deletions(location, manifest, fragment, deleted.qualified_path)
            if deleted.qualified_path in self._deleted:
                yield from _check_deletions(manifest, fragment, deleted, self._deleted[deleted.qualified_path])

    def _check_overlays(self, location: Location, manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
        """Check the overlay files of a fragment, whose coverage was checked with the manifest."""
        for overlay in overlays_of(fragment):
            place = overlay.file.qualified_path
            if place in self._seen:
                continue
            findings = list(self._check_file(location, manifest, place, overlay.file.size, "overlay_file"))
            yield from findings or self._count_rows(location, manifest, overlay.file)
            with suppress(Corrupt):
                covered = max((len(overlay.coverage(field_id)) for field_id in overlay.live_fields), default=0)
                if not findings and covered > self._rows.get(place, covered):
                    what = f"it has values for {self._rows[place]} rows, but covers {covered} rows"
                    yield error(manifest, "overlay_file", what, OVERWRITE, path=place)

    def check_indices(self, location: Location, manifest: Manifest) -> Iterator[Finding]:
        """Check the files of all index segments of a version."""
        for index in manifest.indices:
            try:
                names = index.file_names
            except Corrupt as found:
                yield error(manifest, "index_file", f"{found.path} {found.what}", "Drop the index.")
                continue
            if (
                not names
                and not index.is_system
                and not index.is_definition
                and not location.store.list(index.qualified_path)
            ):
                yield error(
                    manifest, "index_file", f"the files of index {index.name!r} do not exist", "Drop the index."
                )
            sizes = [file.size_bytes or None for file in index.message.files]
            for name, size in zip(names, sizes, strict=True):
                place = f"{index.qualified_path}/{name}"
                if place not in self._seen:
                    for finding in self._check_file(location, manifest, place, size, "index_file"):
                        what = f"{finding.what}; queries that use index {index.name!r} fail"
                        repair = f"Drop the index {index.name!r} and build it again."
                        yield Finding(finding.severity, finding.rule, finding.path, what, repair, finding.version)

    def check_unique_row_ids(self, manifest: Manifest) -> Iterator[Finding]:
        """Check that no two live rows of a version have the same row id. The deletion files must have been
        checked before."""
        if not manifest.has_stable_row_ids:
            return
        fragments = []
        for fragment in manifest.fragments:
            deleted = fragment.deletion_file
            if fragment.row_ids is None or (deleted is not None and deleted.qualified_path not in self._deleted):
                return  # already reported
            deleted_offsets = None if deleted is None else self._deleted[deleted.qualified_path]
            try:
                ids = RowIdSequence.decode(fragment.row_ids, rows=fragment.physical_rows, path=manifest.path)
            except Corrupt:
                return
            fragments.append(FragmentRowIds(fragment.id, ids, deleted_offsets))
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
            actual_size = self._size_of(location, place)
        except InvalidInput as refused:
            what = f"it is outside the table and was not checked: {refused}"
            yield warning(manifest, "outside", what, "Open the table with this location in bases=.", path=place)
            return
        except LanceError as failed:
            yield error(manifest, rule, f"it could not be checked: {failed}", "Try again.", path=place)
            return
        if actual_size is None:
            yield error(manifest, rule, "it does not exist", _MISSING_REPAIR, path=place)
        elif size is not None and size != actual_size:
            yield error(
                manifest,
                rule,
                f"it has {actual_size} bytes, but the version records {size}",
                _MISSING_REPAIR,
                path=place,
            )

    def _size_of(self, location: Location, place: str) -> int | None:
        if place in self._sizes:
            return self._sizes[place]
        info = location.store.head(place)
        return None if info is None else info.size

    def _count_rows(self, location: Location, manifest: Manifest, file: DataFile) -> Iterator[Finding]:
        try:
            self._ahead.before_opening(file)
            self._rows[file.qualified_path] = count_file_rows(location.store, location.codec, file)
        except Unsupported as found:
            yield warning(
                manifest,
                "data_file",
                str(found),
                "Check it with a newer release of this package.",
                path=file.qualified_path,
            )
        except LanceError as found:
            yield error(
                manifest, "data_file", f"it cannot be opened: {found}", _MISSING_REPAIR, path=file.qualified_path
            )

    def _read_deletions(
        self, location: Location, manifest: Manifest, fragment: Fragment, place: str
    ) -> Iterator[Finding]:
        try:
            vector = self._ahead.read_deletions(location.store, fragment)
        except (Corrupt, NotFound, Unsupported) as found:
            repair = "Restore it from a copy, or restore a version before the delete: the deleted rows are unknown."
            yield error(manifest, "deletion_file", f"it cannot be read: {found}", repair, path=place)
            return
        assert vector is not None
        self._deleted[place] = vector.offsets


def _check_deletions(
    manifest: Manifest, fragment: Fragment, deleted: DeletionFile, offsets: npt.NDArray[np.uint32]
) -> Iterator[Finding]:
    if deleted.deleted_rows is not None and deleted.deleted_rows != len(offsets):
        what = f"it lists {len(offsets)} rows, but the version counts {deleted.deleted_rows}: row counts are wrong"
        repair = "Delete a row of this fragment, which updates its counts."
        yield error(manifest, "deletion_count", what, repair, path=deleted.qualified_path)
    if len(offsets) and fragment.physical_rows and int(offsets[-1]) >= fragment.physical_rows:
        what = f"it deletes row {offsets[-1]} of a fragment with {fragment.physical_rows} rows"
        yield error(manifest, "deletion_file", what, OVERWRITE, path=deleted.qualified_path)
