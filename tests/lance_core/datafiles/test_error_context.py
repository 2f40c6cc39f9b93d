"""Errors of damaged files name the table, the version, the file, and the columns that were read."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, IndexIgnored, LanceError, NotFound, StorageError, Table
from lance_core.datafiles.checksums import forget_verified_files

Damage = Callable[[Path, bytes], object]
DAMAGES: dict[str, Damage] = {
    "flipped bit": lambda file, data: file.write_bytes(bytes([*data[:20], data[20] ^ 4, *data[21:]])),
    "truncated": lambda file, data: file.write_bytes(data[: len(data) // 2]),
    "other footer": lambda file, data: file.write_bytes(data[:-30] + random.Random(3).randbytes(30)),
    "empty": lambda file, data: file.write_bytes(b""),
    "missing": lambda file, data: file.unlink(),
}


def error_of(uri: str, verify: str) -> LanceError | None:
    forget_verified_files()
    try:
        Table.open(uri, verify=verify).to_table(["id", "words"])
    except LanceError as error:
        return error
    return None


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_errors_name_table_version_file_and_columns(tmp_path: Path, version: str) -> None:
    words = pa.array([["x"] * (n % 3) for n in range(50)])
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": range(50), "words": words}), storage_version=version, durable=False)
    table = table.delete("id = 5").table
    errors = 0
    for file in sorted(path for name in ("data", "_deletions") for path in Path(uri, name).iterdir()):
        original = file.read_bytes()
        for name, damage in DAMAGES.items():
            damage(file, original)
            for verify in ("off", "read"):
                if (error := error_of(uri, verify)) is None:
                    assert (name, verify) == ("flipped bit", "off")  # values that are damaged without contradiction
                    continue
                errors += 1
                assert type(error) in (Corrupt, StorageError, NotFound)
                assert f"{uri}/{file.relative_to(uri)}" in str(error), error
                assert f"fragment 0 of version 2 of {uri}" in str(error), error
                assert file.suffix != ".lance" or "read for id, words" in str(error), error
        file.write_bytes(original)
    assert errors >= 18


def test_warnings_of_damaged_indices_name_table_index_and_file(tmp_path: Path) -> None:
    uri = Table.create(tmp_path / "t", pa.table({"id": range(50)}), durable=False).create_index("id", "BTREE").table.uri
    (page_file,) = Path(uri).glob("_indices/*/page_data.lance")
    page_file.write_bytes(page_file.read_bytes()[:-3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Table.open(uri, verify="read").to_table(filter="id = 7").num_rows == 1
    (message,) = (str(each.message) for each in caught if each.category is IndexIgnored)
    assert uri in message
    assert "'id_idx'" in message
    assert "page_data.lance" in message
