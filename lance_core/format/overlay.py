"""Overlay files: new values for single cells of a fragment, in a data file next to those with its columns.

An overlay covers physical offsets of the fragment, for each of its fields or for all of them alike. The value of the
k-th covered offset is row k of the file. Later overlays of a fragment hide earlier ones. An overlay is in effect from
`committed_version` on, so an index segment that was built from an older version does not know its values
(`known_coverage`). This module does no I/O; `datafiles/fragment_overlays.py` reads the values.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.fragment_reuse import ExternalContent, FragmentReuse, content_of, reuse_entry
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.schema import TableSchema
from lance_core.limits import FILES_OF_A_FRAGMENT, OVERLAID_ROWS


@dataclass(frozen=True, slots=True)
class OverlayFile:
    """One overlay of a fragment."""

    _message: table_pb2.DataOverlayFile

    @property
    def file(self) -> DataFile:
        return DataFile(self._message.data_file)

    @property
    def committed_version(self) -> Version:
        """The version in which its values came into effect."""
        return Version(self._message.committed_version)

    @property
    def live_fields(self) -> frozenset[int]:
        """Fields that it has values of."""
        return frozenset(field_id for field_id in self.file.field_ids if field_id >= 0)

    def coverage(self, field_id: int) -> npt.NDArray[np.int64]:
        """Return the physical offsets whose values of a field it replaces, in ascending order."""
        path = self.file.path
        match self._message.WhichOneof("coverage"):
            case "shared_offset_bitmap":
                data = self._message.shared_offset_bitmap
            case "field_coverage":
                bitmaps = self._message.field_coverage.offset_bitmaps
                if len(bitmaps) != len(self.file.field_ids):
                    raise Corrupt(
                        f"has {len(self.file.field_ids)} fields, but covers rows for {len(bitmaps)}",
                        path=path,
                        field="field_coverage",
                    )
                data = bitmaps[self.file.field_ids.index(field_id)]
            case _:
                raise Corrupt("is an overlay that does not say which rows it covers", path=path, field="coverage")
        try:
            bitmap = BitMap.deserialize(data)
        except (ValueError, IndexError) as error:
            raise Corrupt("covers rows by a broken Roaring bitmap", path=path, field="coverage") from error
        OVERLAID_ROWS.check(len(bitmap), path=path)
        return np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64)

    @property
    def rows(self) -> BitMap:
        """Physical offsets of which it replaces a value of any field."""
        return BitMap.union(BitMap(), *(BitMap(self.coverage(field_id)) for field_id in self.live_fields))


def overlays_of(fragment: Fragment) -> tuple[OverlayFile, ...]:
    """Return the overlays of a fragment, oldest first."""
    overlays = fragment.message.overlays
    FILES_OF_A_FRAGMENT.check(len(overlays), path=f"fragment {fragment.id}")
    return tuple(map(OverlayFile, overlays))


def with_overlays_of(fragment: Fragment, other: Fragment) -> Fragment:
    """Return the fragment with the overlays of another state of it."""
    if not (fragment.has_overlays or other.has_overlays):
        return fragment
    message = table_pb2.DataFragment()
    message.CopyFrom(fragment.message)
    del message.overlays[:]
    message.overlays.extend(other.message.overlays)
    return Fragment(message)


def without_overlaid_fields(fragment: Fragment, field_ids: Container[int], *, up_to: Version) -> Fragment:
    """Return the fragment without the values that overlays of versions up to `up_to` have of some fields. Overlays
    without any field left are removed."""
    if not fragment.has_overlays:
        return fragment
    message = table_pb2.DataFragment()
    message.CopyFrom(fragment.message)
    del message.overlays[:]
    for overlay in fragment.message.overlays:
        kept = message.overlays.add()
        kept.CopyFrom(overlay)
        if overlay.committed_version <= up_to:
            kept.data_file.CopyFrom(OverlayFile(overlay).file.without_fields(field_ids).message)
            if not OverlayFile(kept).live_fields:
                message.overlays.pop()
    return Fragment(message)


def known_coverage(
    indices: Sequence[IndexMetadata], fragments: Collection[table_pb2.DataFragment], schema: TableSchema
) -> tuple[IndexMetadata, ...]:
    """Return index segments without coverage of fragments whose overlays they do not know: overlays that change their
    column and are newer than the version that they were built from."""
    overlaid = [fragment for fragment in fragments if fragment.overlays]
    if not overlaid:
        return tuple(indices)
    live = BitMap(fragment.id for fragment in fragments)
    entry = reuse_entry(indices)
    reuse = None if entry is None else content_of(entry)
    return tuple(
        index
        if index.is_system or index.covers is None
        else _without_coverage(index, index.covers, _unknown_overlays(index, overlaid, schema), live, reuse)
        for index in indices
    )


def _without_coverage(
    index: IndexMetadata, covered: BitMap, unknown: BitMap, live: BitMap, reuse: FragmentReuse | ExternalContent | None
) -> IndexMetadata:
    """Remove fragments from the coverage of a segment, which may consist of fragments that were compacted since."""
    if not unknown:
        return index
    if reuse is not None and not index.is_zone_based:
        covered = reuse.follow_coverage(covered) if isinstance(reuse, FragmentReuse) else covered & live
    return index.with_coverage(covered - unknown)


def _unknown_overlays(index: IndexMetadata, overlaid: Iterable[table_pb2.DataFragment], schema: TableSchema) -> BitMap:
    related = related_fields(schema, index.field_ids)
    return BitMap(
        fragment.id
        for fragment in overlaid
        if any(
            overlay.committed_version > index.dataset_version and not related.isdisjoint(overlay.data_file.fields)
            for overlay in fragment.overlays
        )
    )


def related_fields(schema: TableSchema, field_ids: Sequence[int]) -> frozenset[int]:
    """Return these fields with all fields above and below them: an overlay may list any of them."""
    wanted = set(field_ids)
    related = set(wanted)
    for top in schema.fields:
        if wanted & {node.id for node in top.walk()}:
            related |= {node.id for node in top.walk()}
    return frozenset(related)
