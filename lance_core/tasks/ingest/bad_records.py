"""Records that did not become rows: refused with their place, or put into a table of their own.

    _lance_assets/ingested/pending/<segment>.json      fragments of such records, until they are committed there

The rows come first. What was diverted is noted before they are committed, and committed to the side table after, under
an intent that only the ingest that landed has: a crash in between leaves the note, and whoever comes next finishes it.
Were the side table first, a repetition that finds other files could not add to it, and one that never comes would leave
records of rows that are in no table. Start with `commit_pending`.
"""

import base64
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lance_core.commit import write_protocol
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import WriteResult
from lance_core.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, SchemaMismatch
from lance_core.format import size_guard
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.ingest_records import DIRECTORY
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import TableSchema
from lance_core.limits import INTENT_BYTES
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.store import read_whole
from lance_core.table.table import STORAGE_VERSION
from lance_core.tasks.ingest.file_readers import BadRecord
from lance_core.transactions.apply import NewTable
from lance_core.versions.location import Location, manifest_store_config
from lance_core.versions.snapshot import Snapshot, load_latest
from lance_core.versions.table_id import TABLE_ID

SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("row", pa.int64()),
        pa.field("line", pa.int64()),
        pa.field("column", pa.string()),
        pa.field("record", pa.large_string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("ingest", pa.string(), nullable=False),
    ]
)
"""Of the side table. `row` counts records of the file from 1; a file that cannot be read has none. `ingest` is the
intent, or the uuid of the transaction where there was none."""
PENDING = f"{DIRECTORY}/pending"


def bad_record_error(bad: BadRecord, uri: str) -> InvalidInput:
    place = uri + (f", row {bad.row:,}" if bad.row is not None else "")
    place += f" (line {bad.line:,})" if bad.line is not None else ""
    column = f", column {bad.column!r}" if bad.column is not None else ""
    told = f"{place}{column}: {bad.reason}. Mend the file, or name a table for such records with on_bad_record="
    if bad.column is None:
        return InvalidInput(told)
    return SchemaMismatch(told, column=bad.column, expected="a value of its type", got=bad.reason)


def to_batch(records: Sequence[tuple[str, BadRecord]], ingest: str) -> pa.RecordBatch:
    rows = [
        {
            "file": uri,
            "row": bad.row,
            "line": bad.line,
            "column": bad.column,
            "record": bad.record,
            "reason": bad.reason,
            "ingest": ingest,
        }
        for uri, bad in records
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def load_base(location: Location) -> Snapshot | NewTable:
    try:
        base = load_latest(location)
    except NotFound:
        return NewTable(StorageVersion.parse(STORAGE_VERSION))
    base.manifest.check_writable()
    return base


def checked_schema(base: Snapshot | NewTable) -> TableSchema:
    """Checked: a table that was made for something else is not written to."""
    if isinstance(base, NewTable):
        return TableSchema.from_arrow(SCHEMA)
    schema = base.manifest.schema
    there = {field.name: field.type for field in schema.arrow}
    for field in SCHEMA:
        if there.get(field.name) != field.type:
            raise SchemaMismatch(
                f"on_bad_record={base.location.uri} is a table that is not made for bad records: its column "
                f"{field.name!r} is {there.get(field.name, 'missing')}, not {field.type}. Name another place",
                column=field.name,
                expected=str(field.type),
                got=str(there.get(field.name, "nothing")),
            )
    return schema


def put_pending(location: Location, segment: str, side: str, fragments: Sequence[bytes]) -> None:
    told = {"table": side, "fragments": [base64.b64encode(each).decode() for each in fragments]}
    location.store.put(_path(segment), json.dumps(told).encode())


def _path(segment: str) -> str:
    return f"{PENDING}/{segment}.json"


def delete_pending(location: Location, segment: str) -> None:
    """Of one that has not landed, and never will."""
    location.store.delete(_path(segment))


def list_pending(location: Location) -> list[str]:
    """Names of segments."""
    found = (info.path.rpartition("/")[2] for info in location.store.list(PENDING))
    return [name.removesuffix(".json") for name in found if name.endswith(".json")]


def commit_pending(location: Location, segment: str) -> None:
    """Of an ingest that has landed: its bad records are in their table after this, once, whoever else does it."""
    path = _path(segment)
    try:
        data = read_whole(location.store, path, INTENT_BYTES)
    except NotFound:
        return
    side, fragments = _read(data, path)
    _landed(location.locate_other(side), tuple(map(Fragment.decode, fragments)), f"bad records of the ingest {segment}")
    location.store.delete(path)


def _landed(location: Location, fragments: tuple[Fragment, ...], intent: str) -> WriteResult:
    base = load_base(location)
    begun = write_protocol.begin(location, base, verb="ingest", intent=intent, runtime=SYSTEM_RUNTIME)
    if isinstance(begun, WriteResult):
        return begun
    schema = checked_schema(base)
    operation: Operation = Append(fragments)
    if isinstance(base, NewTable):
        operation = Overwrite(fragments, schema, {TABLE_ID: begun.uuid, **manifest_store_config(location)})
    try:
        return write_protocol.finish(begun, operation, properties={}, attempts=ATTEMPTS)
    except AlreadyExists:
        return _landed(location, fragments, intent)


def _read(data: bytes, path: str) -> tuple[str, list[bytes]]:
    size_guard.check_json(data, path=path)
    try:
        told: Mapping[str, object] = json.loads(data)
        side, fragments = told["table"], told["fragments"]
        if not (isinstance(side, str) and isinstance(fragments, list)):
            raise TypeError("a field is of another type")
        return side, [base64.b64decode(each, validate=True) for each in fragments]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"is not the note of bad records: {error}", path=path, field="pending") from error
