"""One version of a table as Dagster shows it: metadata, tags, data version.

Facts in, values out; nothing is recorded here. No storage option and no credential comes near this module: the URI
is the one that a table gives for messages.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
import pyarrow as pa

from lance_assets.diagrams.lineage_diagram import draw_lineage
from lance_assets.ledger.new_files import new_files_of
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.lineage.model import InputVersion, Origin, VersionName, sources_of
from lance_assets.lineage.render import as_markdown, without_credentials
from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, PARTITION, RUN_ID, group_inputs, parse_inputs
from lance_core import Committed, Table, VersionInfo
from lance_core.operations import Clone, parts_of

_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_COLUMNS_MAX = 500
_REBASED_OVER_MAX = 100
_FOLDED_MAX = 100
_UNPARSED_CHARACTERS_MAX = 500

Metadata = dict[str, dg.MetadataValue]


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is known of a version. None where nobody can tell."""

    version: int
    incarnation: int
    """Which of the tables that have been at this place it is a version of."""
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
    """Data files that it brought, and their size."""
    bytes: int | None
    attempts: int | None = None
    rebased_over: tuple[int, ...] = ()
    folded_uuids: tuple[str, ...] = ()
    """The uuids of the appends that share it, where several do."""
    sources: tuple[InputVersion, ...] = ()
    """The versions of this table and others that it comes from, besides the one before it."""
    deletion_files: int | None = None
    """Sets of deleted rows that it wrote, of operations that write such."""

    @property
    def partition(self) -> str:
        return partition_key(self.version, self.incarnation)

    @property
    def parent(self) -> int | None:
        """The version before: on a line each version follows the one before it, but for the first."""
        return self.version - 1 if self.version > 1 and self.operation != Clone.name else None

    @property
    def data_version(self) -> str:
        """Tells this version from one of the same number, of a table that was at this place before."""
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
        )


def run_id_of(properties: Mapping[str, str]) -> str | None:
    """Which run a transaction says has made it; written by anyone, so it may be no run id at all."""
    run_id = properties.get(RUN_ID, "")
    return run_id if _TAG_VALUE.fullmatch(run_id) else None


def committed_facts(committed: Committed, incarnation: int) -> VersionFacts:
    """Of a version that a writer here returned, or found landed."""
    table = committed.table
    made_by = table.transaction()
    return VersionFacts(
        version=committed.version,
        incarnation=incarnation,
        uri=table.uri,
        schema=table.schema,
        timestamp=table.timestamp,
        operation=committed.operation,
        uuid=made_by.uuid if made_by else None,
        planned_on=made_by.planned_on if made_by else None,
        properties=made_by.properties if made_by else {},
        rows=table.count_rows(),
        rows_added=committed.rows_added,
        rows_removed=committed.rows_removed,
        fragments=len(table.fragments),
        files=committed.files,
        bytes=committed.bytes,
        attempts=committed.attempts or None,
        rebased_over=tuple(committed.rebased_over),
        folded_uuids=tuple(part.uuid for part in parts_of(made_by)) if made_by else (),
        sources=sources_of(table.uri, made_by.properties, made_by.operation) if made_by else (),
        deletion_files=new_files_of(table, made_by).deletion_files,
    )


def discovered_facts(table: Table, info: VersionInfo, incarnation: int) -> VersionFacts:
    """Of a version that was found in the history. `table` is at that version."""
    made_by = table.transaction()
    written = new_files_of(table, made_by)
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
        files=written.files,
        bytes=written.bytes,
        rebased_over=tuple(info.rebased_over[-_REBASED_OVER_MAX:]),
        folded_uuids=info.together,
        sources=sources_of(table.uri, info.properties, made_by.operation if made_by else None),
        deletion_files=written.deletion_files,
    )


def metadata_of(facts: VersionFacts, *, run_is_known: bool, with_diagram: bool = False) -> Metadata:
    """`with_diagram` is for events of writes; the ledger does without (`001-lineage-in-transaction-properties.md`)."""
    value = dg.MetadataValue
    shown: dict[str, dg.MetadataValue | None] = {
        "lance/version": value.int(facts.version),
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
        "lance/written_by": _text_metadata(facts.properties.get(ASSET_KEY)),
        "lance/written_partition": _text_metadata(facts.properties.get(PARTITION)),
        "lance/code_location": _text_metadata(facts.properties.get(CODE_LOCATION)),
        "lance/run": value.dagster_run(facts.run_id) if facts.run_id and run_is_known else _text_metadata(facts.run_id),
        "dagster/row_count": value.int(facts.rows),
        "dagster/uri": value.text(facts.uri),
        "dagster/column_schema": value.table_schema(table_schema(facts.schema)),
    }
    return {name: each for name, each in shown.items() if each is not None}


def tags_of(facts: VersionFacts, *, run_is_known: bool) -> dict[str, str]:
    tags = {
        "dagster/data_version": facts.data_version,
        "lance/op": facts.operation if _TAG_VALUE.fullmatch(facts.operation) else "Unknown",
        "lance/parent": str(facts.parent or ""),
        "lance/origin": "run" if facts.run_id and run_is_known else "external",
    }
    return tags | ({"lance/run_id": facts.run_id} if facts.run_id else {})


def metadata_of_retired(committed: Committed) -> Metadata | None:
    """Of a write that had landed as a version that is gone: figures of the table as it is now are none of it."""
    if committed.table.version == committed.version:
        return None
    return {
        "lance/version": dg.MetadataValue.int(committed.version),
        "lance/operation": dg.MetadataValue.text(committed.operation),
        "lance/landed_before": dg.MetadataValue.bool(committed.already_committed),
        "lance/gone": dg.MetadataValue.text(
            f"this landed as version {committed.version}, which cleanup has retired since; nothing was written now, "
            f"and what that version held nobody can tell. The table is at version {committed.table.version}"
        ),
    }


def table_schema(schema: pa.Schema) -> dg.TableSchema:
    columns = [
        dg.TableColumn(
            name=field.name,
            type=str(field.type),
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in list(schema)[:_COLUMNS_MAX]
    ]
    return dg.TableSchema(columns=columns)


def _inputs_metadata(properties: Mapping[str, str]) -> dg.MetadataValue | None:
    """Written by anyone, so it may be anything."""
    inputs = parse_inputs(properties)
    if inputs.unparsed is not None:
        return dg.MetadataValue.text(inputs.unparsed[:_UNPARSED_CHARACTERS_MAX])
    told = group_inputs((without_credentials(uri), version) for uri, version in inputs.versions)
    return dg.MetadataValue.json(told) if told else None


def _lineage_metadata(facts: VersionFacts, with_picture: bool) -> dg.MetadataValue | None:
    if not facts.sources:
        return None
    table = as_markdown(facts.origin)
    if not with_picture:
        return dg.MetadataValue.md(table)
    picture = draw_lineage(facts.origin).markdown(f"what version {facts.version} comes from")
    return dg.MetadataValue.md(f"{picture}\n\n{table}")


def _int_metadata(number: int | None) -> dg.MetadataValue | None:
    return None if number is None else dg.MetadataValue.int(number)


def _text_metadata(text: str | None) -> dg.MetadataValue | None:
    return dg.MetadataValue.text(text) if text else None
