"""Ingest options: the format of files, how to parse them, and the source of each column, as values.

The driver checks the options of the caller and sends them to workers unchanged. This module opens no file.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pyarrow.csv as pa_csv

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.format.schema import TableSchema

Changed: TypeAlias = Literal["fail", "again", "skip"]
Extra: TypeAlias = Literal["refuse", "drop"]
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}


class Format(enum.Enum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    """One object per line."""
    ARROW = "arrow"
    """Arrow IPC, in the file or the stream format; the first bytes distinguish them."""


_SUFFIXES = {
    ".parquet": Format.PARQUET,
    ".parq": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}
_NAMES = {"jsonl": Format.JSON, "ndjson": Format.JSON, "ipc": Format.ARROW, "feather": Format.ARROW}


def parse_format(name: str | Format | None) -> Format | None:
    """Return the format of this name."""
    if name is None or isinstance(name, Format):
        return name
    known = {format_.value: format_ for format_ in Format} | _NAMES
    if name not in known:
        raise InvalidInput(f"format={name!r}: it must be one of {', '.join(sorted(known))}")
    return known[name]


def detect_compression(uri: str) -> str | None:
    """Return the compression of a text file, by its name. Other formats compress internally."""
    return next((name for suffix, name in _COMPRESSIONS.items() if _file_name(uri).endswith(suffix)), None)


def detect_format(uri: str, requested: Format | None) -> Format:
    """Return the requested format, or else the format by the name of the file."""
    if requested is not None:
        return requested
    name = _file_name(uri)
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    detected = _SUFFIXES.get("." + name.rpartition(".")[2])
    if detected is None or (detect_compression(uri) and detected not in (Format.CSV, Format.JSON)):
        raise InvalidInput(
            f"the format of {uri} is unknown from its name; give format=, or a glob that leaves the file out (known "
            f"suffixes: {', '.join(_SUFFIXES)}; text formats also with {', '.join(_COMPRESSIONS)})"
        )
    return detected


def _file_name(uri: str) -> str:
    """Return the name of the file in lower case, without the query of a web server and the archives of a chain.

    >>> _file_name("/data/A.csv.gz"), _file_name("https://host/a.csv?day=1"), _file_name("zip://a.csv::s3://b/c.zip")
    ('a.csv.gz', 'a.csv', 'a.csv')
    """
    if "://" in uri:
        uri = uri.partition("::")[0]
        if uri.startswith(("http://", "https://")):
            uri = uri.partition("?")[0]
    return uri.rpartition("/")[2].lower()


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Dialect of CSV files, with the names and defaults of pyarrow except for `newlines_in_values`: by default, a
    quoted value may contain line breaks. A large file is split at line breaks and read by several tasks only if that is
    false. `delimiter` is by default a tab for `.tsv` and a comma otherwise."""

    delimiter: str | None = None
    quote_char: str | Literal[False] = '"'
    double_quote: bool = True
    escape_char: str | Literal[False] = False
    newlines_in_values: bool = True
    ignore_empty_lines: bool = True
    column_names: tuple[str, ...] | None = None
    """`None` takes them from the first line."""
    skip_rows: int = 0
    skip_rows_after_names: int = 0
    encoding: str = "utf8"
    null_values: tuple[str, ...] = field(default_factory=lambda: tuple(pa_csv.ConvertOptions().null_values))
    strings_can_be_null: bool = False
    quoted_strings_can_be_null: bool = True
    true_values: tuple[str, ...] = field(default_factory=lambda: tuple(pa_csv.ConvertOptions().true_values))
    false_values: tuple[str, ...] = field(default_factory=lambda: tuple(pa_csv.ConvertOptions().false_values))
    decimal_point: str = "."
    timestamp_parsers: tuple[str, ...] = ()
    """`strptime` formats, tried in order; ISO 8601 is always parsed."""
    block_size: int = 8 * 1024 * 1024
    """Maximum size of a record in bytes."""

    def __post_init__(self) -> None:
        for name in ("column_names", "null_values", "true_values", "false_values", "timestamp_parsers"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, validation.check_names(value, f"CsvFormat({name}=)"))
        characters = {"delimiter": self.delimiter, "quote_char": self.quote_char, "escape_char": self.escape_char}
        for name, character in {**characters, "decimal_point": self.decimal_point}.items():
            optional = name != "decimal_point" and (character is False or character is None)
            if not optional and not (isinstance(character, str) and len(character) == 1):
                raise InvalidInput(f"CsvFormat({name}={character!r}): it must be one character")
        for name in ("skip_rows", "skip_rows_after_names"):
            validation.check_integer(getattr(self, name), name, at_least=0, too_small="it cannot be negative")
        validation.check_integer(self.block_size, "block_size", at_least=1024, too_small="it must hold a record")

    def delimiter_of(self, uri: str) -> str:
        return self.delimiter or ("\t" if ".tsv" in _file_name(uri) else ",")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of the caller that a worker needs to read files."""

    format: Format | None = None
    csv: CsvFormat = CsvFormat()
    mapping: tuple[tuple[str, str], ...] = ()
    """Pairs of a column of the table and its source; both may be dotted paths."""
    drops_extra: bool = False

    @classmethod
    def of(
        cls,
        *,
        format: str | Format | None,
        csv: CsvFormat | None,
        mapping: Mapping[str, str] | None,
        extra: Extra,
    ) -> "ReadOptions":
        if extra not in ("refuse", "drop"):
            raise InvalidInput(
                f"extra={extra!r}: it must be 'refuse' or 'drop', for columns that the table does not have"
            )
        if csv is not None and not isinstance(csv, CsvFormat):
            raise InvalidInput(f"csv= must be a CsvFormat(...), not a {type(csv).__name__}")
        pairs = tuple(validation.check_text_mapping(mapping, "mapping").items())
        for column, _source in pairs:
            above = [other for other, _ in pairs if column.startswith(f"{other}.")]
            if above:
                raise InvalidInput(
                    f"mapping= names sources for {above[0]!r} and for {column!r} within it; give one of them"
                )
        return cls(parse_format(format), csv or CsvFormat(), pairs, extra == "drop")

    def check_mapping(self, schema: TableSchema, *, what: str) -> None:
        """Raise if a mapped column does not exist in the table."""
        for column, _source in self.mapping:
            fields = {field.name: field for field in schema.fields}
            for name in column.split(".") if column not in fields else [column]:
                if name not in fields:
                    raise InvalidInput(
                        f"mapping= names a source for {column!r}, but {what} has no such column; its columns are "
                        f"{', '.join(field.name for field in schema.fields)}"
                    )
                fields = {child.name: child for child in fields[name].children}
