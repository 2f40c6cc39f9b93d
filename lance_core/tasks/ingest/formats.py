"""How files are to be read, as values: which format, which options, which column comes from where.

Told by the caller on the driver, checked there, and handed to workers as they are. Nothing here opens a file.
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
    """One object a line."""
    ARROW = "arrow"
    """IPC: the file and the stream format, told apart by their first bytes."""


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
    if name is None or isinstance(name, Format):
        return name
    known = {each.value: each for each in Format} | _NAMES
    if name not in known:
        raise InvalidInput(f"format={name!r}: files are of the format {', '.join(sorted(known))}")
    return known[name]


def detect_compression(uri: str) -> str | None:
    """Of text; the other formats compress within."""
    return next((name for suffix, name in _COMPRESSIONS.items() if uri.lower().endswith(suffix)), None)


def detect_format(uri: str, asked: Format | None) -> Format:
    if asked is not None:
        return asked
    name = uri.rpartition("/")[2].lower()
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    found = _SUFFIXES.get("." + name.rpartition(".")[2])
    if found is None or (detect_compression(uri) and found not in (Format.CSV, Format.JSON)):
        raise InvalidInput(
            f"what {uri} holds is not told by its name; give format=, or a glob that leaves it out (known are "
            f"{', '.join(_SUFFIXES)}, the texts among them also compressed, {', '.join(_COMPRESSIONS)})"
        )
    return found


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How CSV is written, by pyarrow's names and with its defaults, but for `newlines_in_values`: here a quoted value
    may hold line breaks unless that is ruled out, and only then is a large file cut at line breaks and read by several
    tasks. `delimiter` is a tab for `.tsv`, else a comma, unless given."""

    delimiter: str | None = None
    quote_char: str | Literal[False] = '"'
    double_quote: bool = True
    escape_char: str | Literal[False] = False
    newlines_in_values: bool = True
    ignore_empty_lines: bool = True
    column_names: tuple[str, ...] | None = None
    """None: the first line has them."""
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
    """Formats of `strptime`, each tried; ISO 8601 is always understood."""
    block_size: int = 8 * 1024 * 1024
    """No record is longer than this."""

    def __post_init__(self) -> None:
        for name in ("column_names", "null_values", "true_values", "false_values", "timestamp_parsers"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, validation.check_names(value, f"CsvFormat({name}=)"))
        signs = {"delimiter": self.delimiter, "quote_char": self.quote_char, "escape_char": self.escape_char}
        for name, sign in {**signs, "decimal_point": self.decimal_point}.items():
            optional = name != "decimal_point" and (sign is False or sign is None)
            if not optional and not (isinstance(sign, str) and len(sign) == 1):
                raise InvalidInput(f"CsvFormat({name}={sign!r}): it is one character")
        for name in ("skip_rows", "skip_rows_after_names"):
            validation.check_integer(getattr(self, name), name, at_least=0, too_small="there are no fewer than none")
        validation.check_integer(self.block_size, "block_size", at_least=1024, too_small="a record must fit in")

    def delimiter_of(self, uri: str) -> str:
        return self.delimiter or ("\t" if ".tsv" in uri.rpartition("/")[2].lower() else ",")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All that a worker has to know of what the caller asked for."""

    format: Format | None = None
    csv: CsvFormat = CsvFormat()
    mapping: tuple[tuple[str, str], ...] = ()
    """(column of the table, where it comes from), both perhaps with dots."""
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
            raise InvalidInput(f"extra={extra!r}: columns that the table does not have are 'refuse'd or 'drop'ped")
        if csv is not None and not isinstance(csv, CsvFormat):
            raise InvalidInput(f"csv= is a CsvFormat(...), and not a {type(csv).__name__}")
        pairs = tuple(validation.check_text_mapping(mapping, "mapping").items())
        for column, _source in pairs:
            above = [other for other, _ in pairs if column.startswith(f"{other}.")]
            if above:
                raise InvalidInput(f"mapping= says where {above[0]!r} comes from, and {column!r} within it; give one")
        return cls(parse_format(format), csv or CsvFormat(), pairs, extra == "drop")

    def check_mapping(self, schema: TableSchema, *, what: str) -> None:
        """That what is mapped is there to be filled."""
        for column, _source in self.mapping:
            fields = {field.name: field for field in schema.fields}
            for name in column.split(".") if column not in fields else [column]:
                if name not in fields:
                    raise InvalidInput(
                        f"mapping= says where {column!r} comes from, and {what} has no such column; its columns are "
                        f"{', '.join(field.name for field in schema.fields)}"
                    )
                fields = {child.name: child for child in fields[name].children}
