"""Fragments: read-only views over the protobuf messages of fragments, data files and deletion files.

These are views, not copies: a manifest may hold 100,000 fragments, and one Python object for each would cost more
than everything else that opening a table does. A view is created only for a fragment that is accessed. `of` creates
new ones.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt
from lance_core.format import naming, size_guard
from lance_core.format._pb import table_pb2
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.ids import FragmentId, Version
from lance_core.limits import DELETED_ROWS, FIELDS, FILES_OF_A_FRAGMENT

_U32_MAX = 2**32 - 1
TOMBSTONE = -2
"""The entry of `DataFile.field_ids` for a dead column of a file: it was dropped or is stored elsewhere now."""
UNASSIGNED = -1
"""The entry of `DataFile.field_ids` that writers use in memory for a field without an id. It is never stored."""
NO_COLUMN = -1
"""The entry of `DataFile.column_indices` for a field without a column of its own: a parent, whose leaves have
columns."""


@dataclass(frozen=True, slots=True, order=True)
class StorageVersion:
    """The version of the data file format, which a manifest writes as `2.2` and a file as (2, 2)."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> "StorageVersion":
        if text in ("0.1", "legacy"):
            return cls(0, 1)
        major, _, minor = text.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise ValueError(f"{text!r} is not a storage version such as '2.2'")
        return cls(int(major), int(minor))

    @classmethod
    def of_file(cls, major: int, minor: int) -> "StorageVersion":
        """Return the version stamped into a file. Early writers stamped 0.1 files as (0, 0..2) and 2.0 files as (0,
        3)."""
        if major == 0:
            return cls(2, 0) if minor == 3 else cls(0, 1)
        return cls(major, minor)

    @property
    def is_legacy(self) -> bool:
        return self.major == 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a fragment: the fields that it stores, and their columns in the file."""

    _message: table_pb2.DataFile

    @classmethod
    def of(
        cls,
        *,
        path: str,
        field_ids: Iterable[int],
        column_indices: Iterable[int],
        version: StorageVersion,
        size: int,
        xxh3: int | None = None,
    ) -> "DataFile":
        """Return the description of a file; `xxh3` is its hash."""
        return cls(
            table_pb2.DataFile(
                path=path,
                fields=field_ids,
                column_indices=column_indices,
                file_major_version=version.major,
                file_minor_version=version.minor,
                file_size_bytes=size,
                xxh3=xxh3,
            )
        )

    @property
    def message(self) -> table_pb2.DataFile:
        """The message, for packages that build manifests and transactions; never changed in place."""
        return self._message

    def without_fields(self, field_ids: Container[int]) -> "DataFile":
        """Return the same file with these fields marked as dead."""
        message = table_pb2.DataFile()
        message.CopyFrom(self._message)
        message.fields[:] = [TOMBSTONE if field_id in field_ids else field_id for field_id in self._message.fields]
        return DataFile(message)

    def with_size(self, size: int) -> "DataFile":
        """Return the file with another size, and without the hash, which is that of the whole file."""
        return self.with_checksum(FileChecksum(size, None))

    def with_checksum(self, checksum: FileChecksum) -> "DataFile":
        message = table_pb2.DataFile()
        message.CopyFrom(self._message)
        record_checksum(message, checksum)
        return DataFile(message)

    @property
    def path(self) -> str:
        """The path relative to `data/` of the file's base. Reading it raises `Corrupt` if it leaves that directory."""
        if not naming.is_confined(self._message.path):
            raise Corrupt("a data file's path leaves its directory", path=repr(self._message.path), field="path")
        return self._message.path

    @property
    def qualified_path(self) -> str:
        """The path relative to the table's root, prefixed with the id of the base if the file belongs to another
        table."""
        return naming.qualify_path(self.base_id, f"{naming.DATA}/{self.path}")

    @property
    def field_ids(self) -> tuple[int, ...]:
        FIELDS.check(len(self._message.fields), path=f"data file {self._message.path!r}")
        return tuple(self._message.fields)

    @property
    def column_indices(self) -> tuple[int, ...]:
        FIELDS.check(len(self._message.column_indices), path=f"data file {self._message.path!r}")
        return tuple(self._message.column_indices)

    @property
    def version(self) -> StorageVersion:
        return StorageVersion.of_file(self._message.file_major_version, self._message.file_minor_version)

    @property
    def size(self) -> int | None:
        return self._message.file_size_bytes or None

    @property
    def checksum(self) -> FileChecksum | None:
        """The checksum, or `None` if its writer recorded no hash, as other engines do not."""
        return checksum_of(self._message)

    @property
    def base_id(self) -> int | None:
        return self._message.base_id if self._message.HasField("base_id") else None


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """Location and size of the complete set of a fragment's deleted offsets."""

    _message: table_pb2.DeletionFile
    _fragment_id: FragmentId

    @property
    def is_bitmap(self) -> bool:
        return self._message.file_type == table_pb2.DeletionFile.BITMAP

    @property
    def path(self) -> str:
        suffix = "bin" if self.is_bitmap else "arrow"
        name = f"{self._fragment_id}-{self._message.read_version}-{self._message.id}.{suffix}"
        return f"{naming.DELETIONS}/{name}"

    @property
    def qualified_path(self) -> str:
        """The path relative to the table's root, prefixed with the id of the base if the file belongs to another
        table."""
        return naming.qualify_path(self.base_id, self.path)

    @property
    def deleted_rows(self) -> int | None:
        """The number of deleted rows, or `None` if an old writer did not record it."""
        return self._message.num_deleted_rows or None

    @property
    def checksum(self) -> FileChecksum | None:
        """The checksum, or `None` if its writer recorded no hash, as other engines do not."""
        return checksum_of(self._message)

    @property
    def base_id(self) -> int | None:
        return self._message.base_id if self._message.HasField("base_id") else None


StoredFile = table_pb2.DataFile | table_pb2.DeletionFile | table_pb2.IndexFile
"""Message that describes one file."""


def checksum_of(message: StoredFile) -> FileChecksum | None:
    """Return the recorded checksum of a file; `None` if no hash is recorded."""
    if not message.HasField("xxh3"):
        return None
    size = message.file_size_bytes if isinstance(message, table_pb2.DataFile) else message.size_bytes
    return FileChecksum(size, message.xxh3)


def record_checksum(message: StoredFile, checksum: FileChecksum | None) -> None:
    """Set the checksum in a message that is under construction. `None` removes what this library alone records."""
    message.ClearField("xxh3")
    if checksum is None:
        if isinstance(message, table_pb2.DeletionFile):
            message.ClearField("size_bytes")
        return
    if checksum.xxh3 is not None:
        message.xxh3 = checksum.xxh3
    if isinstance(message, table_pb2.DataFile):
        message.file_size_bytes = checksum.size
    else:
        message.size_bytes = checksum.size


@dataclass(frozen=True, slots=True)
class Fragment:
    """A horizontal slice of the table: the files that hold its columns, and the rows deleted from it."""

    _message: table_pb2.DataFragment

    @classmethod
    def of(cls, *, files: Iterable[DataFile], physical_rows: int) -> "Fragment":
        """Return a fragment that no version contains yet. Its id and its row ids are assigned when it is committed."""
        return cls(table_pb2.DataFragment(files=(file._message for file in files), physical_rows=physical_rows))

    @classmethod
    def decode(cls, data: bytes) -> "Fragment":
        try:
            return cls(table_pb2.DataFragment.FromString(data))
        except DecodeError as error:
            raise Corrupt("is not a fragment message", path="fragment", field="fragment") from error

    def __repr__(self) -> str:
        message = self._message
        rows, deleted = message.physical_rows, message.deletion_file.num_deleted_rows
        shown = f", deleted_rows={deleted}" if deleted else ""
        size = sum(file.file_size_bytes for file in message.files)
        return f"Fragment(id={message.id}, live_rows={rows - deleted}{shown}, files={len(message.files)}, bytes={size})"

    def encode(self) -> bytes:
        return self._message.SerializeToString()

    def with_files(self, files: Iterable[DataFile]) -> "Fragment":
        """Return the same rows, stored in other files."""
        changed = self._copy()
        del changed.files[:]
        changed.files.extend(file.message for file in files)
        return Fragment(changed)

    def with_deletion_file(
        self,
        *,
        is_bitmap: bool,
        read_version: Version,
        number: int,
        rows: int,
        checksum: FileChecksum | None = None,
    ) -> "Fragment":
        """Return the same files with another set of deleted rows. `number` makes the name of the deletion file
        unique."""
        changed = self._copy()
        kind = table_pb2.DeletionFile.BITMAP if is_bitmap else table_pb2.DeletionFile.ARROW_ARRAY
        deleted = table_pb2.DeletionFile(file_type=kind, read_version=read_version, id=number, num_deleted_rows=rows)
        record_checksum(deleted, checksum)
        changed.deletion_file.CopyFrom(deleted)
        return Fragment(changed)

    def with_deletions_of(self, other: "Fragment") -> "Fragment":
        """Return the same files with the deleted rows of another fragment."""
        changed = self._copy()
        changed.ClearField("deletion_file")
        if other.message.HasField("deletion_file"):
            changed.deletion_file.CopyFrom(other.message.deletion_file)
        return Fragment(changed)

    def with_id(self, fragment_id: int) -> "Fragment":
        """Return the fragment with an id that was reserved for it."""
        changed = self._copy()
        changed.id = fragment_id
        return Fragment(changed)

    def with_lineage(
        self,
        *,
        row_ids: bytes | None = None,
        created_at: bytes | None = None,
        last_updated_at: bytes | None = None,
    ) -> "Fragment":
        """Return the fragment with these sequences. `None` keeps the existing sequence."""
        changed = self._copy()
        if row_ids is not None:
            changed.inline_row_ids = row_ids
        if created_at is not None:
            changed.inline_created_at_versions = created_at
        if last_updated_at is not None:
            changed.inline_last_updated_at_versions = last_updated_at
        return Fragment(changed)

    def _copy(self) -> table_pb2.DataFragment:
        message = table_pb2.DataFragment()
        message.CopyFrom(self._message)
        return message

    @property
    def row_ids(self) -> bytes | None:
        """An encoded `RowIdSequence`."""
        return self._message.inline_row_ids if self._message.HasField("inline_row_ids") else None

    @property
    def created_at(self) -> bytes | None:
        """Encoded `RowVersions`: the version in which each row was created."""
        is_recorded = self._message.HasField("inline_created_at_versions")
        return self._message.inline_created_at_versions if is_recorded else None

    @property
    def last_updated_at(self) -> bytes | None:
        """Encoded `RowVersions`: the version in which each row last changed."""
        is_recorded = self._message.HasField("inline_last_updated_at_versions")
        return self._message.inline_last_updated_at_versions if is_recorded else None

    @property
    def message(self) -> table_pb2.DataFragment:
        """The message, for packages that build manifests and transactions; never changed in place."""
        return self._message

    @property
    def id(self) -> FragmentId:
        return FragmentId(self._message.id)

    @property
    def files(self) -> tuple[DataFile, ...]:
        files = tuple(map(DataFile, self._message.files))
        if len(files) > 1 and files[0].version.is_legacy:
            return _tombstone_repeated_ids(files)
        return files

    @property
    def deletion_file(self) -> DeletionFile | None:
        if not self._message.HasField("deletion_file"):
            return None
        return DeletionFile(self._message.deletion_file, self.id)

    @property
    def physical_rows(self) -> int:
        """The number of rows in the files, including deleted ones. Zero if an old writer did not record it."""
        return self._message.physical_rows

    @property
    def live_rows(self) -> int:
        return live_rows(self._message)

    @property
    def file_bytes(self) -> int:
        """The total size of the data files whose size is recorded."""
        return sum(file.size or 0 for file in self.files)

    @property
    def has_overlays(self) -> bool:
        """True if overlay files (`overlay.py`) replace some values of the data files."""
        return bool(self._message.overlays)

    def with_base(self, base_id: int | None) -> "Fragment":
        """Return the fragment for a table at another location: files without a base get this base. `None` removes all
        bases."""
        message = self._copy()
        stored: list[table_pb2.DataFile | table_pb2.DeletionFile] = [*message.files]
        stored += [overlay.data_file for overlay in message.overlays]
        if message.HasField("deletion_file"):
            stored.append(message.deletion_file)
        for file in stored:
            if base_id is None:
                file.ClearField("base_id")
            elif not file.HasField("base_id"):
                file.base_id = base_id
        return Fragment(message)

    def is_same(self, other: "Fragment") -> bool:
        """Return whether two descriptions of a fragment are equal. Checksums are left out: a commit of another engine
        drops them."""
        return self == other or self.without_checksums() == other.without_checksums()

    def has_same_files(self, other: "Fragment") -> bool:
        """Return whether two fragments have equal data files, apart from checksums."""
        return self.files == other.files or self.without_checksums().files == other.without_checksums().files

    def has_same_deletions(self, other: "Fragment") -> bool:
        """Return whether two states of a fragment have the same deletion file, or none."""
        if self.deletion_file == other.deletion_file:
            return True
        return self.without_checksums().deletion_file == other.without_checksums().deletion_file

    def with_checksums(self, checksums: Mapping[str, FileChecksum]) -> "Fragment | None":
        """Return the fragment with the checksums of files that have none, by qualified path; `None` if there are none
        to add."""
        overlays = (DataFile(overlay.data_file) for overlay in self._message.overlays)
        recorded = (*self.files, *overlays, self.deletion_file)
        files = [file for file in recorded if file is not None and file.checksum is None]
        added = {file.path: checksums[file.qualified_path] for file in files if file.qualified_path in checksums}
        if not added:
            return None
        message = self._copy()
        for data_file in (*message.files, *(overlay.data_file for overlay in message.overlays)):
            if data_file.path in added and not data_file.HasField("xxh3"):
                record_checksum(data_file, added[data_file.path])
        if self.deletion_file is not None and self.deletion_file.path in added:
            record_checksum(message.deletion_file, added[self.deletion_file.path])
        return Fragment(message)

    def without_checksums(self) -> "Fragment":
        """Return the fragment without checksums, as other engines describe it."""
        message = self._copy()
        for file in (*message.files, *(overlay.data_file for overlay in message.overlays)):
            record_checksum(file, None)
        if message.HasField("deletion_file"):
            record_checksum(message.deletion_file, None)
        return Fragment(message)

    def with_counts(self, physical_rows: int, deleted_rows: int) -> "Fragment":
        """Return the fragment with the row counts of its files in place of the recorded ones."""
        message = table_pb2.DataFragment()
        message.CopyFrom(self._message)
        message.physical_rows = physical_rows
        if message.HasField("deletion_file"):
            message.deletion_file.num_deleted_rows = deleted_rows
        return Fragment(message)

    def check_limits(self, *, path: str) -> None:
        """Check the id and the number of rows, which differ between fragments with the same file layout."""
        where = f"fragments[id={self._message.id}]"
        if self._message.id > _U32_MAX:
            raise Corrupt(f"fragment id {self.id} does not fit 32 bits", path=path, field=where)
        if self.physical_rows > _U32_MAX:
            raise Corrupt(f"{self.physical_rows} rows in one fragment do not fit 32 bits", path=path, field=where)

    def check_caps(self, *, path: str) -> None:
        """Raise `Unsupported` if a reader with the caps of this process would refuse the rows of the fragment."""
        message = self._message
        FILES_OF_A_FRAGMENT.check(len(message.files), path=path)
        DELETED_ROWS.check(message.deletion_file.num_deleted_rows, path=path)
        size_guard.check_message(message.inline_row_ids, path=path)
        size_guard.check_message(message.inline_created_at_versions, path=path)
        size_guard.check_message(message.inline_last_updated_at_versions, path=path)

    def check(self, *, path: str) -> None:
        """Check that the description of the fragment is valid. Callers do this before they read its rows."""
        self.check_limits(path=path)
        where = f"fragments[id={self.id}]"
        FILES_OF_A_FRAGMENT.check(len(self._message.files), path=path)
        live: set[int] = set()
        for file in self.files:
            field_ids, columns = file.field_ids, file.column_indices
            if not file.version.is_legacy and len(field_ids) != len(columns):
                raise Corrupt(
                    f"file {file.path} lists {len(field_ids)} fields but {len(columns)} columns",
                    path=path,
                    field=where,
                )
            if min(columns, default=0) < NO_COLUMN:
                raise Corrupt(
                    f"file {file.path} cannot have the column {min(columns)} that its fragment lists",
                    path=path,
                    field=where,
                )
            if UNASSIGNED in field_ids:
                raise Corrupt(
                    f"file {file.path} lists the field id {UNASSIGNED}, which a writer may use in memory only",
                    path=path,
                    field=where,
                )
            ids = {field_id for field_id in field_ids if field_id >= 0}
            if repeated := ids & live:
                raise Corrupt(f"field {min(repeated)} is live in two files", path=path, field=where)
            live |= ids


def live_rows(message: table_pb2.DataFragment) -> int:
    deleted: int = message.deletion_file.num_deleted_rows
    if deleted > message.physical_rows:
        raise Corrupt(
            f"records {deleted} deleted rows of {message.physical_rows}",
            path=f"fragment {message.id}",
            field="num_deleted_rows",
        )
    return message.physical_rows - deleted


def _tombstone_repeated_ids(files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    """Mark repeated field ids as dead in all but the last file. Writers up to 0.10.5 could give a new column the id
    of a dropped one, which other files of the fragment still list; the last file holds the current column."""
    seen: set[int] = set()
    corrected = []
    for file in reversed(files):
        if seen & set(file.field_ids):
            message = table_pb2.DataFile()
            message.CopyFrom(file._message)
            message.fields[:] = [TOMBSTONE if field_id in seen else field_id for field_id in file.field_ids]
            corrected.append(DataFile(message))
        else:
            corrected.append(file)
        seen |= {field_id for field_id in file.field_ids if field_id >= 0}
    return tuple(reversed(corrected))
