"""Manifests that say what cannot be: every one is a typed error that names it, before memory or time is spent on it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, LanceError, StorageError, Table, Unsupported
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.format import framing
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion
from lance_core.storage.local import LocalStore

Change = Callable[[table_pb2.Manifest], None]
Use = Callable[[Table], object]
ROW = pa.table({"id": pa.array([9], pa.int64())})


def damaged(place: Path, change: Change) -> Table:
    table = Table.create(
        place / "t", pa.table({"id": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]}), durable=False
    )
    path = Path(table.uri) / table.manifest.path
    message = table_pb2.Manifest.FromString(framing.extract_manifest_message(path.read_bytes(), path="m"))
    change(message)
    message.ClearField("transaction_section")
    path.write_bytes(framing.frame_manifest(None, None, message.SerializeToString()))
    return Table.open(table.uri)


def read(table: Table) -> pa.Table:
    return table.to_table()


def append(table: Table) -> object:
    return table.append(ROW)


def _no_date(message: table_pb2.Manifest) -> None:
    message.timestamp.seconds = 2**62


def _logical(text: str) -> Change:
    def change(message: table_pb2.Manifest) -> None:
        message.fields[0].logical_type = text

    return change


def _extension(name: bytes, parameters: bytes = b"") -> Change:
    def change(message: table_pb2.Manifest) -> None:
        message.fields[0].metadata["ARROW:extension:name"] = name
        message.fields[0].metadata["ARROW:extension:metadata"] = parameters

    return change


def _one_name(message: table_pb2.Manifest) -> None:
    message.fields[1].name = "id"


def _negative_column(message: table_pb2.Manifest) -> None:
    message.fragments[0].files[0].column_indices[0] = -7


def _no_column(message: table_pb2.Manifest) -> None:
    message.fragments[0].files[0].column_indices[0] = -1


def _last_id(message: table_pb2.Manifest) -> None:
    message.max_fragment_id = 2**32 - 1


def _last_row_id(message: table_pb2.Manifest) -> None:
    message.reader_feature_flags = message.writer_feature_flags = 2
    message.next_row_id = 2**64 - 1


def _too_many_rows(message: table_pb2.Manifest) -> None:
    message.fragments[0].physical_rows = 2**40
    del message.fragments[0].files[:]


def _more_deleted_than_there_are(message: table_pb2.Manifest) -> None:
    message.fragments[0].deletion_file.num_deleted_rows = 100
    message.reader_feature_flags = message.writer_feature_flags = 1


def _twice(message: table_pb2.Manifest) -> None:
    message.fragments.add().CopyFrom(message.fragments[0])


def _large_id(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 2**40


def _large_id_uncounted(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 2**40
    message.ClearField("max_fragment_id")


def _not_given_out(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 7


def _no_storage_version(message: table_pb2.Manifest) -> None:
    message.data_format.version = "json"


def _live_twice(message: table_pb2.Manifest) -> None:
    message.fragments[0].files.add().CopyFrom(message.fragments[0].files[0])


def _without_its_file(message: table_pb2.Manifest) -> None:
    del message.fragments[0].files[:]
    message.fields[0].nullable = False


CASES: list[tuple[Change, Use, type[LanceError], str]] = [
    (_no_date, lambda table: table.timestamp, Corrupt, "invalid timestamp of .* seconds after 1970"),
    (_no_date, lambda table: table.versions(), Corrupt, "invalid timestamp"),
    (_logical("fixed_size_list:int32:99999999999"), read, Unsupported, "field 'id' .* unknown logical type"),
    (_logical("fixed_size_binary:99999999999"), read, Unsupported, "unknown logical type"),
    (_logical("decimal:128:99999999999:0"), read, Unsupported, "unknown logical type"),
    (_logical("fixed_size_list:" * 3000 + "int8" + ":2" * 3000), read, Unsupported, "unknown logical type"),
    (_logical("fixed_size_list:" * 62 + "int8" + ":2" * 62), read, Unsupported, "logical type"),
    (
        _extension(b"arrow.uuid"),
        read,
        Unsupported,
        "'id'.* extension type 'arrow.uuid', which do not make a valid Arrow field",
    ),
    (_extension(b"arrow.fixed_shape_tensor", b"nonsense"), read, Unsupported, "fixed_shape_tensor"),
    (_one_name, read, Corrupt, "two columns have the name 'id'"),
    (_one_name, append, Corrupt, "two columns have the name 'id'"),
    (_negative_column, read, Corrupt, "cannot have the column -7"),
    (_no_column, read, Corrupt, "should store column 'id' according to the manifest"),
    (_last_id, append, Unsupported, "all fragment ids are used"),
    (_last_row_id, append, InvalidInput, "would need row ids above"),
    (_too_many_rows, read, Corrupt, "1099511627776 rows in one fragment do not fit 32 bits"),
    (_too_many_rows, lambda table: table.count_rows("id is null"), Corrupt, "do not fit 32 bits"),
    (_more_deleted_than_there_are, lambda table: table.count_rows(), Corrupt, "records 100 deleted rows of 3"),
    (_more_deleted_than_there_are, lambda table: table.versions(), Corrupt, "records 100 deleted rows of 3"),
    (_twice, read, Corrupt, "lists fragment 0 twice"),
    (_twice, lambda table: table.count_rows(), Corrupt, "lists fragment 0 twice"),
    (_twice, lambda table: table.delete("id = 1"), Corrupt, "lists fragment 0 twice"),
    (_twice, lambda table: table.compact(), Corrupt, "lists fragment 0 twice"),
    (_not_given_out, append, Corrupt, "contains fragment 7, but max_fragment_id is 0, .* assigned twice"),
    (_not_given_out, lambda table: table.delete("id = 1"), Corrupt, "contains fragment 7, but max_fragment_id is 0"),
    (_not_given_out, lambda table: table.compact(), Corrupt, "contains fragment 7, but max_fragment_id is 0"),
    (_no_storage_version, append, Corrupt, "'json' is not a storage version"),
    (_live_twice, read, Corrupt, "field 0 is live in two files"),
    (_large_id, read, Corrupt, "does not fit 32 bits"),
    (_large_id_uncounted, append, Corrupt, "does not fit 32 bits"),
    (_without_its_file, read, Corrupt, "no file of fragment 0 stores column 'id', which is not nullable"),
]


@pytest.mark.parametrize(("change", "use", "error", "message"), CASES)
def test_what_cannot_be_is_told(
    change: Change, use: Use, error: type[LanceError], message: str, tmp_path: Path
) -> None:
    table = damaged(tmp_path, change)
    with pytest.raises(error, match=message):
        use(table)


def test_a_number_for_two_base_paths_is_told_when_a_table_is_opened(tmp_path: Path) -> None:
    def change(message: table_pb2.Manifest) -> None:
        for path in ("/a", "/b"):
            message.base_paths.add(id=1, path=path)

    with pytest.raises(Corrupt, match="has two base paths with the id 1"):
        damaged(tmp_path, change)


@pytest.mark.parametrize("change", [_last_id])
def test_it_is_told_before_anything_is_written(change: Change, tmp_path: Path) -> None:
    table = damaged(tmp_path, change)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LanceError):
        table.append(ROW, intent="monday")
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_that_are_only_counted_cost_no_memory(tmp_path: Path) -> None:
    """A fragment whose columns were all added later holds nulls. How many, its manifest says in a few bytes."""

    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].physical_rows = 50_000_000
        del message.fragments[0].files[:]

    table = damaged(tmp_path, change)
    before = pa.total_allocated_bytes()
    found = table.to_table(columns=["id"])
    assert (found.num_rows, found["id"].null_count) == (50_000_000, 50_000_000)
    assert pa.total_allocated_bytes() - before < 10_000_000
    assert max(batch.num_rows for batch in table.to_batches()) == 65_536


@pytest.mark.parametrize("directory", ["data", "_versions"])
def test_a_link_out_of_the_table_is_not_followed(directory: str, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    other = Table.create(tmp_path / "other", ROW, durable=False)
    here, there = (next((Path(one.uri) / directory).glob("*.[lm]a*")) for one in (table, other))
    here.unlink()
    here.symlink_to(there)
    with pytest.raises(StorageError, match=r"is a link out of .*, to .*; files outside are not opened"):
        Table.open(table.uri).to_table()


def test_a_table_behind_a_link_is_a_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    (tmp_path / "link").symlink_to(table.uri)
    assert Table.open(tmp_path / "link").append(ROW).table.count_rows() == 2


def test_errors_of_the_codec_name_the_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    for path in (tmp_path / "t" / "data").iterdir():
        path.write_bytes(b"junk")
    with pytest.raises(StorageError, match=str(tmp_path / "t" / "data")):
        table.to_table()
    codec = LanceCodec(LocalStore(tmp_path / "t", durable=False))
    with pytest.raises(StorageError, match=str(tmp_path / "t" / "data" / "new.lance")):
        codec.create("data/new.lance", pa.schema([("a", pa.month_day_nano_interval())]), StorageVersion(2, 2)).finish()
