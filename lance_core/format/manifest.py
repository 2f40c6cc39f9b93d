"""Manifest: one version of a table, as a read-only view over the bytes of its manifest file.

`Manifest` decodes a whole manifest file and assembles a new one. Opening parses only the header (`manifest_file.py`);
the fragments are parsed in C on first access. A manifest is never changed in place: a successor starts from a copy of
the header (`Manifest.copy_header`) and is assembled from it (`Manifest.from_header`). `transactions/apply.py` decides
what the next version contains.

Opening checks framing, version and flags, at a cost that does not grow with the table. A fragment is checked before its
rows are read.

Parent hashes link the versions in a hash chain. The format has no checksum, and a manifest with one flipped bit may
decode as a different valid table. So every version that this library writes records its parent and the SHA-256 of the
parent's whole manifest file in the properties of its transaction:

    lance_assets.parent = "41 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb22cd15d6c15b0f00a08"

Other engines carry the property along and ignore it. A value of another form is kept as a parent with version 0,
which no version can match. `transactions/apply.py` sets the property, `fsck/hash_chain.py` verifies it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import overload
from weakref import ref

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import features, fragment_weight, manifest_file
from lance_core.format._pb import table_pb2
from lance_core.format.base_path import BasePath, decode_bases
from lance_core.format.fragment import Fragment, StorageVersion, live_rows
from lance_core.format.fragment_records import (
    Difference,
    FragmentRecords,
    find_difference,
    unparsable_fragment_error,
)
from lance_core.format.ids import FRAGMENT_ID_MAX, Version
from lance_core.format.index_metadata import IndexMetadata, decode_section
from lance_core.format.overlay import known_coverage
from lance_core.format.schema import TableSchema
from lance_core.format.size_guard import is_small
from lance_core.limits import FIELDS, FRAGMENTS, INDICES

FILE_FORMAT = "lance"
"""The name of the only format of data files, which each version records."""
PARENT = "lance_assets.parent"
"""The transaction property that holds the parent hash."""
PARENT_BYTES_MAX = 256
"""The maximum number of bytes that the property adds to a transaction."""
_PATTERN = re.compile(r"([1-9][0-9]{0,18}) sha256:([0-9a-f]{64})")
_SHOWN_MAX = 80
_SHOWN_FRAGMENTS = 5
_KNOWN_DIFFERENCE_MAX = 1000
"""Maximum number of fragments of a difference that stays in memory."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ParentHash:
    version: Version
    sha256: str

    @classmethod
    def of(cls, text: str) -> "ParentHash":
        """Parse a property value. A value of another form gets version 0.

        >>> ParentHash.of("written by another engine").version
        0
        """
        matched = _PATTERN.fullmatch(text)
        return cls(Version(int(matched[1])), matched[2]) if matched else cls(Version(0), text)

    def __str__(self) -> str:
        return f"{self.version} sha256:{self.sha256}" if self.version else self.sha256


@dataclass(frozen=True, slots=True)
class Fragments(Sequence[Fragment]):
    """The fragments of a version, in scan order. A view is created for each fragment that is accessed."""

    _manifest: "Manifest"

    def __repr__(self) -> str:
        first = ", ".join(map(repr, self[:_SHOWN_FRAGMENTS]))
        more = f", … {len(self):,} in all" if len(self) > _SHOWN_FRAGMENTS else ""
        return f"[{first}{more}]"

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
    """Read-only view of one version's manifest.

    >>> Manifest.decode(b"LANC", path="_versions/1.manifest")
    Traceback (most recent call last):
    lance_core.errors.Corrupt: _versions/1.manifest: is 4 bytes long, which is too short for a manifest
    """

    def __init__(self, message: table_pb2.Manifest, file: bytes, *, path: str) -> None:
        self._header = message
        self._file = file
        self.path = path
        self._has_other_fragments = False
        """True if the fragments are not those of the file."""
        self._known_difference: tuple[ref[Manifest], Difference] | None = None

    def __repr__(self) -> str:
        try:
            parts = f", fragments={len(self.fragments)}, columns={self.schema.arrow.names}, writer={self.writer!r}"
        except (Corrupt, Unsupported):  # a representation must not raise
            parts = ""
        return f"Manifest(version={self.version}{parts})"

    @classmethod
    def decode(cls, file: bytes, *, path: str, version: Version | None = None) -> "Manifest":
        """Parse a whole manifest file. `version` is the version that its name states."""
        body = manifest_file.extract_manifest_message(file, path=path)
        if not is_small(body):
            fragment_weight.check_manifest(body, path=path)
        try:
            message = manifest_file.parse_header(body)
        except DecodeError as error:
            raise Corrupt("the manifest message does not parse", path=path, field="manifest") from error
        if message.version < 1 or (version is not None and message.version != version):
            raise Corrupt(
                f"contains version {message.version}, but its name states {version}", path=path, field="version"
            )
        features.check_readable(message.reader_feature_flags, message.writer_feature_flags, what=path)
        if message.data_format.file_format not in ("", FILE_FORMAT):
            raise Unsupported(
                f"{path} stores its data files in the format {message.data_format.file_format[:_SHOWN_MAX]!r}; this "
                f"library reads and writes only {FILE_FORMAT!r} files"
            )
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
        """Assemble the manifest file of a new version. Section offsets apply to this file alone, so all three are set
        or cleared here."""
        offsets = manifest_file.section_offsets(index_section, transaction, before=dictionaries)
        for name, position in (("index_section", offsets.index_section), ("transaction_section", offsets.transaction)):
            if position is None:
                message.ClearField(name)
            else:
                setattr(message, name, position)
        message.ClearField("legacy_transaction_section")
        body = message.SerializeToString()
        return cls(
            message, manifest_file.frame_manifest(index_section, transaction, body, before=dictionaries), path=path
        )

    @cached_property
    def message(self) -> table_pb2.Manifest:
        """The whole message, for packages that read in bulk; never changed in place."""
        try:
            message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(self._file, path=self.path))
        except DecodeError as error:
            raise unparsable_fragment_error(self.path) from error
        FRAGMENTS.check(len(message.fragments), path=self.path)
        return message

    def fragment_records(self) -> FragmentRecords:
        """Return the encoded fragments, for work that must not parse all of them."""
        if self._has_other_fragments:
            return FragmentRecords(self._header.SerializeToString(), path=self.path)
        return FragmentRecords(manifest_file.extract_manifest_message(self._file, path=self.path), path=self.path)

    def difference_from(self, before: "Manifest") -> Difference:
        """Return the fragments in which this version differs from another one."""
        known = self._known_difference
        if known is not None and known[0]() is before:
            return known[1]
        difference = find_difference(before.fragment_records(), self.fragment_records())
        if len(difference.removed) + len(difference.added) <= _KNOWN_DIFFERENCE_MAX:
            self._known_difference = ref(before), difference
        return difference

    @property
    def has_writer(self) -> bool:
        """True if the writer is recorded. Row counts of a manifest without it are not trusted."""
        return self._header.HasField("writer_version")

    @property
    def library(self) -> str:
        """The name of the library that wrote this version; empty if it is not recorded."""
        return self._header.writer_version.library

    @property
    def writer(self) -> str:
        """The library with its semantic version, which newer writers store in three fields.

        A version with a pre-release and a build reads like `lance 14.0.2-rc.1+build.123`.
        """
        version = self._header.writer_version
        prerelease = f"-{version.prerelease}" if version.prerelease else ""
        build = f"+{version.build_metadata}" if version.build_metadata else ""
        return f"{self.library} {version.version}{prerelease}{build}".strip()

    def header(self) -> bytes:
        """Return this version as a manifest file without fragments, indices and transaction, for workers that get
        their fragments separately."""
        header = manifest_file.without_fragments(self._header)
        return Manifest.from_header(header, index_section=None, transaction=None, path=self.path)._file

    def with_fragments(self, fragments: Iterable[Fragment]) -> "Manifest":
        """Return this version with these fragments instead of those in its file, such as ones with counted rows."""
        header = manifest_file.without_fragments(self._header)
        manifest_file.add_fragments(header, (fragment.message for fragment in fragments))
        manifest = Manifest(header, self._file, path=self.path)
        manifest._has_other_fragments = True
        manifest.message = table_pb2.Manifest.FromString(header.SerializeToString())
        return manifest

    def copy_header(self) -> table_pb2.Manifest:
        """Return a copy of the header, which the builder of the next version may change."""
        return manifest_file.copy_header(self._header)

    def encode(self) -> bytes:
        """Return the bytes of the manifest file."""
        return self._file

    @cached_property
    def as_parent(self) -> ParentHash:
        """The parent hash that a successor of this version records: that of the file as it is stored."""
        return ParentHash(self.version, hashlib.sha256(self._file).hexdigest())

    @property
    def index_section(self) -> bytes | None:
        if not self._header.HasField("index_section"):
            return None
        return manifest_file.read_section(self._file, self._header.index_section, path=self.path, field="index_section")

    @property
    def dictionaries(self) -> bytes:
        """The values of dictionary columns in a table of format 0.1, which precede all sections. Their positions
        count from the start of the file, so the file of the next version has them at the same position."""
        if self._header.data_format.version and not self.storage_version.is_legacy:
            return b""
        if not any(field.dictionary.length for field in self._header.fields):
            return b""
        sections = ("index_section", "transaction_section", "legacy_transaction_section")
        starts = [getattr(self._header, name) for name in sections if self._header.HasField(name)]
        size = len(self._file)
        starts.append(
            manifest_file.find_manifest_position(self._file[-manifest_file.FOOTER.size :], size=size, path=self.path)
        )
        return self._file[: min(starts)]

    @property
    def inline_transaction(self) -> bytes | None:
        """The inline transaction, or `None`. Newer and older writers store its position in different fields; an
        invalid position raises `Corrupt`."""
        for name in ("transaction_section", "legacy_transaction_section"):
            if self._header.HasField(name):
                return manifest_file.read_section(self._file, getattr(self._header, name), path=self.path, field=name)
        return None

    @property
    def version(self) -> Version:
        return Version(self._header.version)

    @property
    def timestamp(self) -> datetime:
        """The commit time by the committer's clock; it may run backwards from version to version."""
        stamp = self._header.timestamp
        try:
            return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
        except OverflowError as error:
            raise Corrupt(
                f"has the invalid timestamp of {stamp.seconds} seconds after 1970", path=self.path, field="timestamp"
            ) from error

    @property
    def fragments(self) -> Fragments:
        return Fragments(self)

    @cached_property
    def schema(self) -> TableSchema:
        return TableSchema.decode(self._header.fields, self._header.schema_metadata, path=self.path)

    @property
    def max_fragment_id(self) -> int:
        """The highest fragment id ever assigned; -1 if no fragment has ever existed."""
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
    def has_overlays(self) -> bool:
        """True if overlay files (`overlay.py`) replace values of some fragments."""
        return bool(self._header.reader_feature_flags & features.Feature.DATA_OVERLAYS)

    @property
    def storage_version(self) -> StorageVersion:
        """The version in which new data files are written. If an old manifest does not record it, it is that of the
        first file."""
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
        """One entry for each segment; the segments of one index share a name. They do not cover fragments whose
        overlays they do not know."""
        indices = decode_section(self.index_section, path=self.path)
        return known_coverage(indices, self.message.fragments, self.schema) if self.has_overlays else indices

    @property
    def base_paths(self) -> tuple[BasePath, ...]:
        return decode_bases(self._header.base_paths) if self._header.base_paths else ()

    @property
    def branch(self) -> str | None:
        return self._header.branch if self._header.HasField("branch") else None

    @property
    def transaction_file(self) -> str | None:
        return self._header.transaction_file or None

    def row_count(self) -> int:
        """Return the number of live rows, from the counts in the manifest."""
        if (rows := self.fragment_records().count_rows()) is not None:
            return rows
        total = 0
        seen: set[int] = set()
        for fragment in self.message.fragments:
            if not fragment.physical_rows:
                raise Unsupported(
                    f"{self.path}: fragment {fragment.id} does not record its number of rows; commit to this old "
                    "table once with a current version of Lance, which adds the counts"
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
        """Check that every fragment has a valid id and none is listed twice, since its rows would be read twice. The
        check reads every fragment."""
        ids = {fragment.id for fragment in self.message.fragments}
        if (highest := max(ids, default=0)) > FRAGMENT_ID_MAX:
            raise self._id_too_large_error(highest)
        if len(ids) < len(self.message.fragments):
            raise self._duplicate_fragment_error()

    def check_last_fragment_id(self) -> None:
        """Check that the id of the last fragment was assigned, so that the next id is unused. Writers list fragments
        by ascending id. `check_ids` and a `ManifestBuilder`, which read all fragments, check more."""
        if not self._header.HasField("max_fragment_id"):
            return
        try:
            last = manifest_file.last_fragment_id(manifest_file.extract_manifest_message(self._file, path=self.path))
        except DecodeError as error:
            raise unparsable_fragment_error(self.path) from error
        if last is not None and last > self.max_fragment_id:
            raise unassigned_id_error(last, self.max_fragment_id, path=self.path)

    def check_caps(self) -> None:
        """Raise `Unsupported` if a reader with the caps of this process would refuse this version. The builder checks
        the fragments that it changes."""
        body = manifest_file.extract_manifest_message(self._file, path=self.path)
        if not is_small(body):
            fragment_weight.check_manifest(body, path=self.path)
        FIELDS.check(len(self._header.fields), path=self.path)
        # Parsing takes long, and fewer ids or bytes cannot exceed the caps.
        if self.max_fragment_id >= FRAGMENTS.maximum:
            FRAGMENTS.check(len(self.message.fragments), path=self.path)
        if len(self.index_section or b"") > INDICES.maximum:
            INDICES.check(len(self.indices), path=self.path)

    def _id_too_large_error(self, fragment_id: int) -> Corrupt:
        return Corrupt(f"fragment id {fragment_id} does not fit 32 bits", path=self.path, field="fragments")

    def _duplicate_fragment_error(self) -> Corrupt:
        repeated, seen = -1, set[int]()
        for fragment in self.message.fragments:
            if fragment.id in seen:
                repeated = fragment.id
                break
            seen.add(fragment.id)
        return Corrupt(f"lists fragment {repeated} twice", path=self.path, field="fragments")

    def check_writable(self) -> None:
        features.check_writable(self._header.writer_feature_flags, what=self.path)
        if self._header.max_fragment_id >= FRAGMENT_ID_MAX:
            raise Unsupported(
                f"{self.path}: all fragment ids are used, the last assigned one is "
                f"{self._header.max_fragment_id}; copy the rows into a new table"
            )


def unassigned_id_error(fragment_id: int, last: int, *, path: str) -> Corrupt:
    """Return the error for a fragment whose id is above `max_fragment_id`."""
    return Corrupt(
        f"contains fragment {fragment_id}, but max_fragment_id is {last}, so an id would be assigned twice. Make any "
        "commit with Lance itself, which recomputes the number, and retry",
        path=path,
        field="max_fragment_id",
    )
