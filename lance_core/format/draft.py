"""A version in the making: the one place where a manifest message is changed.

A draft starts empty (`Draft.born`) or as a copy of the head (`Draft.after`), without what belongs to the head
alone. It is an outline (`outline.py`): the head's fragments pass through as bytes, those that are added are kept apart
until the end. What a change does to it is decided in `transactions/apply.py`; here is only how the message holds it.
"""

from collections.abc import Mapping, Sequence

from lance_core.errors import InvalidInput
from lance_core.format import naming, outline
from lance_core.format._pb import table_pb2
from lance_core.format.features import STICKY, Feature
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.ids import RowId, Version
from lance_core.format.manifest import FRAGMENT_ID_MAX, Manifest
from lance_core.format.naming import NamingScheme
from lance_core.format.row_versions import RowVersions
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import TableSchema

LIBRARY = "lance-assets"
_ROW_ID_MAX = 2**63 - 1
_OF_ONE_VERSION = ("version_aux_data", "tag", "writer_version", "timestamp", "transaction_file")


class Draft:
    def __init__(self, message: table_pb2.Manifest) -> None:
        self._message = message
        self._fresh: list[table_pb2.DataFragment] = []
        self._keeps_fragments = False
        self.index_section: bytes | None = None

    @classmethod
    def born(cls, storage_version: StorageVersion, *, stable_row_ids: bool) -> "Draft":
        """Version 1 of a table."""
        message = outline.empty()
        message.version = 1
        message.data_format.file_format = "lance"
        message.data_format.version = str(storage_version)
        if stable_row_ids:
            message.reader_feature_flags = int(Feature.STABLE_ROW_IDS)
        return cls(message)

    @classmethod
    def after(cls, head: Manifest) -> "Draft":
        """The next version, so far equal to the head; its indices are carried,
        or every commit would drop them."""
        message = head.edit()
        message.version += 1
        for name in _OF_ONE_VERSION:
            message.ClearField(name)
        if not message.data_format.version:
            message.data_format.file_format = "lance"
            message.data_format.version = str(head.storage_version)
        if head.max_fragment_id >= 0:
            message.max_fragment_id = head.max_fragment_id
        draft = cls(message)
        draft.index_section = head.index_section
        draft._keeps_fragments = True
        return draft

    @property
    def fresh(self) -> tuple[Fragment, ...]:
        """What `add` brought."""
        return tuple(map(Fragment, self._fresh))

    @property
    def max_fragment_id(self) -> int:
        """The highest id given out so far; -1 for none."""
        return self._message.max_fragment_id if self._message.HasField("max_fragment_id") else -1

    def replace_contents(self, schema: TableSchema) -> None:
        """No fragments, no indices, another schema. Config, table metadata and all counters stay."""
        self._message = outline.without_fragments(self._message)
        self._message.ClearField("fields")
        self._message.fields.extend(schema.encode())
        self._message.schema_metadata.clear()
        for key, value in schema.metadata.items():
            self._message.schema_metadata[key.decode()] = value
        self.index_section = None
        self._keeps_fragments = False

    def set_config(self, upserts: Mapping[str, str]) -> None:
        self._message.config.update(upserts)

    def add(self, fragments: Sequence[Fragment], *, keep_ids: bool) -> None:
        """Put fragments behind those that are there, and give out their ids. An id of 0 is never kept: on the
        wire it says that none was given out yet."""
        message = self._message
        next_id = self.max_fragment_id + 1
        for theirs in fragments:
            fragment = table_pb2.DataFragment()
            fragment.CopyFrom(theirs.message)
            self._fresh.append(fragment)
            if not (keep_ids and fragment.id):
                fragment.id = next_id
            if fragment.id > FRAGMENT_ID_MAX:
                raise InvalidInput(
                    f"version {message.version} would need a fragment of id {fragment.id}, and ids end at "
                    f"{FRAGMENT_ID_MAX}; write fewer, larger fragments, or copy the rows into a new table"
                )
            next_id = max(next_id, fragment.id + 1)
            if message.reader_feature_flags & Feature.STABLE_ROW_IDS:
                self._give_row_ids(fragment)
        if fragments:
            message.max_fragment_id = next_id - 1

    def _give_row_ids(self, fragment: table_pb2.DataFragment) -> None:
        if fragment.WhichOneof("row_id_sequence") is not None:
            return
        if self._message.next_row_id + fragment.physical_rows > _ROW_ID_MAX:
            raise InvalidInput(
                f"version {self._message.version} would need row ids above {_ROW_ID_MAX}, and there are none; copy "
                "the rows into a new table"
            )
        fragment.inline_row_ids = RowIdSequence.of_range(
            RowId(self._message.next_row_id), fragment.physical_rows
        ).encode()
        self._message.next_row_id += fragment.physical_rows
        born = RowVersions.of_one(fragment.physical_rows, Version(self._message.version)).encode()
        fragment.inline_created_at_versions = born
        fragment.inline_last_updated_at_versions = born

    def finish(
        self,
        *,
        now_ns: int,
        library_version: str,
        transaction_file: str,
        transaction: bytes | None,
        scheme: NamingScheme,
    ) -> Manifest:
        """The draft is not used after this."""
        message = self._message
        self._set_flags()
        outline.add_fragments(message, self._fresh)
        message.timestamp.seconds, message.timestamp.nanos = divmod(now_ns, 1_000_000_000)
        message.writer_version.library = LIBRARY
        message.writer_version.version = library_version
        message.transaction_file = transaction_file
        return Manifest.framed(
            message,
            index_section=self.index_section,
            transaction=transaction,
            path=naming.manifest_path(Version(message.version), scheme),
        )

    def _set_flags(self) -> None:
        """From what the version contains. Where the head's fragments are kept,
        so is what the head knew of them."""
        message = self._message
        kept = STICKY | Feature.STABLE_ROW_IDS
        if self._keeps_fragments:
            kept |= Feature.DELETION_FILES
        both = Feature(message.reader_feature_flags & int(kept))
        version = StorageVersion.parse(message.data_format.version)
        if any(file.version != version for fragment in self.fresh for file in fragment.files):
            both |= Feature.MIXED_FILE_VERSIONS
        message.reader_feature_flags = int(both)
        message.writer_feature_flags = int(both | Feature.TABLE_CONFIG if message.config else both)
