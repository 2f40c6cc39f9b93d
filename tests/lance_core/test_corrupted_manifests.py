"""Corrupted manifests: impossible content raises a typed error that names it, before memory or time is spent on it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, LanceError, StorageError, Table, Unsupported
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.format import manifest_file
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion
from lance_core.storage.local import LocalStore

Change = Callable[[table_pb2.Manifest], None]
Use = Callable[[Table], object]
ROW = pa.table({"id": pa.array([9], pa.int64())})


def create_corrupted_table(directory: Path, change: Change) -> Table:
    table = Table.create(
        directory / "t", pa.table({"id": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]}), durable=False
    )
    path = Path(table.uri) / table.manifest.path
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(path.read_bytes(), path="m"))
    change(message)
    message.ClearField("transaction_section")
    path.write_bytes(manifest_file.frame_manifest(None, None, message.SerializeToString()))
    return Table.open(table.uri)


def read(table: Table) -> pa.Table:
    return table.to_table()


def append(table: Table) -> object:
    return table.append(ROW)


def _remove_date(message: table_pb2.Manifest) -> None:
    message.timestamp.seconds = 2**62


def _set_logical_type(text: str) -> Change:
    def change(message: table_pb2.Manifest) -> None:
        message.fields[0].logical_type = text

    return change


def _set_extension(name: bytes, parameters: bytes = b"") -> Change:
    def change(message: table_pb2.Manifest) -> None:
        message.fields[0].metadata["ARROW:extension:name"] = name
        message.fields[0].metadata["ARROW:extension:metadata"] = parameters

    return change


def _repeat_column_name(message: table_pb2.Manifest) -> None:
    message.fields[1].name = "id"


def _set_negative_column(message: table_pb2.Manifest) -> None:
    message.fragments[0].files[0].column_indices[0] = -7


def _remove_column(message: table_pb2.Manifest) -> None:
    message.fragments[0].files[0].column_indices[0] = -1


def _set_last_fragment_id(message: table_pb2.Manifest) -> None:
    message.max_fragment_id = 2**32 - 1


def _set_last_row_id(message: table_pb2.Manifest) -> None:
    message.reader_feature_flags = message.writer_feature_flags = 2
    message.next_row_id = 2**64 - 1


def _set_too_many_rows(message: table_pb2.Manifest) -> None:
    message.fragments[0].physical_rows = 2**40
    del message.fragments[0].files[:]


def _delete_too_many_rows(message: table_pb2.Manifest) -> None:
    message.fragments[0].deletion_file.num_deleted_rows = 100
    message.reader_feature_flags = message.writer_feature_flags = 1


def _repeat_fragment(message: table_pb2.Manifest) -> None:
    message.fragments.add().CopyFrom(message.fragments[0])


def _set_large_fragment_id(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 2**40


def _set_large_uncounted_fragment_id(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 2**40
    message.ClearField("max_fragment_id")


def _set_unassigned_row_id(message: table_pb2.Manifest) -> None:
    message.fragments[0].id = 7


def _remove_storage_version(message: table_pb2.Manifest) -> None:
    message.data_format.version = "json"


def _store_column_twice(message: table_pb2.Manifest) -> None:
    message.fragments[0].files.add().CopyFrom(message.fragments[0].files[0])


def _remove_data_file(message: table_pb2.Manifest) -> None:
    del message.fragments[0].files[:]
    message.fields[0].nullable = False


CASES: list[tuple[Change, Use, type[LanceError], str]] = [
    (_remove_date, lambda table: table.timestamp, Corrupt, "invalid timestamp of .* seconds after 1970"),
    (_remove_date, lambda table: table.versions(), Corrupt, "invalid timestamp"),
    (_set_logical_type("fixed_size_list:int32:99999999999"), read, Unsupported, "field 'id' .* unknown logical type"),
    (_set_logical_type("fixed_size_binary:99999999999"), read, Unsupported, "unknown logical type"),
    (_set_logical_type("decimal:128:99999999999:0"), read, Unsupported, "unknown logical type"),
    (_set_logical_type("fixed_size_list:" * 3000 + "int8" + ":2" * 3000), read, Unsupported, "unknown logical type"),
    (_set_logical_type("fixed_size_list:" * 62 + "int8" + ":2" * 62), read, Unsupported, "logical type"),
    (
        _set_extension(b"arrow.uuid"),
        read,
        Unsupported,
        "'id'.* extension type 'arrow.uuid', which do not make a valid Arrow field",
    ),
    (_set_extension(b"arrow.fixed_shape_tensor", b"nonsense"), read, Unsupported, "fixed_shape_tensor"),
    (_repeat_column_name, read, Corrupt, "two columns have the name 'id'"),
    (_repeat_column_name, append, Corrupt, "two columns have the name 'id'"),
    (_set_negative_column, read, Corrupt, "cannot have the column -7"),
    (_remove_column, read, Corrupt, "should store column 'id' according to the manifest"),
    (_set_last_fragment_id, append, Unsupported, "all fragment ids are used"),
    (_set_last_row_id, append, InvalidInput, "would need row ids above"),
    (_set_too_many_rows, read, Corrupt, "1099511627776 rows in one fragment do not fit 32 bits"),
    (_set_too_many_rows, lambda table: table.count_rows("id is null"), Corrupt, "do not fit 32 bits"),
    (_delete_too_many_rows, lambda table: table.count_rows(), Corrupt, "records 100 deleted rows of 3"),
    (_delete_too_many_rows, lambda table: table.versions(), Corrupt, "records 100 deleted rows of 3"),
    (_repeat_fragment, read, Corrupt, "lists fragment 0 twice"),
    (_repeat_fragment, lambda table: table.count_rows(), Corrupt, "lists fragment 0 twice"),
    (_repeat_fragment, lambda table: table.delete("id = 1"), Corrupt, "lists fragment 0 twice"),
    (_repeat_fragment, lambda table: table.compact(), Corrupt, "lists fragment 0 twice"),
    (_set_unassigned_row_id, append, Corrupt, "contains fragment 7, but max_fragment_id is 0, .* assigned twice"),
    (
        _set_unassigned_row_id,
        lambda table: table.delete("id = 1"),
        Corrupt,
        "contains fragment 7, but max_fragment_id is 0",
    ),
    (_set_unassigned_row_id, lambda table: table.compact(), Corrupt, "contains fragment 7, but max_fragment_id is 0"),
    (_remove_storage_version, append, Corrupt, "'json' is not a storage version"),
    (_store_column_twice, read, Corrupt, "field 0 is live in two files"),
    (_set_large_fragment_id, read, Corrupt, "does not fit 32 bits"),
    (_set_large_uncounted_fragment_id, append, Corrupt, "does not fit 32 bits"),
    (_remove_data_file, read, Corrupt, "no file of fragment 0 stores column 'id', which is not nullable"),
]


@pytest.mark.parametrize(("change", "use", "error", "message"), CASES)
def test_impossible_content_is_reported(
    change: Change, use: Use, error: type[LanceError], message: str, tmp_path: Path
) -> None:
    table = create_corrupted_table(tmp_path, change)
    with pytest.raises(error, match=message):
        use(table)


def test_a_repeated_base_path_id_is_reported_at_the_opening(tmp_path: Path) -> None:
    def change(message: table_pb2.Manifest) -> None:
        for path in ("/a", "/b"):
            message.base_paths.add(id=1, path=path)

    with pytest.raises(Corrupt, match="has two base paths with the id 1"):
        create_corrupted_table(tmp_path, change)


@pytest.mark.parametrize("change", [_set_last_fragment_id])
def test_corruption_is_reported_before_a_write(change: Change, tmp_path: Path) -> None:
    table = create_corrupted_table(tmp_path, change)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LanceError):
        table.append(ROW, intent="monday")
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_without_stored_columns_cost_no_memory(tmp_path: Path) -> None:
    """A fragment whose columns were all added later contains nulls, and a few bytes contain their number."""

    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].physical_rows = 50_000_000
        del message.fragments[0].files[:]

    table = create_corrupted_table(tmp_path, change)
    before = pa.total_allocated_bytes()
    actual = table.to_table(columns=["id"])
    assert (actual.num_rows, actual["id"].null_count) == (50_000_000, 50_000_000)
    assert pa.total_allocated_bytes() - before < 10_000_000
    assert max(batch.num_rows for batch in table.to_batches()) == 65_536


@pytest.mark.parametrize("directory", ["data", "_versions"])
def test_a_link_out_of_the_table_is_not_followed(directory: str, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    other = Table.create(tmp_path / "other", ROW, durable=False)
    link, target = (next((Path(one.uri) / directory).glob("*.[lm]a*")) for one in (table, other))
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(StorageError, match=r"is a link out of .*, to .*; files outside are not opened"):
        Table.open(table.uri).to_table()


def test_a_table_behind_a_link_is_opened(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    (tmp_path / "link").symlink_to(table.uri)
    assert Table.open(tmp_path / "link").append(ROW).table.count_rows() == 2


def test_errors_of_the_codec_name_the_table(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW, durable=False)
    for path in (tmp_path / "t" / "data").iterdir():
        path.write_bytes(b"junk")
    with pytest.raises(Corrupt, match=str(tmp_path / "t" / "data")):
        table.to_table()
    codec = LanceCodec(LocalStore(tmp_path / "t", durable=False))
    with pytest.raises(StorageError, match=str(tmp_path / "t" / "data" / "new.lance")):
        codec.create("data/new.lance", pa.schema([("a", pa.month_day_nano_interval())]), StorageVersion(2, 2)).finish()
