"""Bad records: raises a record that cannot become a row with its position, or diverts it to a side table.

    _lance_assets/ingested/pending/<segment>.json      fragments of diverted records, until these are committed

The rows are committed first. A note of the diverted records is written before that, and the records are committed to
the side table after it, under an intent that belongs to the committed ingest alone. After a crash in between, the next
ingest commits the records of the note. If the side table were committed first, a repeated ingest of other files could
not add to it, and an ingest that is never repeated would leave records of files whose rows are in no table. Start with
`commit_pending`.
"""

import base64
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lance_core.errors import Corrupt, InvalidInput, NotFound, SchemaMismatch
from lance_core.format import size_guard
from lance_core.format.fragment import Fragment
from lance_core.format.ingest_records import DIRECTORY
from lance_core.limits import INTENT_BYTES
from lance_core.storage.store import read_whole
from lance_core.tasks.ingest.file_readers import BadRecord
from lance_core.tasks.side_table import SideTable
from lance_core.versions.location import Location

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
"""Schema of the side table. `row` counts the records of the file from 1 and is null for an unreadable file. `ingest`
is the intent, or the uuid of the transaction if there is none."""
SIDE_TABLE = SideTable(SCHEMA, "bad records", "on_bad_record", "ingest")
PENDING = f"{DIRECTORY}/pending"


def bad_record_error(bad: BadRecord, uri: str) -> InvalidInput:
    """Return the error for a bad record that is not diverted."""
    position = uri + (f", row {bad.row:,}" if bad.row is not None else "")
    position += f" (line {bad.line:,})" if bad.line is not None else ""
    column = f", column {bad.column!r}" if bad.column is not None else ""
    message = (
        f"{position}{column}: {bad.reason}. Correct the file, or name a table for such records with on_bad_record="
    )
    if bad.column is None:
        return InvalidInput(message)
    return SchemaMismatch(message, column=bad.column, expected="a value of its type", got=bad.reason)


def to_batch(records: Sequence[tuple[str, BadRecord]], ingest: str) -> pa.RecordBatch:
    """Return the records as rows of the side table."""
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


def put_pending(location: Location, segment: str, side_table: str, fragments: Sequence[bytes]) -> None:
    """Write the note of diverted records, which lists their fragments, before their ingest is committed."""
    note = {"table": side_table, "fragments": [base64.b64encode(fragment).decode() for fragment in fragments]}
    location.store.put(_path(segment), json.dumps(note).encode())


def _path(segment: str) -> str:
    return f"{PENDING}/{segment}.json"


def delete_pending(location: Location, segment: str) -> None:
    """Delete the note of an ingest that will never be committed."""
    location.store.delete(_path(segment))


def list_pending(location: Location) -> list[str]:
    """Return the segment names of all notes."""
    names = (info.path.rpartition("/")[2] for info in location.store.list(PENDING))
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def commit_pending(location: Location, segment: str) -> None:
    """Commit the bad records of a committed ingest to their table, exactly once, even if several processes try."""
    path = _path(segment)
    try:
        data = read_whole(location.store, path, INTENT_BYTES)
    except NotFound:
        return
    side_table, fragments = _decode_note(data, path)
    SIDE_TABLE.append(
        location.locate_other(side_table),
        tuple(map(Fragment.decode, fragments)),
        f"bad records of the ingest {segment}",
    )
    location.store.delete(path)


def _decode_note(data: bytes, path: str) -> tuple[str, list[bytes]]:
    size_guard.check_json(data, path=path)
    try:
        note: Mapping[str, object] = json.loads(data)
        side_table, fragments = note["table"], note["fragments"]
        if not (isinstance(side_table, str) and isinstance(fragments, list)):
            raise TypeError("a field is of another type")
        return side_table, [base64.b64decode(encoded, validate=True) for encoded in fragments]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"is not a note of pending bad records: {error}", path=path, field="pending") from error
