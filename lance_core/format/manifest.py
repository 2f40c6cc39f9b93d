"""One version of a table, as its manifest says: a read-only view over the bytes of the manifest file.

What lives here: `Manifest`, decoding it from a whole file and framing a new one. Opening parses the outline
(`manifest_header.py`); the fragments are parsed when somebody asks, once, in C. Neither is mutated: whoever makes the
next version takes a copy of the outline (`Manifest.copy_header`) and frames it (`Manifest.from_header`). What the next version
contains is decided in `transactions/apply.py`.

Opening checks what costs nothing at any size: framing, version, flags. A fragment is checked when it is
touched.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import overload

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import features, framing, manifest_header, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.base_path import BasePath, decode_bases
from lance_core.format.fragment import Fragment, StorageVersion, live_rows
from lance_core.format.hash_chain import ParentHash
from lance_core.format.ids import Version
from lance_core.format.index_metadata import IndexMetadata, decode_section
from lance_core.format.schema import TableSchema
from lance_core.limits import FRAGMENTS

FRAGMENT_ID_MAX = 2**32 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fragments(Sequence[Fragment]):
    """The fragments of a version, in scan order; a view is made for each one that is asked for."""

    _manifest: "Manifest"

    def __len__(self) -> int:
        return len(self._manifest.message.fragments)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Fragment]: ...
    def __getitem__(self, index: int | slice) -> Fragment | Sequence[Fragment]:
        fragments = self._manifest.message.fragments
        if isinstance(index, int):
            return Fragment(fragments[index])
        return tuple(map(Fragment, fragments[index]))

    def __iter__(self) -> Iterator[Fragment]:
        return map(Fragment, self._manifest.message.fragments)


class Manifest:
    """
    >>> Manifest.decode(b"LANC", path="_versions/1.manifest")
    Traceback (most recent call last):
    lance_core.errors.Corrupt: _versions/1.manifest: 4 bytes are too few for a manifest
    """

    def __init__(self, message: table_pb2.Manifest, file: bytes, *, path: str) -> None:
        self._header = message
        self._file = file
        self.path = path

    @classmethod
    def decode(cls, file: bytes, *, path: str, version: Version | None = None) -> "Manifest":
        """Parse a whole manifest file; `version` is what its name promises."""
        body = framing.extract_manifest_message(file, path=path)
        size_guard.check_message(body, path=path)
        try:
            message = manifest_header.parse(body)
        except DecodeError as error:
            raise Corrupt("the manifest message does not parse", path=path, field="manifest") from error
        if message.version < 1 or (version is not None and message.version != version):
            raise Corrupt(f"says it is version {message.version}, its name says {version}", path=path, field="version")
        features.check_readable(message.reader_feature_flags, message.writer_feature_flags, what=path)
        return cls(message, file, path=path)

    @classmethod
    def from_header(
        cls,
        message: table_pb2.Manifest,
        *,
        index_section: bytes | None,
        transaction: bytes | None,
        path: str,
        dictionaries: bytes = b"",
    ) -> "Manifest":
        """A new version's manifest, from its outline. Offsets are of this file alone, so all three are set or cleared
        here."""
        at = framing.section_offsets(index_section, transaction, before=dictionaries)
        for name, position in (("index_section", at.index_section), ("transaction_section", at.transaction)):
            if position is None:
                message.ClearField(name)
            else:
                setattr(message, name, position)
        message.ClearField("legacy_transaction_section")
        body = message.SerializeToString()
        return cls(message, framing.frame_manifest(index_section, transaction, body, before=dictionaries), path=path)

    @cached_property
    def message(self) -> table_pb2.Manifest:
        """All of it, for the rooms that read in bulk; never changed in place."""
        try:
            message = table_pb2.Manifest.FromString(framing.extract_manifest_message(self._file, path=self.path))
        except DecodeError as error:
            raise self._unparsable_fragment_error() from error
        FRAGMENTS.check(len(message.fragments), path=self.path)
        return message

    @property
    def has_writer(self) -> bool:
        """Whether its writer says who it is. Those that did not are not believed what they count."""
        return self._header.HasField("writer_version")

    @property
    def library(self) -> str:
        """The library that made this version, as it calls itself; empty where it did not say."""
        return self._header.writer_version.library

    @property
    def writer(self) -> str:
        """That library, with its version."""
        return f"{self.library} {self._header.writer_version.version}".strip()

    def header(self) -> bytes:
        """This version as a file, without fragments, indices and transaction: what is true of every part of it."""
        alone = manifest_header.without_fragments(self._header)
        return Manifest.from_header(alone, index_section=None, transaction=None, path=self.path)._file

    def with_fragments(self, fragments: Iterable[Fragment]) -> "Manifest":
        """This version, its fragments told better than its file tells them."""
        outlined = manifest_header.without_fragments(self._header)
        manifest_header.add_fragments(outlined, (fragment.message for fragment in fragments))
        better = Manifest(outlined, self._file, path=self.path)
        better.message = table_pb2.Manifest.FromString(outlined.SerializeToString())
        return better

    def copy_header(self) -> table_pb2.Manifest:
        """A copy of the outline that the maker of the next version may change."""
        return manifest_header.copy(self._header)

    def encode(self) -> bytes:
        """The bytes of the manifest file."""
        return self._file

    @cached_property
    def as_parent(self) -> ParentHash:
        """What a version that is made upon this one tells of it: of the file as it is on the store."""
        return ParentHash(self.version, hashlib.sha256(self._file).hexdigest())

    @property
    def index_section(self) -> bytes | None:
        if not self._header.HasField("index_section"):
            return None
        return framing.read_section(self._file, self._header.index_section, path=self.path, field="index_section")

    @property
    def dictionaries(self) -> bytes:
        """The values of dictionary columns in a table of format 0.1: what lies before all sections. Their positions are
        counted from the start of the file, so in the file of the next version they lie there too."""
        if not any(field.dictionary.length for field in self._header.fields):
            return b""
        sections = ("index_section", "transaction_section", "legacy_transaction_section")
        starts = [getattr(self._header, name) for name in sections if self._header.HasField(name)]
        size = len(self._file)
        starts.append(framing.find_manifest_position(self._file[-framing.FOOTER.size :], size=size, path=self.path))
        return self._file[: min(starts)]

    @property
    def inline_transaction(self) -> bytes | None:
        """Newer writers name its place in one field, older ones in another; a wrong place is an error."""
        for name in ("transaction_section", "legacy_transaction_section"):
            if self._header.HasField(name):
                return framing.read_section(self._file, getattr(self._header, name), path=self.path, field=name)
        return None

    @property
    def version(self) -> Version:
        return Version(self._header.version)

    @property
    def timestamp(self) -> datetime:
        """When it was made, by its committer's clock: it may run backwards from version to version."""
        stamp = self._header.timestamp
        try:
            return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
        except OverflowError as error:
            raise Corrupt(
                f"was made {stamp.seconds} seconds after 1970, which is no date", path=self.path, field="timestamp"
            ) from error

    @property
    def fragments(self) -> Fragments:
        return Fragments(self)

    @cached_property
    def schema(self) -> TableSchema:
        return TableSchema.decode(self._header.fields, self._header.schema_metadata, path=self.path)

    @property
    def max_fragment_id(self) -> int:
        """The highest id ever given out; -1 while no fragment has ever existed."""
        if self._header.HasField("max_fragment_id"):
            return self._header.max_fragment_id
        highest = max((fragment.id for fragment in self.message.fragments), default=-1)
        if highest > FRAGMENT_ID_MAX:
            raise self._id_too_large_error(highest)
        return highest

    @property
    def next_row_id(self) -> int:
        return self._header.next_row_id

    @property
    def has_stable_row_ids(self) -> bool:
        return bool(self._header.reader_feature_flags & features.Feature.STABLE_ROW_IDS)

    @property
    def storage_version(self) -> StorageVersion:
        """What new data files are written as;
        taken from the first file where an old manifest does not say."""
        try:
            if self._header.data_format.version:
                return StorageVersion.parse(self._header.data_format.version)
        except ValueError as error:
            raise Corrupt(str(error), path=self.path, field="data_format.version") from error
        for fragment in self.fragments:
            for file in fragment.files:
                return file.version
        if self._header.reader_feature_flags & features.Feature.V2_FORMAT_HINT:
            return StorageVersion(2, 0)
        return StorageVersion(0, 1)

    @property
    def config(self) -> Mapping[str, str]:
        return MappingProxyType(dict(self._header.config))

    @property
    def table_metadata(self) -> Mapping[str, str]:
        return MappingProxyType(dict(self._header.table_metadata))

    @cached_property
    def indices(self) -> tuple[IndexMetadata, ...]:
        """One entry a segment; segments of one index share a name."""
        return decode_section(self.index_section, path=self.path)

    @property
    def base_paths(self) -> tuple[BasePath, ...]:
        return decode_bases(self._header.base_paths)

    @property
    def branch(self) -> str | None:
        return self._header.branch if self._header.HasField("branch") else None

    @property
    def transaction_file(self) -> str | None:
        return self._header.transaction_file or None

    def row_count(self) -> int:
        """Live rows, from the counts that the manifest itself carries."""
        total = 0
        seen: set[int] = set()
        for fragment in self.message.fragments:
            if not fragment.physical_rows:
                raise Unsupported(
                    f"{self.path}: fragment {fragment.id} does not say how many rows it has; a table this "
                    "old has to be committed to once by a current Lance"
                )
            seen.add(fragment.id)
            try:
                total += live_rows(fragment)
            except Corrupt as error:
                raise Corrupt(f"{error.path} {error.what}", path=self.path, field=error.field) from error
        if len(seen) < len(self.message.fragments):
            raise self._duplicate_fragment_error()
        return total

    def check_ids(self) -> None:
        """That every fragment can have its id, and none is listed twice: its rows would be read twice. Looks at every
        one of them."""
        ids = {fragment.id for fragment in self.message.fragments}
        if (highest := max(ids, default=0)) > FRAGMENT_ID_MAX:
            raise self._id_too_large_error(highest)
        if len(ids) < len(self.message.fragments):
            raise self._duplicate_fragment_error()

    def check_last_fragment_id(self) -> None:
        """That the id of the last fragment was given out, so that the next one is not somebody's already. Writers list
        fragments by their ids; where they are all looked at anyway, `check_ids` and a draft ask more."""
        if not self._header.HasField("max_fragment_id"):
            return
        try:
            last = manifest_header.last_fragment_id(framing.extract_manifest_message(self._file, path=self.path))
        except DecodeError as error:
            raise self._unparsable_fragment_error() from error
        if last is not None and last > self.max_fragment_id:
            raise unassigned_id_error(last, self.max_fragment_id, path=self.path)

    def _unparsable_fragment_error(self) -> Corrupt:
        return Corrupt("a fragment of the manifest does not parse", path=self.path, field="fragments")

    def _id_too_large_error(self, fragment_id: int) -> Corrupt:
        return Corrupt(f"fragment id {fragment_id} does not fit 32 bits", path=self.path, field="fragments")

    def _duplicate_fragment_error(self) -> Corrupt:
        twice, seen = -1, set[int]()
        for fragment in self.message.fragments:
            if fragment.id in seen:
                twice = fragment.id
                break
            seen.add(fragment.id)
        return Corrupt(f"lists fragment {twice} twice", path=self.path, field="fragments")

    def check_writable(self) -> None:
        features.check_writable(self._header.writer_feature_flags, what=self.path)
        if self._header.max_fragment_id >= FRAGMENT_ID_MAX:
            raise Unsupported(
                f"{self.path}: the ids of fragments are used up, the last one given out is "
                f"{self._header.max_fragment_id}; copy the rows into a new table"
            )


def unassigned_id_error(fragment_id: int, last: int, *, path: str) -> Corrupt:
    return Corrupt(
        f"holds fragment {fragment_id}, and max_fragment_id is {last}: the next id would be given out twice. Let Lance "
        "itself commit anything, which counts anew, and go on then",
        path=path,
        field="max_fragment_id",
    )
