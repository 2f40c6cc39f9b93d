"""Golden tables: we read what each old release of pylance read from its own tables, at every version, or refuse with a
reason.

`make.py` wrote the tables; `tables/<release>.json` records what the release read and what it could not do. The
current pylance is the reference for a version that its own release could not read. `REFUSED` and `READ_BETTER` list all
exceptions.
"""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pytest

from lance_core import Table
from lance_core.errors import Unsupported
from lance_core.format.manifest import Manifest
from tests.golden.reading import rows_of, schema_of

TABLES = Path(__file__).parent / "tables"
RELEASES = (
    "0.5.0",
    "0.8.0",
    "0.10.0",
    "0.10.5",
    "0.12.3",
    "0.15.0",
    "0.20.0",
    "0.30.0",
    "1.0.0",
    "4.0.0",
    "8.0.0",
    "14.0.2",
)

# (release, table) -> refused versions, and our message.
REFUSED: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {
    # An append after columns were dropped and renumbered; the release cannot read it itself.
    ("0.10.0", "columns_legacy"): ((11,), "has no field 8, 'double'"),
    ("0.10.5", "columns_legacy"): ((11,), "has no field 8, 'double'"),
    # 2.0 was a draft in 0.12. The table reader of the current pylance reads it, its file reader does not.
    ("0.12.3", "types_2.0"): ((1, 2), "a draft of storage version 2.0"),
    ("0.12.3", "columns_2.0"): (tuple(range(1, 11)), "a draft of storage version 2.0"),
    # 2.2 was a draft in 1.0. The current pylance refuses it as we do.
    ("1.0.0", "types_2.2"): ((1, 2), "a draft of its storage version"),
    ("1.0.0", "later_types_2.2"): ((1, 2), "a draft of its storage version"),
    ("1.0.0", "history_2.2"): (tuple(range(1, 12)), "a draft of its storage version"),
    ("1.0.0", "columns_2.2"): (tuple(range(1, 13)), "a draft of its storage version"),
}

# (release, table) -> version -> our result, where the release misread its own table.
READ_BETTER: dict[tuple[str, str], dict[int, dict[str, Any]]] = {
    # Subtracted earlier deletions twice.
    ("0.8.0", "handed_over"): {5: {"count": 11}, 6: {"count": 10}},
    # Assigned ids of dropped columns to new ones, and returned values of the dropped ones.
    **{
        (release, "reused_ids"): {
            6: {"rows": {"x": [0, 1, 2, 3], "y": [0, 2, 4, 6], "b": [0, 4, 8, 12], "c": [0, 5, 10, 15]}}
        }
        for release in ("0.10.0", "0.10.5")
    },
}


@cache
def release_notes(release: str) -> dict[str, Any]:
    return dict(json.loads((TABLES / f"{release}.json").read_text()))


def cases() -> list[tuple[str, str]]:
    return [
        (release, name)
        for release in RELEASES
        for name, table in release_notes(release)["tables"].items()
        if table["versions"]
    ]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden")
    for release in RELEASES:
        with tarfile.open(TABLES / f"{release}.tar.xz") as archive:
            if hasattr(tarfile, "data_filter"):  # Python 3.11 has it since 3.11.4
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(root / release)
    return root


def test_every_release_is_there() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in TABLES.glob("*.tar.xz")} == set(RELEASES)


@pytest.mark.parametrize(("release", "name"), cases())
def test_reads_what_the_release_read(unpacked: Path, release: str, name: str) -> None:
    """Each version equals the record of the release; parts of the newest readable version equal its whole content."""
    place = str(unpacked / release / name)
    expected = release_notes(release)["tables"][name]["versions"]
    newest = Table.open(place)
    assert [info.version for info in newest.versions()] == sorted(map(int, expected))
    refused, message = REFUSED.get((release, name), ((), ""))
    better = READ_BETTER.get((release, name), {})
    for version in map(int, expected):
        table = newest.at(version)
        if version in refused:
            with pytest.raises(Unsupported, match=message):
                read_table(table)
            continue
        recorded = expected[str(version)] or read_with_pylance(place, version)
        assert read_table(table) == recorded | better.get(version, {}), f"version {version}"
    readable = [version for version in (newest.version, 1) if version not in refused]
    if readable:
        check_partial_reads(newest.at(readable[0]))


def check_partial_reads(table: Table) -> None:
    """Check that single columns, and rows from the middle, equal those of the whole table."""
    whole = table.to_table()
    for column in whole.column_names:
        assert as_json(rows_of(table.to_table(columns=[column]))) == as_json(rows_of(whole.select([column])))
    assert as_json(rows_of(table.to_table(limit=3, offset=2))) == as_json(rows_of(whole.slice(2, 3)))


# Old manifests, by the releases that show each property. The tests above read their rows.


def decode_manifest(unpacked: Path, release: str, name: str, version: int) -> Manifest:
    """Return the manifest as stored, before missing counts are computed."""
    path = f"_versions/{version}.manifest"
    return Manifest.decode((unpacked / release / name / path).read_bytes(), path=path)


def test_manifests_without_data_format(unpacked: Path) -> None:
    for release in ("0.5.0", "0.10.0", "0.15.0"):
        manifest = decode_manifest(unpacked, release, "deletions", 4)
        assert not manifest.message.HasField("data_format")
        assert str(manifest.storage_version) == "0.1"
    assert str(decode_manifest(unpacked, "0.15.0", "history_2.0", 2).storage_version) == "2.0"


def test_manifests_without_writer_version_or_counts(unpacked: Path) -> None:
    manifest = decode_manifest(unpacked, "0.5.0", "deletions", 4)
    assert not manifest.has_writer
    assert [fragment.physical_rows for fragment in manifest.fragments] == [0, 0, 0]
    deleted = [fragment.deletion_file for fragment in manifest.fragments]
    assert [file and file.deleted_rows for file in deleted] == [None, None, None]
    assert sum(file is not None for file in deleted) == 2
    table = Table.open(str(unpacked / "0.5.0" / "deletions"))
    assert [fragment.physical_rows for fragment in table.fragments] == [4, 4, 4]
    assert [fragment.live_rows for fragment in table.fragments] == [2, 3, 4]
    assert [info.rows for info in table.versions()] == [4, 8, 12, 9]


def test_manifests_with_wrong_counts(unpacked: Path) -> None:
    """0.8.0 took the rows that 0.5.0 had left for all rows, and subtracted the deleted ones again."""
    manifest = decode_manifest(unpacked, "0.8.0", "handed_over", 5)
    assert not manifest.has_writer
    assert [fragment.physical_rows for fragment in manifest.fragments] == [2, 3, 4, 2]
    assert manifest.row_count() == 8
    assert Table.open(str(unpacked / "0.8.0" / "handed_over"), version=5).count_rows() == 11


def test_manifests_without_max_fragment_id(unpacked: Path) -> None:
    manifest = decode_manifest(unpacked, "0.5.0", "deletions", 4)
    assert not manifest.message.max_fragment_id
    assert Manifest.decode(encode_without(manifest, "max_fragment_id"), path="x").max_fragment_id == 2


def test_data_files_without_columns_version_or_size(unpacked: Path) -> None:
    (fragment,) = decode_manifest(unpacked, "0.5.0", "reused_ids", 1).fragments
    (file,) = fragment.files
    assert (file.field_ids, file.column_indices, str(file.version), file.size) == ((0,), (), "0.1", None)


def test_field_ids_given_out_twice(unpacked: Path) -> None:
    """The last file that lists an id holds its column."""
    manifest = decode_manifest(unpacked, "0.10.5", "reused_ids", 6)
    listed = [[list(file.fields) for file in fragment.files] for fragment in manifest.message.fragments]
    assert listed == [[[0], [1, 2], [3], [2, 3]], [[0, 1, 2, 3], [2, 3]]]
    live = [[file.field_ids for file in fragment.files] for fragment in manifest.fragments]
    assert live == [[(0,), (1, -2), (-2,), (2, 3)], [(0, 1, -2, -2), (2, 3)]]


def test_writer_versions_are_not_parsed(unpacked: Path) -> None:
    manifest = decode_manifest(unpacked, "0.10.0", "deletions", 4)
    for version in ("0.39.0-beta.2", "7.1.0-rc.1+build.5", "next", ""):
        message = manifest.copy_header()
        message.writer_version.version = version
        framed = Manifest.from_header(message, index_section=None, transaction=None, path="x")
        assert Manifest.decode(framed.encode(), path="x").row_count() == 9


def test_deletions_are_kept_both_ways(unpacked: Path) -> None:
    for release in RELEASES:
        (bitmap,) = Table.open(str(unpacked / release / "bitmap")).fragments
        assert bitmap.deletion_file is not None
        assert bitmap.deletion_file.is_bitmap
        arrays = [fragment.deletion_file for fragment in Table.open(str(unpacked / release / "deletions")).fragments]
        assert not any(file.is_bitmap for file in arrays if file)


def encode_without(manifest: Manifest, name: str) -> bytes:
    message = manifest.copy_header()
    message.ClearField(name)
    return Manifest.from_header(message, index_section=None, transaction=None, path="x").encode()


def read_table(table: Table) -> dict[str, Any]:
    seen = table.to_table()
    return as_json({"schema": schema_of(seen.schema), "count": table.count_rows(), "rows": rows_of(seen)})


def read_with_pylance(place: str, version: int) -> dict[str, Any]:
    table = lance.dataset(place, version=version)
    seen = table.to_table()
    return as_json({"schema": schema_of(seen.schema), "count": table.count_rows(), "rows": rows_of(seen)})


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(value)))
