"""The index section of a manifest: what indices a version has, and what they cover. Views, as fragments are.

Several entries may share a name: they are segments of one index. A version's section is complete, not a delta, so a
commit that forgot to carry it would drop every index.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format import naming, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.base_path import qualify_path
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
"""Below this version a kind stores row ids, from it on addresses. The others store addresses, or nobody knows."""
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
"""Below this version, readers of a kind find its rows through a fragment reuse index. Those of the others do not, or
nobody knows: pylance 14 answers wrongly from an FM index."""
_BREAKS_WHEN_REMAPPED = frozenset(
    {"btreeindexdetails", "invertedindexdetails", "jsonindexdetails", "ngramindexdetails"}
)
"""Kinds whose rows pylance 14 loses where it rewrites the index at once over a fragment reuse index that it depends
on, as `compact_files()` does."""
_ZONE_BASED = frozenset({"zonemapindexdetails", "bloomfilterindexdetails"})


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a segment, below its directory."""

    path: str
    size: int


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
            files=(table_pb2.IndexFile(path=file.path, size_bytes=file.size) for file in files),
        )
        message.uuid.uuid = identity.bytes
        message.index_details.type_url = type_url
        message.index_details.value = details
        return cls(message)

    def with_contents(self, details: bytes, files: Iterable[SegmentFile]) -> "IndexMetadata":
        """With what is known once its files are written."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        message.index_details.value = details
        del message.files[:]
        message.files.extend(table_pb2.IndexFile(path=file.path, size_bytes=file.size) for file in files)
        return IndexMetadata(message)

    @classmethod
    def decode(cls, data: bytes) -> "IndexMetadata":
        """What `encode` gave, in the same application."""
        return cls(table_pb2.IndexMetadata.FromString(data))

    def encode(self) -> bytes:
        return self._message.SerializeToString()

    @property
    def message(self) -> table_pb2.IndexMetadata:
        """For the rooms that build manifests and transactions; never changed in place."""
        return self._message

    @property
    def uuid(self) -> uuid.UUID:
        """Also the name of its directory."""
        data = self._message.uuid.uuid
        if len(data) != 16:
            raise Corrupt(f"its uuid has {len(data)} bytes, not 16", path=f"index {self.name}", field="uuid")
        return uuid.UUID(bytes=data)

    @property
    def base_id(self) -> int | None:
        return self._message.base_id if self._message.HasField("base_id") else None

    @property
    def qualified_path(self) -> str:
        """Its directory, relative to the table's root; under its base's number where it is somebody else's."""
        return qualify_path(self.base_id, f"{naming.INDICES}/{self.uuid}")

    @property
    def file_names(self) -> tuple[str, ...]:
        """Below its directory; none where an older writer listed none."""
        for file in self._message.files:
            if not naming.is_confined(file.path):
                raise Corrupt("a file of an index leaves its directory", path=repr(file.path), field="files")
        return tuple(file.path for file in self._message.files)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        """None where an older writer listed none."""
        sizes = (file.size_bytes for file in self._message.files)
        return tuple(SegmentFile(path, size) for path, size in zip(self.file_names, sizes, strict=True))

    @property
    def created_at(self) -> datetime | None:
        """None where its writer did not tell, and where it told a time that cannot be."""
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
    def field_ids(self) -> tuple[int, ...]:
        FIELDS.check(len(self._message.fields), path=f"index {self.name}")
        return tuple(self._message.fields)

    @property
    def dataset_version(self) -> Version:
        """The version whose rows it was built from."""
        return Version(self._message.dataset_version)

    @property
    def kind(self) -> str:
        """The last part of its type's URL: `BTreeIndexDetails`."""
        return self._message.index_details.type_url.rpartition(".")[2]

    @property
    def stores_addresses(self) -> bool:
        """Whether it says where rows are, even in a table with stable row ids: then it is lost where they move."""
        return self._message.index_version >= _ROW_IDS_BELOW.get(self.kind.lower(), 0)

    @property
    def is_zone_based(self) -> bool:
        """It knows stretches of a fragment, not rows: nothing of it can follow a row to another place."""
        return self.kind.lower() in _ZONE_BASED

    @property
    def follows_reuse(self) -> bool:
        """Whether it stays right where a fragment reuse index says where its rows went."""
        return self._message.index_version < _FOLLOWS_REUSE_BELOW.get(self.kind.lower(), 0)

    @property
    def survives_remap(self) -> bool:
        """Whether it stays right even where somebody who compacts later rewrites it at once."""
        return self.follows_reuse and self.kind.lower() not in _BREAKS_WHEN_REMAPPED

    @property
    def covers(self) -> BitMap | None:
        """Fragment ids, dead ones included; None where nobody noted them."""
        if not self._message.fragment_bitmap:
            return None
        try:
            return BitMap.deserialize(self._message.fragment_bitmap)
        except ValueError as error:
            raise Corrupt("is not a Roaring bitmap", path=f"index {self.name}", field="fragment_bitmap") from error

    def with_rewrite(self, rewritten: "IndexMetadata") -> "IndexMetadata":
        """Under a new uuid with new files; name, fields and the version it was built from stay."""
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
        """For a table at another place: without a base, its files are in this one now. With None, in the table."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        if base_id is None:
            message.ClearField("base_id")
        elif not message.HasField("base_id"):
            message.base_id = base_id
        return IndexMetadata(message)

    def with_coverage(self, fragments: BitMap) -> "IndexMetadata":
        """The same segment with another coverage. The empty set is written out: no bytes would mean unknown."""
        message = table_pb2.IndexMetadata()
        message.CopyFrom(self._message)
        message.fragment_bitmap = fragments.serialize()
        return IndexMetadata(message)


def decode_section(data: bytes | None, *, path: str) -> tuple[IndexMetadata, ...]:
    if data is None:
        return ()
    size_guard.check_message(data, path=path)
    try:
        segments = table_pb2.IndexSection.FromString(data).indices
    except DecodeError as error:
        raise Corrupt("the index section does not parse", path=path, field="index_section") from error
    INDICES.check(len(segments), path=path)
    return tuple(map(IndexMetadata, segments))


def encode_section(indices: Sequence[IndexMetadata]) -> bytes | None:
    """None for no indices: the section is then left out."""
    if not indices:
        return None
    return table_pb2.IndexSection(indices=(index.message for index in indices)).SerializeToString()
