"""Index metadata: the index section of a manifest, which lists the index segments of a version and their coverage.
Views, like fragments.

Several entries may share a name: they are the segments of one index. The section of a version is complete, not a
delta, so a commit that did not carry it over would drop every index.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format import naming, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.ids import Version
from lance_core.limits import FIELDS, INDICES

FRAGMENT_REUSE = "__lance_frag_reuse"
MEM_WAL = "__lance_mem_wal"
SYSTEM_INDICES = frozenset({FRAGMENT_REUSE, MEM_WAL})
_ROW_IDS_BELOW = {
    "bitmapindexdetails": 1,
    "btreeindexdetails": 1,
    "invertedindexdetails": 4,
    "jsonindexdetails": 1,
    "labellistindexdetails": 2,
    "ngramindexdetails": 1,
    "rtreeindexdetails": 1,
    "vectorindexdetails": 3,
}
"""Below this version, an index type stores row ids; from it on, row addresses. Types that are not listed store
addresses, or are unknown."""
_FOLLOWS_REUSE_BELOW = {
    "bitmapindexdetails": 1,
    "bloomfilterindexdetails": 1,
    "btreeindexdetails": 2,
    "invertedindexdetails": 4,
    "jsonindexdetails": 1,
    "labellistindexdetails": 2,
    "ngramindexdetails": 1,
    "vectorindexdetails": 3,
    "zonemapindexdetails": 1,
}
"""Below this version, readers of an index type find its rows through a fragment reuse index. Readers of types that
are not listed do not, or it is unknown: pylance 14 returns wrong results from an FM index."""
_BREAKS_WHEN_REMAPPED = frozenset(
    {"btreeindexdetails", "invertedindexdetails", "jsonindexdetails", "ngramindexdetails"}
)
"""Index types whose rows pylance 14 loses if it rewrites an index immediately, as `compact_files()` does, while the
index depends on a fragment reuse index."""
_ZONE_BASED = frozenset({"zonemapindexdetails", "bloomfilterindexdetails"})


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file in the directory of a segment."""

    path: str
    size: int
    xxh3: int | None = None
    """Hash of the file; `None` if its writer recorded none."""

    @property
    def checksum(self) -> FileChecksum | None:
        return None if self.xxh3 is None else FileChecksum(self.size, self.xxh3)

    @property
    def message(self) -> table_pb2.IndexFile:
        return table_pb2.IndexFile(path=self.path, size_bytes=self.size, xxh3=self.xxh3)


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """One segment of an index."""

    _message: table_pb2.IndexMetadata

    @classmethod
    def new(
        cls,
        identity: uuid.UUID,
        *,
        name: str,
        field_id: int,
        dataset_version: Version,
        covers: BitMap,
        type_url: str,
        details: bytes,
        index_version: int,
        created_ms: int,
        files: Iterable[SegmentFile] = (),
    ) -> "IndexMetadata":
        message = table_pb2.IndexMetadata(
            name=name,
            fields=[field_id],
            dataset_version=dataset_version,
            fragment_bitmap=covers.serialize(),
            index_version=index_version,
            created_at=created_ms,
            files=(file.message for file in files),
        )
        message.uuid.uuid = identity.bytes
        message.index_details.type_url = type_url
        message.index_details.value = details
        return cls(message)

    def __repr__(self) -> str:
        message = self._message
        kind = message.index_details.type_url.rpartition(".")[2].removesuffix("IndexDetails")
        try:
            covered = "" if (covers := self.covers) is None else f", fragments={len(covers)}"
        except Corrupt:  # a representation must not raise
            covered = ""
        size = sum(file.size_bytes for file in message.files)
        parts = f"name={message.name!r}, type={kind!r}, fields={list(message.fields)}{covered}, bytes={size}"
        return f"IndexMetadata({parts}, uuid='{message.uuid.uuid.hex()[:8]}…')"

    def with_contents(self, details: bytes, files: Iterable[SegmentFile]) -> "IndexMetadata":
        """Return the segment with the details and files that are known once the files are written. Without any file, it
        is a definition, which covers nothing."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        message.index_details.value = details
        del message.files[:]
        message.files.extend(file.message for file in files)
        if not message.files:
            message.fragment_bitmap = BitMap().serialize()
        return IndexMetadata(message)

    @classmethod
    def decode(cls, data: bytes) -> "IndexMetadata":
        """Decode what `encode` returned in the same application."""
        return cls(table_pb2.IndexMetadata.FromString(data))

    def encode(self) -> bytes:
        return self._message.SerializeToString()

    @property
    def message(self) -> table_pb2.IndexMetadata:
        """The message, for packages that build manifests and transactions; never changed in place."""
        return self._message

    @property
    def uuid(self) -> uuid.UUID:
        """The uuid, which is also the name of its directory."""
        data = self._message.uuid.uuid
        if len(data) != 16:
            raise Corrupt(f"its uuid has {len(data)} bytes, not 16", path=f"index {self.name}", field="uuid")
        return uuid.UUID(bytes=data)

    @property
    def base_id(self) -> int | None:
        return self._message.base_id if self._message.HasField("base_id") else None

    @property
    def qualified_path(self) -> str:
        """The directory relative to the table's root, prefixed with the id of the base if it belongs to another
        table."""
        return naming.qualify_path(self.base_id, f"{naming.INDICES}/{self.uuid}")

    @property
    def file_names(self) -> tuple[str, ...]:
        """Paths below the directory; empty if an older writer recorded none."""
        for file in self._message.files:
            if not naming.is_confined(file.path):
                raise Corrupt("the path of an index file leaves its directory", path=repr(file.path), field="files")
        return tuple(file.path for file in self._message.files)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        """The files with their sizes; empty if an older writer recorded none."""
        checksums = ((file.size_bytes, file.xxh3 if file.HasField("xxh3") else None) for file in self._message.files)
        return tuple(SegmentFile(path, *checksum) for path, checksum in zip(self.file_names, checksums, strict=True))

    @property
    def created_at(self) -> datetime | None:
        """`None` if the writer recorded no time, or an impossible one."""
        milliseconds = self._message.created_at
        if not milliseconds:
            return None
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        except OverflowError:
            return None

    @property
    def name(self) -> str:
        return self._message.name

    @property
    def is_system(self) -> bool:
        return self.name in SYSTEM_INDICES

    @property
    def is_definition(self) -> bool:
        """True for an index that is defined but not built: it covers no fragment and has no files. Lance writes one for
        a table with too few rows to train a vector index."""
        return not self.is_system and not self._message.files and self.covers is not None and not self.covers

    @property
    def field_ids(self) -> tuple[int, ...]:
        FIELDS.check(len(self._message.fields), path=f"index {self.name}")
        return tuple(self._message.fields)

    @property
    def dataset_version(self) -> Version:
        """The version from whose rows it was built."""
        return Version(self._message.dataset_version)

    @property
    def kind(self) -> str:
        """The last part of the type's URL: `BTreeIndexDetails`."""
        return self._message.index_details.type_url.rpartition(".")[2]

    @property
    def stores_addresses(self) -> bool:
        """True if it stores row addresses, even in a table with stable row ids. It loses the rows that move."""
        return self._message.index_version >= _ROW_IDS_BELOW.get(self.kind.lower(), 0)

    @property
    def is_zone_based(self) -> bool:
        """True if it describes ranges of a fragment instead of rows, so that it cannot follow a row to another
        location."""
        return self.kind.lower() in _ZONE_BASED

    @property
    def follows_reuse(self) -> bool:
        """True if it stays correct when a fragment reuse index records where its rows moved."""
        return self._message.index_version < _FOLLOWS_REUSE_BELOW.get(self.kind.lower(), 0)

    @property
    def survives_remap(self) -> bool:
        """True if it stays correct even if another library later compacts and rewrites it immediately."""
        return self.follows_reuse and self.kind.lower() not in _BREAKS_WHEN_REMAPPED

    @property
    def covers(self) -> BitMap | None:
        """Fragment ids, including those of removed fragments; `None` if the coverage is not recorded."""
        if not self._message.fragment_bitmap:
            return None
        try:
            return BitMap.deserialize(self._message.fragment_bitmap)
        except ValueError as error:
            raise Corrupt("is not a Roaring bitmap", path=f"index {self.name}", field="fragment_bitmap") from error

    def with_rewrite(self, rewritten: "IndexMetadata") -> "IndexMetadata":
        """Return the segment with the uuid and files of its rewrite. Name, fields and the version it was built from
        stay."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        message.uuid.CopyFrom(rewritten.message.uuid)
        message.ClearField("base_id")
        if rewritten.base_id is not None:
            message.base_id = rewritten.base_id
        message.index_version = rewritten.message.index_version
        del message.files[:]
        message.files.extend(rewritten.message.files)
        if rewritten.message.HasField("index_details"):
            message.index_details.CopyFrom(rewritten.message.index_details)
        return IndexMetadata(message)

    def with_base(self, base_id: int | None) -> "IndexMetadata":
        """Return the segment for a table at another location: without a base, its files belong to this base now.
        `None` removes the base."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        if base_id is None:
            message.ClearField("base_id")
        elif not message.HasField("base_id"):
            message.base_id = base_id
        return IndexMetadata(message)

    def with_checksums(self, checksums: Mapping[str, FileChecksum]) -> "IndexMetadata | None":
        """Return the segment with the checksums of files that have none, by qualified path; `None` if there are none to
        add."""
        recorded = [each.checksum or checksums.get(f"{self.qualified_path}/{each.path}") for each in self.files]
        if recorded == [each.checksum for each in self.files]:
            return None
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        for file, checksum in zip(message.files, recorded, strict=True):
            if checksum is not None and checksum.xxh3 is not None:
                file.size_bytes, file.xxh3 = checksum.size, checksum.xxh3
        return IndexMetadata(message)

    def with_coverage(self, fragments: BitMap) -> "IndexMetadata":
        """Return the segment with another coverage. The empty set is encoded explicitly, since no bytes would mean
        unknown."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        message.fragment_bitmap = fragments.serialize()
        return IndexMetadata(message)


def decode_section(data: bytes | None, *, path: str) -> tuple[IndexMetadata, ...]:
    if data is None:
        return ()
    size_guard.check_message(data, path=path, kind=table_pb2.IndexSection)
    try:
        segments = table_pb2.IndexSection.FromString(data).indices
    except DecodeError as error:
        raise Corrupt("the index section does not parse", path=path, field="index_section") from error
    INDICES.check(len(segments), path=path)
    return tuple(map(IndexMetadata, segments))


def encode_section(indices: Sequence[IndexMetadata]) -> bytes | None:
    """Encode the index section; `None` if there are no indices, so that the section is omitted."""
    if not indices:
        return None
    return table_pb2.IndexSection(indices=(index.message for index in indices)).SerializeToString()
