"""Ingest formats: files of every format become rows, wherever they are split, and bad records are reported."""

import bz2
import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lance_core import InvalidInput, SchemaMismatch, Table
from lance_core.format.schema import TableSchema
from lance_core.storage.factory import open_store
from lance_core.tasks.ingest import line_splitter
from lance_core.tasks.ingest.file_readers import BadRecord, FileSplit
from lance_core.tasks.ingest.formats import CsvFormat, Format, ReadOptions
from lance_core.tasks.ingest.row_conversion import read_rows
from lance_core.tasks.ingest.sources import SourceReader, list_files
from lance_core.tasks.ingest.worker import partition_files
from tests.lance_core.storage.object_servers import s3
from tests.lance_core.tasks.ingest_environment import IngestEnvironment

ROWS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [f"n{n}" for n in range(1000)]})


@pytest.fixture
def environment(tmp_path: Path) -> IngestEnvironment:
    return IngestEnvironment(tmp_path)


def arrow_file(table: pa.Table, rows: int = 100) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, rows)
    return sink.getvalue().to_pybytes()


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as file:
        file.write_table(table, 100)
    return sink.getvalue().to_pybytes()


def parquet(table: pa.Table, rows: int = 100) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue().to_pybytes()


def csv(table: pa.Table, delimiter: str = ",") -> bytes:
    lines = [delimiter.join(table.schema.names)]
    lines += [delimiter.join(map(str, row.values())) for row in table.to_pylist()]
    return "\n".join(lines).encode()


def jsonl(table: pa.Table) -> bytes:
    return "\n".join(map(json.dumps, table.to_pylist())).encode()


def compress_zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


FILES: dict[str, bytes] = {
    "a.parquet": parquet(ROWS),
    "a.arrow": arrow_file(ROWS),
    "a.arrows": arrow_stream(ROWS),
    "a.feather": arrow_stream(ROWS),
    "a.csv": csv(ROWS),
    "a.tsv": csv(ROWS, "\t"),
    "a.csv.gz": gzip.compress(csv(ROWS)[:5000]) + gzip.compress(csv(ROWS)[5000:]),
    "a.jsonl": jsonl(ROWS) + b"\n",
    "a.json.bz2": bz2.compress(jsonl(ROWS)),
    "a.ndjson.zst": compress_zstd(jsonl(ROWS)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_read(environment: IngestEnvironment, name: str) -> None:
    environment.write_file(name, FILES[name])
    committed = environment.ingest()
    assert committed.table.schema.names == ["id", "name"]
    assert committed.table.to_table() == ROWS


def read_splits(path: str, schema: pa.Schema, count: int, csv: CsvFormat) -> tuple[list[dict], list[BadRecord]]:
    (file,) = list_files(path, {})
    rows: list[dict] = []
    bad: list[BadRecord] = []
    for number in range(count):
        part = FileSplit(file, number, count)
        for found in read_rows(SourceReader(file, {}), part, TableSchema.from_arrow(schema), ReadOptions(csv=csv)):
            if isinstance(found, BadRecord):
                bad.append(found)
            else:
                rows += found.to_pylist()
    return rows, bad


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 700])
def test_each_row_is_read_once_in_any_split(environment: IngestEnvironment, name: str, count: int) -> None:
    few = ROWS.slice(0, 300)
    data = {"a.parquet": parquet(few, 7), "a.arrow": arrow_file(few, 7), "a.csv": csv(few), "a.jsonl": jsonl(few)}[name]
    path = environment.write_file(name, data)
    rows, bad = read_splits(path, ROWS.schema, count, CsvFormat(newlines_in_values=False))
    assert (rows, bad) == (few.to_pylist(), [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_bad_records_have_their_position_in_any_split(environment: IngestEnvironment, kind: str, end: str) -> None:
    invalid = (3, 50, 51, 99)
    values = ["x" if number in invalid else str(number) for number in range(100)]
    lines = ["id", *values] if kind == "csv" else [f'{{"id": {value}}}' for value in values]
    path = environment.write_file(f"a.{kind}", end.join(lines))
    first = 1 if kind == "jsonl" else 2
    for count in (1, 2, 5, 33):
        rows, bad = read_splits(path, pa.schema([("id", pa.int64())]), count, CsvFormat(newlines_in_values=False))
        assert [row["id"] for row in rows] == [number for number in range(100) if number not in invalid]
        assert [(each.row, each.line) for each in bad] == [(number + 1, number + first) for number in invalid]


def test_large_files_are_split_and_small_ones_grouped(environment: IngestEnvironment) -> None:
    mib = 1024 * 1024
    (file,) = list_files(environment.write_file("a.parquet", b"x"), {})

    def shares(name: str, sizes: list[int], csv: CsvFormat | None = None) -> list[list[tuple[str, int, int]]]:
        files = [type(file)(f"/{number}{name}", size, "") for number, size in enumerate(sizes)]
        partitions = partition_files(files, ReadOptions(csv=csv or CsvFormat()), 2)
        return [[(part.file.uri, part.number, part.count) for part in share] for share in partitions]

    assert [len(share) for share in shares(".parquet", [1000] * 100)] == [100]
    assert [len(share) for share in shares(".parquet", [100 * mib])] == [1, 1, 1, 1]
    assert len(shares(".csv", [100 * mib])) == 1, "a value may contain a line break"
    assert len(shares(".csv", [100 * mib], CsvFormat(newlines_in_values=False))) == 4
    assert len(shares(".jsonl.gz", [100 * mib])) == 1
    assert len(shares(".jsonl", [100 * mib])) == 4
    spread = shares(".parquet", [10 * mib] * 10)
    assert sorted(part for share in spread for part in share) == sorted((f"/{n}.parquet", 0, 1) for n in range(10))
    assert max(len(share) for share in spread) <= 3


# CSV

TYPES = pa.schema(
    [
        ("i", pa.uint8()),
        ("f", pa.float32()),
        ("d", pa.decimal128(10, 2)),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("at", pa.time64("us")),
        ("s", pa.large_string()),
        ("x", pa.binary(3)),
        ("k", pa.dictionary(pa.int8(), pa.string())),
    ]
)


def test_text_is_parsed_into_the_types_of_the_table(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, TYPES)
    environment.write_file(
        "a.csv",
        f"{','.join(TYPES.names)}\n"
        '7, 1.5,2.25,true,2024-01-01T00:00:00Z,2024-01-01 10:00:00,2024-02-29,09:30:00.5,"a\nb",abc,k\n'
        "NA,,,,,,,,,,\n",
    )
    rows = environment.ingest().table.to_table().to_pylist()
    assert rows[0] == {
        "i": 7,
        "f": 1.5,
        "d": Decimal("2.25"),
        "b": True,
        "t": datetime(2024, 1, 1, tzinfo=UTC),
        "n": datetime.fromisoformat("2024-01-01T10:00:00"),
        "day": date(2024, 2, 29),
        "at": time(9, 30, 0, 500_000),
        "s": "a\nb",
        "x": b"abc",
        "k": "k",
    }
    assert {name for name, value in rows[1].items() if value is not None} <= {"s", "k", "x"}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("i", "300", "Failed to parse string: '300'"),
        ("i", "1.5", "Failed to parse string: '1.5'"),
        ("f", "1e300", "too large for float"),
        ("d", "1.555", "data loss"),
        ("b", "maybe", "'maybe' is neither true nor false"),
        ("t", "2024-01-01T00:00:00", "expected a zone offset"),
        ("n", "yesterday", "'yesterday'"),
        ("day", "2024-02-30", "2024-02-30"),
        ("at", "noon", "is not a time"),
        ("x", "abcd", "widths must match"),
    ],
)
def test_an_invalid_value_is_reported_with_its_position(
    environment: IngestEnvironment, column: str, value: str, reason: str
) -> None:
    Table.create(environment.uri, pa.schema([TYPES.field(column)]))
    path = environment.write_file("a.csv", f"{column}\n\n{value}\n")
    with pytest.raises(SchemaMismatch, match=rf"a\.csv, row 1 \(line 3\), column '{column}'") as raised:
        environment.ingest()
    assert reason in str(raised.value)
    assert raised.value.column == column
    assert path in str(raised.value)
    assert Table.open(environment.uri).version == 1


def test_csv_dialects(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("id", pa.int64()), ("v", pa.float64()), ("on", pa.timestamp("s"))]))
    environment.write_file("a.csv", "made by x\nwho knows\n1;1,5;31/12/2024\n-;2,5;2024-12-30\n")
    csv = CsvFormat(
        delimiter=";",
        skip_rows=2,
        column_names=("id", "v", "on"),
        null_values=("-",),
        decimal_point=",",
        timestamp_parsers=("%d/%m/%Y",),
    )
    rows = environment.ingest(csv=csv).table.to_table().to_pylist()
    assert [list(row.values()) for row in rows] == [
        [1, 1.5, datetime.fromisoformat("2024-12-31")],
        [None, 2.5, datetime.fromisoformat("2024-12-30")],
    ]


def test_nulls_and_empty_texts_by_pyarrows_rules(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("a", pa.string()), ("b", pa.string())]))
    environment.write_file("1.csv", 'a,b\n,""\n')
    assert environment.ingest().table.to_table().to_pylist() == [{"a": "", "b": ""}]
    environment.write_file("2.csv", 'a,b\n,""\n')
    nulls = CsvFormat(strings_can_be_null=True, quoted_strings_can_be_null=False)
    assert environment.ingest(csv=nulls).table.to_table().to_pylist()[1] == {"a": None, "b": ""}


def test_invalid_utf8_is_a_bad_record(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("a", pa.string())]))
    environment.write_file("1.csv", b"a\nx\n\xff\xfe\ny\n")
    committed = environment.ingest(on_bad_record=environment.bad_records_uri)
    assert committed.table.to_table()["a"].to_pylist() == ["x", "y"]
    assert [row["row"] for row in Table.open(environment.bad_records_uri).to_table().to_pylist()] == [2]


def test_a_multi_line_record_counts_once(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("a", pa.string()), ("b", pa.int64())]))
    environment.write_file("1.csv", 'a,b\n"1\n2\n3",1\n\n"x\ny",bad\nq\n"z\n",2\nw,bad\n')
    committed = environment.ingest(on_bad_record=environment.bad_records_uri)
    assert committed.table.to_table()["b"].to_pylist() == [1, 2]
    bad_rows = sorted(Table.open(environment.bad_records_uri).to_table().to_pylist(), key=lambda row: row["row"])
    assert [(row["row"], row["line"], row["column"]) for row in bad_rows] == [(2, 6, "b"), (3, 8, None), (5, 11, "b")]
    assert json.loads(bad_rows[0]["record"]) == {"a": "x\ny", "b": "bad"}
    assert bad_rows[1]["record"] == "q"


# Bad records of typed files


def test_invalid_rows_of_a_typed_file_are_bad_records(environment: IngestEnvironment) -> None:
    Table.create(
        environment.uri, pa.schema([pa.field("id", pa.uint8(), nullable=False), ("v", pa.list_(pa.float32(), 2))])
    )
    vectors = [[1.0, 2.0] if n != 70 else [1.0] for n in range(300)]
    given = pa.table({"id": pa.array([None if n == 5 else n for n in range(300)], pa.int64()), "v": vectors})
    environment.write_file("a.parquet", parquet(given, 64))
    committed = environment.ingest(on_bad_record=environment.bad_records_uri)
    assert committed.table.to_table()["id"].to_pylist() == [n for n in range(256) if n not in (5, 70)]
    bad = sorted(Table.open(environment.bad_records_uri).to_table().to_pylist(), key=lambda row: row["row"])
    assert [row["row"] for row in bad] == [6, 71, *range(257, 301)]
    assert bad[0]["reason"] == "'id' is not nullable, and the record has no value"
    assert json.loads(bad[1]["record"]) == {"id": 70, "v": [1.0]}
    assert bad[1]["column"] == "v"


def test_row_numbers_continue_within_a_large_group(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("id", pa.int64())]))
    environment.write_file("a.parquet", parquet(pa.table({"id": pa.array(np.arange(70_000), pa.uint64())}), 70_000))
    invalid = pa.array([2**63 if n == 69_000 else n for n in range(70_000)], pa.uint64())
    environment.write_file("b.parquet", parquet(pa.table({"id": invalid}), 70_000))
    with pytest.raises(SchemaMismatch, match=r"b\.parquet, row 69,001, column 'id'"):
        environment.ingest()


def test_damaged_files_are_one_bad_record_each(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, ROWS.schema)
    for name in ("a.parquet", "a.arrow", "a.csv.gz", "a.json.bz2", "a.ndjson.zst"):
        environment.write_file(name, FILES[name][: len(FILES[name]) // 2])
    environment.write_file("b.parquet", FILES["a.parquet"])
    with pytest.raises(InvalidInput, match=r"the file cannot be read"):
        environment.ingest()
    committed = environment.ingest(on_bad_record=environment.bad_records_uri)
    bad = Table.open(environment.bad_records_uri).to_table().to_pylist()
    assert sorted(row["file"].rpartition("/")[2] for row in bad if row["row"] is None) == [
        "a.arrow",
        "a.csv.gz",
        "a.json.bz2",
        "a.ndjson.zst",
        "a.parquet",
    ]
    assert committed.rows_added >= 1000


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.arrows"])
def test_changed_bytes_never_crash_the_process(environment: IngestEnvironment, name: str) -> None:
    Table.create(environment.uri, ROWS.schema)
    random = np.random.default_rng(1)
    for number in range(40):
        data = bytearray(FILES[name])
        for at in random.integers(0, len(data), 20):
            data[at] = random.integers(0, 256)
        environment.write_file(f"{number}{name[1:]}", bytes(data))
    committed = environment.ingest(on_bad_record=environment.bad_records_uri, extra="drop")
    assert committed.table.fsck().is_sound


# Columns


def test_columns_are_matched_by_name_and_missing_ones_are_null(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float32(), 2))]))
    environment.write_file("1.jsonl", '{"b": "x", "a": 1}\n{"c": [1, 2]}\n')
    environment.write_file("2.csv", "b\ny\n")
    environment.write_file("3.parquet", parquet(pa.table({"a": pa.array([3], pa.int8())})))
    rows = environment.ingest().table.to_table().to_pylist()
    assert [list(row.values()) for row in rows] == [
        [1, "x", None],
        [None, None, [1.0, 2.0]],
        [None, "y", None],
        [3, None, None],
    ]


@pytest.mark.parametrize("make", [parquet, arrow_file, csv, jsonl], ids=["parquet", "arrow", "csv", "jsonl"])
def test_columns_that_the_table_lacks_are_refused_or_dropped(
    environment: IngestEnvironment, make: Callable[..., bytes]
) -> None:
    Table.create(environment.uri, ROWS.schema)
    name = {"parquet": "a.parquet", "arrow_file": "a.arrow", "csv": "a.csv", "jsonl": "a.jsonl"}[make.__name__]
    environment.write_file(name, make(ROWS.append_column("new", [["x"] * 1000])))
    with pytest.raises(SchemaMismatch, match=r"has columns that the table does not have: 'new'.*extra='drop'"):
        environment.ingest(on_bad_record=environment.bad_records_uri)
    assert environment.ingest(extra="drop").table.to_table() == ROWS


def test_names_are_mapped_in_and_out_of_structs(environment: IngestEnvironment) -> None:
    person = pa.struct([("name", pa.string()), ("age", pa.int64())])
    Table.create(environment.uri, pa.schema([("id", pa.int64()), ("city", pa.string()), ("person", person)]))
    source = {"ident": 1, "address": {"town": "x"}, "person": {"nm": "n", "age": 5}}
    mapping = {"id": "ident", "city": "address.town", "person.name": "person.nm"}
    environment.write_file("a.jsonl", json.dumps(source))
    environment.write_file("b.parquet", parquet(pa.Table.from_pylist([source, {**source, "person": None}])))
    rows = environment.ingest(mapping=mapping).table.to_table().to_pylist()
    full = {"id": 1, "city": "x", "person": {"name": "n", "age": 5}}
    assert rows == [full, full, {**full, "person": None}]
    environment.write_file("c.parquet", parquet(pa.table({"id": [1]})))
    with pytest.raises(SchemaMismatch, match=r"c\.parquet has no column 'ident', from which mapping= takes 'id'"):
        environment.ingest(mapping=mapping)
    with pytest.raises(InvalidInput, match=r"mapping= names a source for 'person\.nme', but .* has no such column"):
        environment.ingest(mapping={"person.nme": "x"})


def test_nested_fields_that_the_table_lacks(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("p", pa.struct([("a", pa.int64())]))]))
    environment.write_file("a.parquet", parquet(pa.Table.from_pylist([{"p": {"a": 1, "b": 2}}])))
    with pytest.raises(SchemaMismatch, match="'b'"):
        environment.ingest()
    assert environment.ingest(extra="drop").table.to_table().to_pylist() == [{"p": {"a": 1}}]


def test_a_new_table_has_the_columns_of_all_files(environment: IngestEnvironment) -> None:
    environment.write_file("1.csv", "a,b\n1,x\n")
    environment.write_file("2.parquet", parquet(pa.table({"a": [1.5], "c": pa.array([[1]], pa.list_(pa.int8()))})))
    schema = environment.ingest().table.schema
    assert schema.equals(pa.schema([("a", pa.float64()), ("b", pa.string()), ("c", pa.list_(pa.int8()))]))


def test_conflicting_types_of_files_are_reported(environment: IngestEnvironment) -> None:
    environment.write_file("1.csv", "a\n1\n")
    environment.write_file("2.jsonl", '{"a": "x"}\n')
    with pytest.raises(SchemaMismatch, match=r"column 'a' is int64 in .*1\.csv, and string in .*2\.jsonl.*schema="):
        environment.ingest()
    assert not Table.exists(environment.uri)
    environment.write_file("2.jsonl", '{"a": "7"}\n')
    committed = environment.ingest([f"{environment.source_uri}/1.csv"], schema=pa.schema([("a", pa.uint16())]))
    assert committed.table.schema.field("a").type == pa.uint16()


def test_a_column_of_another_type_is_an_error_of_the_file(environment: IngestEnvironment) -> None:
    Table.create(environment.uri, pa.schema([("a", pa.int64())]))
    environment.write_file("1.parquet", parquet(pa.table({"a": ["x"]})))
    with pytest.raises(SchemaMismatch, match=r"1\.parquet: column 'a' is stored as int64, but the data has string"):
        environment.ingest(on_bad_record=environment.bad_records_uri)


# File selection


def test_globs_directories_and_lists(environment: IngestEnvironment) -> None:
    for name in ("a/1.csv", "a/2.csv", "a/b/3.csv", "a/_tmp/4.csv", "a/.5.csv", "_SUCCESS", "c.txt", "a/x[1].csv"):
        environment.write_file(name, "id\n1\n")

    def found(*files: str) -> list[str]:
        patterns = [f"{environment.source_uri}/{each}" for each in files]
        return [file.uri.removeprefix(f"{environment.source_uri}/") for file in list_files(patterns, {})]

    assert found("a/*.csv") == ["a/1.csv", "a/2.csv", "a/x[1].csv"]
    assert found("**/*.csv") == ["a/1.csv", "a/2.csv", "a/b/3.csv", "a/x[1].csv"]
    assert found("a/[!1x]*.csv", "a/1.csv", "a/1.csv") == ["a/1.csv", "a/2.csv"]
    assert found("a/x[1].csv") == ["a/x[1].csv"], "the name of an existing file is not a pattern"
    assert found("*/_tmp/*", "a/.*.csv") == ["a/.5.csv", "a/_tmp/4.csv"]
    assert found("a/?.csv") == ["a/1.csv", "a/2.csv"]
    assert found("") == ["a/1.csv", "a/2.csv", "a/b/3.csv", "a/x[1].csv", "c.txt"]


def test_an_unknown_format_must_be_given(environment: IngestEnvironment) -> None:
    environment.write_file("a.txt", "id\n1\n")
    with pytest.raises(InvalidInput, match=r"the format of .*a\.txt is unknown from its name; give format="):
        environment.ingest()
    with pytest.raises(InvalidInput, match=r"format='xml': it must be one of"):
        environment.ingest(format="xml")
    assert environment.ingest(format=Format.CSV.value).rows_added == 1


def test_files_in_a_bucket_and_a_table_on_disk(environment: IngestEnvironment) -> None:
    with s3() as server:
        bucket = server.bucket()
        other_environment = IngestEnvironment(environment.directory / "copy")
        store = open_store(f"{bucket.uri}/in", storage_options=bucket.options)
        store.put("x/1.parquet", FILES["a.parquet"])
        store.put("x/2 2.csv.gz", FILES["a.csv.gz"])
        store.put("x/_no.csv", b"")
        files = f"{bucket.uri}/in/**"
        assert environment.ingest(files, source_options=bucket.options).rows_added == 2000
        assert environment.ingest(files, source_options=bucket.options).files == 0
        store.put("x/3.jsonl", FILES["a.jsonl"])
        side = f"{bucket.uri}/bad"
        committed = other_environment.ingest(
            files, uri=f"{bucket.uri}/table", options=bucket.options, on_bad_record=side
        )
        assert committed.rows_added == 3000
        assert other_environment.ingest(files, uri=f"{bucket.uri}/table", options=bucket.options).files == 0
        store.put("x/3.jsonl", FILES["a.jsonl"].replace(b"n1", b"m1", 1))
        with pytest.raises(InvalidInput, match=r"changed since: s3://.*/in/x/3\.jsonl"):
            other_environment.ingest([files], uri=f"{bucket.uri}/table", options=bucket.options)


def test_lines_survive_a_split_at_any_byte(tmp_path: Path) -> None:
    data = b"a\n\nbb\r\nccc\nd"
    (tmp_path / "f").write_bytes(data)
    for count in range(1, len(data) + 2):
        pieces = []
        for number in range(count):
            with (tmp_path / "f").open("rb") as raw:
                pieces.append(line_splitter.open_split(raw, None, len(data), number, count)[0].read())
        assert b"".join(pieces) == data
        ended = [piece for piece in pieces if piece]
        assert all(piece.endswith(b"\n") for piece in ended[:-1])
