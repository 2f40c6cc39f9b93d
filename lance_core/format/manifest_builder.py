"""Manifest builder: a version under construction, and the only place that changes a manifest message.

A builder starts empty (`ManifestBuilder.for_new_table`), or as a copy of a version without the fields that are
specific to that version (`ManifestBuilder.for_successor`). It holds a manifest header (`manifest_file.py`):
fragments pass through as bytes until they are accessed by id, and added fragments are kept apart until the end.
`transactions/apply.py` decides what a change does to a builder; this module only defines how the builder stores it.
"""

from collections.abc import Iterable, Mapping, Sequence

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import index_metadata, manifest_file, naming
from lance_core.format._pb import table_pb2
from lance_core.format.base_path import BasePath, decode_bases
from lance_core.format.features import STICKY, Feature
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.fragment_records import EditedFragments, FragmentRecords
from lance_core.format.ids import FRAGMENT_ID_MAX, FragmentId, RowId, Version
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import FILE_FORMAT, Manifest, unassigned_id_error
from lance_core.format.naming import NamingScheme
from lance_core.format.row_lineage import RowIdSequence, RowVersions, encode_range
from lance_core.format.schema import TableSchema

LIBRARY = "lance-assets"
_ROW_ID_MAX = 2**63 - 1
_BLOB = b"lance.blob.v2"
_VERSION_SPECIFIC_FIELDS = ("version_aux_data", "tag", "writer_version", "timestamp", "transaction_file")
"""Fields that a successor does not inherit. The format says of the auxiliary data that it is not inheritable, and the
block to which `version_aux_data` points is in the file of that version alone. `tag` is the name that the transaction
of one version gave to it; tags are files of their own today (`refs.py`)."""


class ManifestBuilder:
    def __init__(self, message: table_pb2.Manifest, index_section: bytes | None, *, path: str) -> None:
        self._message = message
        self._path = path
        self._fragments: EditedFragments | None = None
        """The existing fragments, once they were accessed; the message then carries none."""
        self._added: list[table_pb2.DataFragment] = []
        self._index_section = index_section
        self._indices: tuple[IndexMetadata, ...] | None = None
        self._dictionaries = b""

    @classmethod
    def for_new_table(
        cls, storage_version: StorageVersion, *, stable_row_ids: bool, version: Version | None = None
    ) -> "ManifestBuilder":
        """Start version 1 of a table, or the detached version `version`."""
        message = manifest_file.empty_header()
        message.version = version or 1
        message.data_format.file_format = FILE_FORMAT
        message.data_format.version = str(storage_version)
        if stable_row_ids:
            message.reader_feature_flags = int(Feature.STABLE_ROW_IDS)
        return cls(message, None, path="version 1")

    @classmethod
    def for_successor(
        cls, head: Manifest, *, contents: Manifest | None = None, version: Version | None = None
    ) -> "ManifestBuilder":
        """Start the next version, which equals the head so far, or `contents` if an older version is restored.

        Counters are always those of the head, since an id is never assigned twice. `version` is the number of a
        detached version; `None` means the next version of the branch.
        """
        source = contents or head
        message = source.copy_header()
        message.version = version or _next_version(head)
        for name in _VERSION_SPECIFIC_FIELDS:
            message.ClearField(name)
        if not message.data_format.version:
            message.data_format.file_format = FILE_FORMAT
            message.data_format.version = str(source.storage_version)
        last = max(head.max_fragment_id, source.max_fragment_id)
        if last >= 0:
            message.max_fragment_id = last
        message.next_row_id = max(head.next_row_id, source.next_row_id)
        builder = cls(message, source.index_section, path=source.path)
        builder._dictionaries = source.dictionaries
        return builder

    @classmethod
    def for_other_location(cls, source: Manifest, *, base: BasePath | None, branch: str | None) -> "ManifestBuilder":
        """Start the same version at another location: files without a base belong to `base` from now on.

        If `base` is `None`, everything was copied, and only blobs that the table references keep a base.
        """
        builder = cls.for_successor(source, version=source.version)
        message = builder._message
        if base is None:
            external_blob_bases = [
                base_path for base_path in message.base_paths if builder._has_blobs and not base_path.is_dataset_root
            ]
            del message.base_paths[:]
            message.base_paths.extend(external_blob_bases)
        else:
            message.base_paths.append(base.message)
        message.ClearField("branch")
        if branch is not None:
            message.branch = branch
        builder.update_fragments(
            [fragment.with_base(base.id if base else None) for fragment in builder.fragments.values()]
        )
        builder.set_indices([index.with_base(base.id if base else None) for index in builder.indices])
        return builder

    # Accessors

    @property
    def version(self) -> Version:
        return Version(self._message.version)

    @property
    def has_stable_row_ids(self) -> bool:
        return bool(self._message.reader_feature_flags & Feature.STABLE_ROW_IDS)

    @property
    def has_overlays(self) -> bool:
        return bool(self._message.reader_feature_flags & Feature.DATA_OVERLAYS)

    @property
    def max_fragment_id(self) -> int:
        """The highest id assigned so far; -1 for none."""
        return self._message.max_fragment_id if self._message.HasField("max_fragment_id") else -1

    @property
    def schema(self) -> TableSchema:
        return TableSchema.decode(self._message.fields, self._message.schema_metadata, path=self._path)

    @property
    def config(self) -> Mapping[str, str]:
        return dict(self._message.config)

    @property
    def table_metadata(self) -> Mapping[str, str]:
        return dict(self._message.table_metadata)

    @property
    def _has_blobs(self) -> bool:
        return any(_BLOB in field.metadata.values() for top in self.schema.fields for field in top.walk())

    @property
    def base_paths(self) -> tuple[BasePath, ...]:
        return decode_bases(self._message.base_paths)

    @property
    def fragments(self) -> EditedFragments:
        """The existing fragments, without those that `add_fragments` added. Only fragments that are accessed by id are
        parsed."""
        if self._fragments is None:
            records = FragmentRecords(self._message.SerializeToString(), path=self._path)
            if (repeated := records.find_repeated_id()) is not None:
                raise Corrupt(f"lists fragment {repeated} twice", path=self._path, field="fragments")
            highest = int(records.ids.max()) if len(records) else -1
            if self._message.HasField("max_fragment_id") and highest > self.max_fragment_id:
                raise unassigned_id_error(highest, self.max_fragment_id, path=self._path)
            self._fragments = EditedFragments(records)
            self._message = manifest_file.without_fragments(self._message)
        return self._fragments

    @property
    def added_fragments(self) -> tuple[Fragment, ...]:
        """The fragments that `add_fragments` added."""
        return tuple(map(Fragment, self._added))

    @property
    def indices(self) -> tuple[IndexMetadata, ...]:
        if self._indices is None:
            self._indices = index_metadata.decode_section(self._index_section, path=self._path)
        return self._indices

    # Changes

    def set_indices(self, indices: Iterable[IndexMetadata]) -> None:
        self._indices = tuple(indices)

    def set_schema(self, schema: TableSchema) -> None:
        fields = self._message.fields
        dictionaries = {field.id: field.dictionary.SerializeToString() for field in fields if field.dictionary.length}
        del self._message.fields[:]
        self._message.fields.extend(schema.encode())
        for field in self._message.fields if dictionaries else ():
            if field.id in dictionaries:
                field.dictionary.MergeFromString(dictionaries[field.id])
        self._message.schema_metadata.clear()
        for key, value in schema.metadata.items():
            self._message.schema_metadata[key.decode()] = value

    def replace_contents(self, schema: TableSchema) -> None:
        """Remove all fragments and indices and set another schema. Config, table metadata and all counters stay."""
        self._message = manifest_file.without_fragments(self._message)
        self._fragments = EditedFragments(FragmentRecords(b"", path=self._path))
        self._message.ClearField("fields")
        self._dictionaries = b""
        self.set_schema(schema)
        self.set_indices(())

    def update_fragments(self, fragments: Iterable[Fragment]) -> None:
        """Replace existing fragments by their new state."""
        existing = self.fragments
        for fragment in fragments:
            fragment.check_caps(path=self._path)
            existing.replace(fragment)

    def record_checksums(self, checksums: Mapping[str, FileChecksum]) -> None:
        """Record the checksums of files that have none, by qualified path."""
        fragments = (fragment.with_checksums(checksums) for fragment in self.fragments.values())
        self.update_fragments([fragment for fragment in fragments if fragment is not None])
        indices = [index.with_checksums(checksums) for index in self.indices]
        if any(indices):
            self.set_indices([new or old for new, old in zip(indices, self.indices, strict=True)])

    def remove_fragments(self, fragment_ids: Iterable[FragmentId]) -> None:
        existing = self.fragments
        for fragment_id in fragment_ids:
            existing.remove(fragment_id)

    def set_config(self, config: Mapping[str, str]) -> None:
        self._message.config.clear()
        self._message.config.update(config)

    def set_table_metadata(self, metadata: Mapping[str, str]) -> None:
        self._message.table_metadata.clear()
        self._message.table_metadata.update(metadata)

    def set_base_paths(self, bases: Iterable[BasePath]) -> None:
        del self._message.base_paths[:]
        self._message.base_paths.extend(base.message for base in bases)

    def reserve_fragment_ids(self, count: int) -> None:
        """Assign ids that a later rewrite will use. For a table that never had a fragment, the format begins at 1."""
        last = max(0, self.max_fragment_id) + count
        if last > FRAGMENT_ID_MAX:
            raise self._ids_exhausted(last)
        self._message.max_fragment_id = last

    def add_fragments(self, fragments: Sequence[Fragment], *, keep_ids: bool) -> None:
        """Append fragments behind the existing ones and assign their ids. An id of 0 is always replaced: in an encoded
        fragment it means that no id was assigned."""
        message = self._message
        next_id = self.max_fragment_id + 1
        for theirs in fragments:
            fragment = table_pb2.DataFragment()
            fragment.CopyFrom(theirs.message)
            self._added.append(fragment)
            if not (keep_ids and fragment.id):
                fragment.id = next_id
            if fragment.id > FRAGMENT_ID_MAX:
                raise self._ids_exhausted(fragment.id)
            next_id = max(next_id, fragment.id + 1)
            if self.has_stable_row_ids:
                self._assign_row_ids(fragment)
            Fragment(fragment).check_caps(path=self._path)
        if fragments:
            message.max_fragment_id = max(self.max_fragment_id, next_id - 1)

    def _ids_exhausted(self, fragment_id: int) -> InvalidInput:
        return InvalidInput(
            f"version {self.version} would need the fragment id {fragment_id}, but the highest id is "
            f"{FRAGMENT_ID_MAX}; write fewer, larger fragments, or copy the rows into a new table"
        )

    def _assign_row_ids(self, fragment: table_pb2.DataFragment) -> None:
        """Assign row ids to all rows, or to the last rows if the first ones have ids already, and assign the version
        to rows whose writer recorded none."""
        rows, start = fragment.physical_rows, self._message.next_row_id
        known: RowIdSequence | None = None
        if fragment.WhichOneof("row_id_sequence") is not None:
            known = RowIdSequence.decode_partial(fragment.inline_row_ids, rows_max=rows, path="new fragment")
        missing = rows - (0 if known is None else len(known))
        if start + missing > _ROW_ID_MAX:
            raise InvalidInput(
                f"version {self.version} would need row ids above {_ROW_ID_MAX}, the highest one; copy the rows into "
                "a new table"
            )
        if missing:
            fragment.inline_row_ids = (
                encode_range(RowId(start), missing)
                if known is None or not len(known)
                else known.with_appended_range(RowId(start), missing).encode()
            )
            self._message.next_row_id += missing
        current_version = RowVersions.of_one(rows, self.version).encode()
        if fragment.WhichOneof("created_at_version_sequence") is None:
            fragment.inline_created_at_versions = current_version
        if fragment.WhichOneof("last_updated_at_version_sequence") is None:
            fragment.inline_last_updated_at_versions = current_version

    def finish(
        self,
        *,
        now_ns: int,
        library_version: str,
        transaction_file: str,
        transaction: bytes | None,
        scheme: NamingScheme,
    ) -> Manifest:
        """Return the manifest. The builder cannot be used afterwards."""
        message = self._message
        # Fragments that pass through as bytes precede the added ones.
        records = None if self._fragments is None else self._fragments.with_added(self._added)
        self._set_flags(records)
        if records is None:
            manifest_file.add_fragments(message, sorted(self._added, key=lambda fragment: fragment.id))
        else:
            message.MergeFromString(records.encode())
        message.timestamp.seconds, message.timestamp.nanos = divmod(now_ns, 1_000_000_000)
        message.writer_version.library = LIBRARY
        message.writer_version.version = library_version
        message.transaction_file = transaction_file
        section = self._index_section if self._indices is None else index_metadata.encode_section(self._indices)
        return Manifest.from_header(
            message,
            index_section=section,
            transaction=transaction,
            dictionaries=self._dictionaries,
            path=naming.manifest_path(self.version, scheme),
        )

    def _set_flags(self, records: FragmentRecords | None) -> None:
        """Set the feature flags from the contents of the version. If fragments pass through unparsed, the head's flags
        for deletion files and overlays remain."""
        message = self._message
        kept = STICKY | Feature.STABLE_ROW_IDS
        if records is None:
            kept |= Feature.DELETION_FILES | Feature.DATA_OVERLAYS
        both = Feature(message.reader_feature_flags & int(kept))
        if records is not None and records.has_deletion_files:
            both |= Feature.DELETION_FILES
        if records is not None and records.has_overlays:
            both |= Feature.DATA_OVERLAYS
        if message.base_paths:
            both |= Feature.BASE_PATHS
        try:
            version = StorageVersion.parse(message.data_format.version)
        except ValueError as error:
            raise Corrupt(str(error), path=self._path, field="data_format.version") from error
        if any(file.version != version for fragment in self.added_fragments for file in fragment.files):
            both |= Feature.MIXED_FILE_VERSIONS
        message.reader_feature_flags = int(both)
        message.writer_feature_flags = int(both | Feature.TABLE_CONFIG if message.config else both)


def _next_version(head: Manifest) -> Version:
    number = Version(head.version + 1)
    if naming.is_detached(number):
        raise Corrupt(
            f"is version {head.version}, the highest version number of a branch", path=head.path, field="version"
        )
    return number
