"""Version metadata: the Dagster metadata, tags and data version of one version of a table.

This module converts facts to values and records nothing. It never receives storage options or credentials: the URI is
the one that a table uses in messages. Start with `VersionFacts`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
import pyarrow as pa

from lance_assets.common.text import truncate
from lance_assets.diagrams.lineage_diagram import draw_lineage
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.lineage.model import InputVersion, Origin, VersionName, sources_of
from lance_assets.lineage.render import as_markdown, without_credentials
from lance_assets.provenance.column_sources import COLUMN_SOURCES, ColumnSource, parse_column_sources
from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, PARTITION, RUN_ID, group_inputs, parse_inputs
from lance_core import Committed, LanceError, Table, VersionInfo
from lance_core.operations import (
    PARTS_PROPERTY,
    Append,
    Clone,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Overwrite,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    Transaction,
    Update,
    UpdateBases,
    UpdateConfig,
    action_of,
    deletion_files_written,
    files_written,
    parts_of,
)

_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_COLUMNS_MAX = 500
_DESCRIPTION_KEYS = (b"description", b"comment", b"doc")
"""Keys of field metadata that describe a column: "comment" is that of Spark."""
_DESCRIPTION_CHARACTERS_MAX = 1000
_SOURCES_CELLS_MAX = 200
_REBASED_OVER_MAX = 100
_FOLDED_MAX = 100
_UNPARSED_CHARACTERS_MAX = 500
_NO_DATA_FILES = (CreateIndex, Project, ReserveFragments, Restore, UpdateBases, UpdateConfig)
"""Operations that add no data files."""
_NAMES_NEW_FILES = (Append, DataReplacement, Overwrite)
"""Operations that list new files only."""
_NAMES_ALL_FILES = (Delete, Merge, Rewrite, Update)
"""Operations that list existing files together with new ones."""

# Errors that reading an untrusted table can raise: its bytes may hold numbers out of range and unknown types.
TABLE_ERRORS = (LanceError, pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, ValueError)

Metadata = dict[str, dg.MetadataValue]


@dataclass(frozen=True, slots=True)
class NewFiles:
    """Number and size of the data files that a version added, and number of its deletion files; `None` if unknown."""

    files: int | None = None
    bytes: int | None = None
    deletion_files: int | None = None


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Facts about a version; `None` where a fact is unknown."""

    version: int
    incarnation: int
    """Incarnation of the table: its number among the tables created at this location (`dynamic_partitions.py`)."""
    uri: str
    schema: pa.Schema
    timestamp: datetime
    operation: str
    uuid: str | None
    planned_on: int | None
    properties: Mapping[str, str]
    rows: int
    rows_added: int | None
    rows_removed: int | None
    fragments: int
    files: int | None
    """Number of data files that the version added."""
    bytes: int | None
    """Total size of the data files that the version added."""
    attempts: int | None = None
    rebased_over: tuple[int, ...] = ()
    folded_uuids: tuple[str, ...] = ()
    """Uuids of the appends that were folded into this version by group commit, if there are several."""
    sources: tuple[InputVersion, ...] = ()
    """Versions of this table and others that it was derived from, other than its previous version."""
    deletion_files: int | None = None
    """Number of deletion files that it wrote; `None` for operations that write none."""
    action: str = ""
    """Action of the writer, such as "upsert"; `operation` is its name in the format."""
    writer: str = ""
    """Library that committed the version, with its release."""

    @property
    def partition(self) -> str:
        return partition_key(self.version, self.incarnation)

    @property
    def parent(self) -> int | None:
        """Previous version of the branch; `None` for the first version of a branch."""
        return self.version - 1 if self.version > 1 and self.operation != Clone.name else None

    @property
    def data_version(self) -> str:
        """Dagster data version: differs from that of a version with the same number of an earlier table here."""
        return (
            f"{self.version}-{self.uuid[:8]}"
            if self.uuid and _TAG_VALUE.fullmatch(self.uuid[:8])
            else str(self.version)
        )

    @property
    def run_id(self) -> str | None:
        return run_id_of(self.properties)

    @property
    def origin(self) -> Origin:
        """The facts that the lineage of the version is rendered from."""
        return Origin(
            name=VersionName(self.uri, self.version),
            operation=self.operation,
            timestamp=self.timestamp,
            rows=self.rows,
            rows_added=self.rows_added,
            rows_removed=self.rows_removed,
            parent=self.parent,
            planned_on=self.planned_on,
            rebased_over=self.rebased_over,
            uuid=self.uuid,
            properties=self.properties,
            sources=self.sources,
            together=self.folded_uuids,
            action=self.action,
            writer=self.writer,
        )


def run_id_of(properties: Mapping[str, str]) -> str | None:
    """Return the run id that a transaction's properties contain; `None` if the value is no run id.

    Any writer can set the properties.
    """
    run_id = properties.get(RUN_ID, "")
    return run_id if _TAG_VALUE.fullmatch(run_id) else None


def committed_facts(committed: Committed, incarnation: int) -> VersionFacts:
    """Return the facts of a version that a writer in this process committed, or found already committed."""
    table = committed.table
    transaction = table.transaction()
    return VersionFacts(
        version=committed.version,
        incarnation=incarnation,
        uri=table.uri,
        schema=table.schema,
        timestamp=table.timestamp,
        operation=committed.operation,
        uuid=transaction.uuid if transaction else None,
        planned_on=transaction.planned_on if transaction else None,
        properties=transaction.properties if transaction else {},
        rows=table.count_rows(),
        rows_added=committed.rows_added,
        rows_removed=committed.rows_removed,
        fragments=len(table.fragments),
        files=committed.files,
        bytes=committed.bytes,
        attempts=committed.attempts or None,
        rebased_over=tuple(committed.rebased_over),
        folded_uuids=_folded_uuids(transaction),
        sources=sources_of(table.uri, transaction.properties, transaction.operation) if transaction else (),
        deletion_files=new_files_of(table, transaction).deletion_files,
        action=action_of(transaction, is_first=committed.version == 1),
        writer=table.manifest.writer,
    )


def _folded_uuids(transaction: Transaction | None) -> tuple[str, ...]:
    """Return the uuids of the appends that a group commit folded into the transaction."""
    if transaction is None or PARTS_PROPERTY not in transaction.properties:
        return ()
    return tuple(part.uuid for part in parts_of(transaction))


def discovered_facts(table: Table, info: VersionInfo, incarnation: int) -> VersionFacts:
    """Return the facts of a version that was found in the history. `table` is open at that version."""
    transaction = table.transaction()
    new_files = new_files_of(table, transaction)
    return VersionFacts(
        version=info.version,
        incarnation=incarnation,
        uri=table.uri,
        schema=table.schema,
        timestamp=info.timestamp,
        operation=info.operation,
        uuid=info.uuid,
        planned_on=info.planned_on,
        properties=info.properties,
        rows=info.rows,
        rows_added=info.rows_added,
        rows_removed=info.rows_removed,
        fragments=len(table.fragments),
        files=new_files.files,
        bytes=new_files.bytes,
        rebased_over=tuple(info.rebased_over[-_REBASED_OVER_MAX:]),
        folded_uuids=info.together,
        sources=sources_of(table.uri, info.properties, transaction.operation if transaction else None),
        deletion_files=new_files.deletion_files,
        action=info.action,
        writer=info.writer,
    )


def metadata_of(
    facts: VersionFacts,
    *,
    run_is_known: bool,
    with_diagram: bool = False,
    descriptions: Mapping[str, str] | None = None,
    key: dg.AssetKey | None = None,
) -> Metadata:
    """Return the metadata of a version. `descriptions` are those of its columns that the declaration of the table has,
    `key` is the asset key of the table.

    `with_diagram` adds the lineage diagram to events of writes. Events of the ledger have none
    (`001-lineage-in-transaction-properties.md`).
    """
    value = dg.MetadataValue
    metadata: dict[str, dg.MetadataValue | None] = {
        "lance/version": value.int(facts.version),
        "lance/action": _text_metadata(facts.action),
        "lance/operation": value.text(facts.operation),
        "lance/parent": _int_metadata(facts.parent),
        "lance/planned_on": _int_metadata(facts.planned_on),
        "lance/rows_added": _int_metadata(facts.rows_added),
        "lance/rows_removed": _int_metadata(facts.rows_removed),
        "lance/fragments": value.int(facts.fragments),
        "lance/files_written": _int_metadata(facts.files),
        "lance/bytes_written": _int_metadata(facts.bytes),
        "lance/deletion_files_written": _int_metadata(facts.deletion_files),
        "lance/committed_at": value.timestamp(facts.timestamp),
        "lance/transaction": _text_metadata(facts.uuid),
        "lance/attempts": _int_metadata(facts.attempts),
        "lance/rebased_over": value.json(list(facts.rebased_over)) if facts.rebased_over else None,
        "lance/together": value.json(list(facts.folded_uuids[:_FOLDED_MAX])) if facts.folded_uuids else None,
        "lance/inputs": _inputs_metadata(facts.properties),
        "lance/lineage": _lineage_metadata(facts, with_diagram),
        "lance/engine": _text_metadata(facts.writer),
        "lance/written_by": _text_metadata(facts.properties.get(ASSET_KEY)),
        "lance/written_partition": _text_metadata(facts.properties.get(PARTITION)),
        "lance/code_location": _text_metadata(facts.properties.get(CODE_LOCATION)),
        "lance/run": value.dagster_run(facts.run_id) if facts.run_id and run_is_known else _text_metadata(facts.run_id),
        "dagster/row_count": value.int(facts.rows),
        "dagster/uri": value.text(facts.uri),
        "dagster/column_lineage": _column_lineage(facts, key),
        "lance/column_sources": _column_sources(facts, key),
        "dagster/column_schema": value.table_schema(table_schema(facts.schema, descriptions or {})),
    }
    return {name: item for name, item in metadata.items() if item is not None}


def tags_of(facts: VersionFacts, *, run_is_known: bool) -> dict[str, str]:
    """Return the event tags of a version."""
    tags = {
        "dagster/data_version": facts.data_version,
        "lance/op": facts.operation if _TAG_VALUE.fullmatch(facts.operation) else "Unknown",
        "lance/parent": str(facts.parent or ""),
        "lance/origin": "run" if facts.run_id and run_is_known else "external",
    }
    return tags | ({"lance/run_id": facts.run_id} if facts.run_id else {})


def metadata_of_retired(committed: Committed) -> Metadata | None:
    """Return the metadata of a write that was already committed as a version which cleanup has removed since.

    `None` means that the version exists. The statistics of the current table would describe another version.
    """
    if committed.table.version == committed.version:
        return None
    return {
        "lance/version": dg.MetadataValue.int(committed.version),
        "lance/operation": dg.MetadataValue.text(committed.operation),
        "lance/landed_before": dg.MetadataValue.bool(committed.already_committed),
        "lance/gone": dg.MetadataValue.text(
            f"this write was committed before, as version {committed.version}, which cleanup has removed since. "
            "Nothing was written now, and the content of that version is unknown. The table is at version "
            f"{committed.table.version}"
        ),
    }


def table_schema(schema: pa.Schema, descriptions: Mapping[str, str] | None = None) -> dg.TableSchema:
    """Return the schema as Dagster metadata, up to a maximum number of columns.

    The description of a column is the declared one, or that of its field's metadata.
    """
    declared = descriptions or {}
    columns = [
        dg.TableColumn(
            name=field.name,
            type=str(field.type),
            description=declared.get(field.name) or _description_of(field),
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in list(schema)[:_COLUMNS_MAX]
    ]
    return dg.TableSchema(columns=columns)


def _description_of(field: pa.Field) -> str | None:
    """Return the description that the metadata of a field has, under one of the usual keys."""
    metadata = field.metadata or {}
    found = next((metadata[key] for key in _DESCRIPTION_KEYS if metadata.get(key)), None)
    return None if found is None else found.decode(errors="replace")[:_DESCRIPTION_CHARACTERS_MAX]


def _inputs_metadata(properties: Mapping[str, str]) -> dg.MetadataValue | None:
    """Return the recorded inputs. Any writer can set the property, so a malformed value is returned as text."""
    inputs = parse_inputs(properties)
    if inputs.unparsed is not None:
        return dg.MetadataValue.text(inputs.unparsed[:_UNPARSED_CHARACTERS_MAX])
    by_table = group_inputs((without_credentials(uri), version) for uri, version in inputs.versions)
    return dg.MetadataValue.json(by_table) if by_table else None


def _column_lineage(facts: VersionFacts, key: dg.AssetKey | None) -> dg.MetadataValue | None:
    """Return the recorded sources of columns whose tables are assets. A writer outside of Dagster records the table
    without its asset, which is `key`."""
    if COLUMN_SOURCES not in facts.properties:
        return None
    own = {facts.uri: key.to_user_string()} if key else {}
    deps = {
        column: [
            dg.TableColumnDep(asset_key=dg.AssetKey.from_user_string(asset), column_name=source.column)
            for source in sources
            if (asset := source.asset or own.get(source.uri))
        ]
        for column, sources in list(parse_column_sources(facts.properties).items())[:_COLUMNS_MAX]
    }
    known = {column: each for column, each in deps.items() if each}
    return dg.MetadataValue.column_lineage(dg.TableColumnLineage(known)) if known else None


def _column_sources(facts: VersionFacts, key: dg.AssetKey | None) -> dg.MetadataValue | None:
    """Return a table of all recorded sources of columns. Only Dagster+ shows `dagster/column_lineage`, which cannot
    refer to tables that are not assets."""
    if COLUMN_SOURCES not in facts.properties:
        return None
    own = key.to_user_string() if key else None

    def name_of(source: ColumnSource) -> str:
        table = source.asset or without_credentials(source.uri) or "rows of the caller"
        return source.column if source.uri == facts.uri or table == own else f"{table}: {source.column}"

    sources = list(parse_column_sources(facts.properties).items())[:_COLUMNS_MAX]
    records = [
        dg.TableRecord({"column": column, "computed from": truncate(", ".join(map(name_of, each)), _SOURCES_CELLS_MAX)})
        for column, each in sources
    ]
    schema = dg.TableSchema([dg.TableColumn("column"), dg.TableColumn("computed from")])
    return dg.MetadataValue.table(records, schema) if records else None


def _lineage_metadata(facts: VersionFacts, with_picture: bool) -> dg.MetadataValue | None:
    if not facts.sources:
        return None
    table = as_markdown(facts.origin)
    if not with_picture:
        return dg.MetadataValue.md(table)
    picture = draw_lineage(facts.origin).markdown(f"ancestry of version {facts.version}")
    return dg.MetadataValue.md(f"{picture}\n\n{table}")


def _int_metadata(number: int | None) -> dg.MetadataValue | None:
    return None if number is None else dg.MetadataValue.int(number)


def _text_metadata(text: str | None) -> dg.MetadataValue | None:
    return dg.MetadataValue.text(text) if text else None


def new_files_of(table: Table, transaction: Transaction | None) -> NewFiles:
    """Return the files that the version of `table` added with `transaction`.

    Some operations also list existing files. The previous version is then read to subtract them.
    """
    operation = transaction.operation if transaction else None
    if isinstance(operation, _NO_DATA_FILES):
        return NewFiles(0, 0)
    if not isinstance(operation, (*_NAMES_NEW_FILES, *_NAMES_ALL_FILES)):
        return NewFiles()
    previous_table = _previous_version(table) if isinstance(operation, _NAMES_ALL_FILES) else None
    previous = previous_table.manifest if previous_table else None
    deletion_files = deletion_files_written(operation, previous) if isinstance(operation, Delete | Update) else None
    if previous is None and not isinstance(operation, _NAMES_NEW_FILES):
        return NewFiles(deletion_files=deletion_files)
    sizes = [file.size for file in files_written(operation, previous)]
    return NewFiles(len(sizes), None if None in sizes else sum(filter(None, sizes)), deletion_files)


def _previous_version(table: Table) -> Table | None:
    """Return the table at the previous version; `None` if it cannot be read.

    An unreadable version must not turn a successful commit into a failure, since only a statistic needs it.
    """
    try:
        return table.at(table.version - 1) if table.version > 1 else None
    except LanceError:
        return None
