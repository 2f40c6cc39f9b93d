"""Sample rows: the newest rows of a version as table metadata, for tables that are declared with `samples=True`.

Dagster stores the values with the event, so samples are off by default. Long values are cut, and bytes that are an
image become a small picture in Markdown beside the table, since cells of a table show text only. Start with
`sample_metadata`.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
import pyarrow as pa

from lance_assets.common.text import escape_markdown, format_bytes, truncate
from lance_core import Table
from lance_core.tasks.columns.computed_fill import fingerprint_columns

Cell = str | int | float | bool | None
ROWS_MAX = 10
_COLUMNS_MAX = 50
_LETTERS_MAX = 80
_ITEMS_MAX = 5
_EXACT_INTEGER_MAX = 2**53
"""Largest integer that JSON in a browser shows exactly."""
_PICTURE_BYTES_MAX = 16 * 1024
_PICTURES_BYTES_MAX = 96 * 1024
_SIGNATURE_BYTES = 16
_SIGNATURES: Mapping[bytes, str] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def sample_metadata(table: Table) -> dict[str, dg.MetadataValue]:
    """Return the newest rows of a version, the newest first, without fingerprints of computed columns; nothing for a
    table without rows."""
    count = table.count_rows()
    offsets = list(range(count - 1, max(count - 1 - ROWS_MAX, -1), -1))
    hidden = fingerprint_columns(table.schema)
    fields = [field for field in table.schema if field.name not in hidden][:_COLUMNS_MAX]
    if not offsets or not fields:
        return {}
    blobs = [field.name for field in fields if _is_blob(field)]
    rows = table.take(offsets, [field.name for field in fields if field.name not in blobs] or None)
    columns = {name: rows[name].to_pylist() for name in rows.column_names if name not in blobs}
    columns |= {name: _read_blobs(table, name, offsets) for name in blobs}
    ordered = {field.name: columns[field.name] for field in fields}
    records = [
        dg.TableRecord({name: _cell(values[number]) for name, values in ordered.items()})
        for number in range(len(offsets))
    ]
    schema = dg.TableSchema([dg.TableColumn(field.name, str(field.type)) for field in fields])
    metadata: dict[str, dg.MetadataValue] = {"lance/sample": dg.MetadataValue.table(records, schema)}
    if pictures := list(_pictures(ordered)):
        metadata["lance/sample_pictures"] = dg.MetadataValue.md("\n".join(pictures))
    return metadata


class _Blob(bytes):
    """First bytes of a blob, or all of a small one, with its size."""

    size: int


def _is_blob(field: pa.Field) -> bool:
    is_extension = str(getattr(field.type, "extension_name", "")).startswith("lance.blob")
    return is_extension or (field.metadata or {}).get(b"lance-encoding:blob") == b"true"


def _read_blobs(table: Table, column: str, offsets: Sequence[int]) -> list[_Blob | None]:
    """Return the blobs of the rows. Only the first bytes of a large one are read."""
    values: list[_Blob | None] = []
    for file in table.blobs(column, offsets):
        if file is None:
            values.append(None)
            continue
        with file:
            value = _Blob(file.read(file.size if file.size <= _PICTURE_BYTES_MAX else _SIGNATURE_BYTES))
            value.size = file.size
        values.append(value)
    return values


def _cell(value: object) -> Cell:
    """Return a value as a cell: numbers stay numbers where a browser shows them exactly."""
    match value:
        case None | bool():
            return value
        case int() if abs(value) <= _EXACT_INTEGER_MAX:
            return value
        case float() if value == value and abs(value) != float("inf"):
            return value
        case bytes():
            size = format_bytes(_size(value))
            return f"{_image_type(value) or 'bytes'}, {size}"
        case list():
            shown = ", ".join(_text(item) for item in value[:_ITEMS_MAX])
            more = f", … {len(value):,} values" if len(value) > _ITEMS_MAX else ""
            return truncate(f"[{shown}{more}]", _LETTERS_MAX)
    return truncate(_text(value), _LETTERS_MAX)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return json.dumps(value, default=str, ensure_ascii=False)
    return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)


def _size(value: bytes) -> int:
    return value.size if isinstance(value, _Blob) else len(value)


def _image_type(value: bytes) -> str | None:
    """Return the media type of an image, by its first bytes."""
    if value[:4] == b"RIFF" and value[8:12] == b"WEBP":
        return "image/webp"
    return next((media for signature, media in _SIGNATURES.items() if value.startswith(signature)), None)


def _pictures(columns: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield a line of Markdown with the pictures of each column, while all of them are small."""
    left = _PICTURES_BYTES_MAX
    for name, values in columns.items():
        pictures = []
        for value in values:
            if not isinstance(value, bytes) or not (media := _image_type(value)):
                continue
            if _size(value) <= min(left, _PICTURE_BYTES_MAX):
                left -= len(value)
                pictures.append(f"![{escape_markdown(name)}](data:{media};base64,{base64.b64encode(value).decode()})")
        if pictures:
            yield f"{escape_markdown(name)}: {' '.join(pictures)}\n"
