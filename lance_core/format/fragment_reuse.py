"""Fragment reuse index: the record of where rows moved in compactions that left the other indices unchanged.

The record is the entry `__lance_frag_reuse` of the index section, with one `Version` message for each such
compaction. A reader of another index maps the addresses it finds through the compactions, oldest first: the k-th
surviving old address is the k-th row of the new fragments. This module encodes and decodes the entry and applies it
to coverage; `maintenance/` decides when one is written.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pyroaring import BitMap, BitMap64

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.ids import FRAGMENT_ID_MAX, Version
from lance_core.format.index_metadata import FRAGMENT_REUSE, IndexMetadata
from lance_core.format.row_sets import bitmap64_of

INLINE_BYTES_MAX = 204_800
DETAILS_FILE = "details.binpb"
_ROWS_MAX = 2**32 - 1
"""The maximum number of rows of one fragment."""
_TYPE_URL = "/lance.table.FragmentReuseIndexDetails"
_Details = table_pb2.FragmentReuseIndexDetails


@dataclass(frozen=True, slots=True)
class FragmentRewrite:
    """Fragments that were rewritten into other fragments."""

    old: tuple[Fragment, ...]
    deleted: tuple[npt.NDArray[np.uint32] | None, ...]
    """For each old fragment, the offsets of the rows that did not survive."""
    new: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class ReuseGroup:
    """One group of a compaction: fragments whose rows moved together."""

    old: tuple[tuple[int, int], ...]
    """Fragment ids with their numbers of physical rows."""
    surviving: bytes
    """The addresses of the surviving rows, encoded; `surviving_rows` decodes them."""
    new: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FragmentReuse:
    """All compactions that readers of other indices have to follow."""

    _content: table_pb2.FragmentReuseIndexDetails.InlineContent

    @classmethod
    def empty(cls) -> "FragmentReuse":
        return cls(_Details.InlineContent())

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> "FragmentReuse":
        """Decode the content, which is stored in the entry or in a file of its own."""
        size_guard.check_message(data, path=path)
        try:
            content = _Details.InlineContent.FromString(data)
        except DecodeError as error:
            raise Corrupt("is not a fragment reuse index", path=path, field="index_details") from error
        return cls(_check_fragment_ids(content, path=path))

    def with_compaction(self, dataset_version: Version, groups: Iterable[FragmentRewrite]) -> "FragmentReuse":
        """Return the record with one more compaction, planned when `dataset_version` was the newest version."""
        content = _Details.InlineContent()
        content.CopyFrom(self._content)
        version = content.versions.add(dataset_version=dataset_version)
        for group in groups:
            version.groups.add(
                changed_row_addrs=_encode_survivors(group),
                old_fragments=map(_fragment_digest, group.old),
                new_fragments=map(_fragment_digest, group.new),
            )
        return FragmentReuse(content)

    def keep_compactions(self, numbers: Collection[int]) -> "FragmentReuse":
        """Return the record with only these compactions, numbered as in `compactions()`."""
        content = _Details.InlineContent()
        content.CopyFrom(self._content)
        kept = [version for number, version in enumerate(self._content.versions) if number in numbers]
        content.ClearField("versions")
        content.versions.extend(kept)
        return FragmentReuse(content)

    def encode(self) -> bytes:
        return self._content.SerializeToString()

    def follow_coverage(self, covered: BitMap) -> BitMap:
        """Convert a coverage that was recorded for older fragments to the current fragments."""
        for version in self._content.versions:
            for group in version.groups:
                old = BitMap(fragment.id for fragment in group.old_fragments)
                if old and old <= covered:
                    covered = (covered - old) | BitMap(fragment.id for fragment in group.new_fragments)
        return covered

    def compactions(self) -> Iterator[tuple[Version, tuple[ReuseGroup, ...]]]:
        """Yield the compactions, oldest first, each with the version on which it was planned."""
        for version in self._content.versions:
            yield Version(version.dataset_version), tuple(map(_reuse_group, version.groups))

    @property
    def new_fragments(self) -> BitMap:
        versions = self._content.versions
        return BitMap(
            fragment.id for version in versions for group in version.groups for fragment in group.new_fragments
        )

    def as_index(self, identity: uuid.UUID, *, dataset_version: Version, created_ms: int) -> IndexMetadata:
        """Return the entry of the index section. Content that is too large for the entry belongs in the file
        `DETAILS_FILE` of the index's directory."""
        content = self.encode()
        details = _Details()
        message = table_pb2.IndexMetadata(
            name=FRAGMENT_REUSE, dataset_version=dataset_version, index_version=0, created_at=created_ms
        )
        if len(content) <= INLINE_BYTES_MAX:
            details.inline.CopyFrom(self._content)
        else:
            details.external.path = DETAILS_FILE
            details.external.size = len(content)
            message.files.add(path=DETAILS_FILE, size_bytes=len(content))
        message.uuid.uuid = identity.bytes
        message.fragment_bitmap = self.new_fragments.serialize()
        message.index_details.type_url = _TYPE_URL
        message.index_details.value = details.SerializeToString()
        return IndexMetadata(message)


@dataclass(frozen=True, slots=True)
class ExternalContent:
    """The location of content that is stored in a file of the index's directory."""

    name: str
    offset: int
    size: int


def content_of(index: IndexMetadata) -> FragmentReuse | ExternalContent:
    """Return the content of an entry of the index section, or its location."""
    path = f"index {index.name}"
    if index.message.index_version > 0:
        raise Unsupported(
            f"{path} has version {index.message.index_version}, but this library supports only 0; compact with the "
            "library that wrote it"
        )
    try:
        details = _Details.FromString(index.message.index_details.value)
    except DecodeError as error:
        raise Corrupt("is not a fragment reuse index", path=path, field="index_details") from error
    if details.HasField("external"):
        external = details.external
        return ExternalContent(external.path, external.offset, external.size)
    return FragmentReuse(_check_fragment_ids(details.inline, path=path))


def _check_fragment_ids(content: _Details.InlineContent, *, path: str) -> _Details.InlineContent:
    """Return the content if all fragment ids fit 32 bits, the size of an entry of a bitmap."""
    groups = [group for version in content.versions for group in version.groups]
    ids = [fragment.id for group in groups for fragment in (*group.old_fragments, *group.new_fragments)]
    if max(ids, default=0) > FRAGMENT_ID_MAX:
        raise Corrupt(f"fragment id {max(ids)} does not fit 32 bits", path=path, field="index_details")
    return content


def surviving_rows(group: ReuseGroup, *, path: str) -> BitMap64:
    """Return the old addresses of the surviving rows. In ascending order they are the rows of the new fragments in
    their order."""
    rows = sum(count for _, count in group.old)
    new_rows = sum(count for _, count in group.new)
    try:
        addresses = BitMap64.deserialize(group.surviving)
    except ValueError as error:
        raise Corrupt("is not a set of rows", path=path, field="changed_row_addrs") from error
    if (
        max((count for _, count in (*group.old, *group.new)), default=0) > _ROWS_MAX
        or not len(addresses) == new_rows <= rows
    ):
        raise Corrupt(
            f"maps {len(addresses)} of {rows} rows to {new_rows} new rows", path=path, field="changed_row_addrs"
        )
    return addresses


def _reuse_group(group: table_pb2.FragmentReuseIndexDetails.Group) -> ReuseGroup:
    old = tuple((fragment.id, fragment.physical_rows) for fragment in group.old_fragments)
    return ReuseGroup(
        old, group.changed_row_addrs, tuple((fragment.id, fragment.physical_rows) for fragment in group.new_fragments)
    )


def _encode_survivors(group: FragmentRewrite) -> bytes:
    addresses = BitMap64()
    for fragment, deleted in zip(group.old, group.deleted, strict=True):
        first = fragment.id << 32
        addresses.add_range(first, first + fragment.physical_rows)
        if deleted is not None and len(deleted):
            addresses -= bitmap64_of(deleted.astype(np.uint64) + np.uint64(first))
    addresses.run_optimize()
    return bytes(addresses.serialize())


def _fragment_digest(fragment: Fragment) -> table_pb2.FragmentReuseIndexDetails.FragmentDigest:
    rows = fragment.physical_rows
    return _Details.FragmentDigest(id=fragment.id, physical_rows=rows, num_deleted_rows=rows - fragment.live_rows)


def reuse_entry(indices: Sequence[IndexMetadata]) -> IndexMetadata | None:
    return next((index for index in indices if index.name == FRAGMENT_REUSE), None)
