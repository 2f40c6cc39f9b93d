"""Version discovery: the newest version is found by the hint and probes if none can be missed, and by listing
otherwise; manifests have old and new names. The tests name the traps of the format that concern them.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from lance_core import Corrupt, CorruptHead, NotFound, Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.storage.local import LocalStore
from lance_core.storage.memory import MemoryStore
from lance_core.versions import version_hint as hints
from tests.lance_core.versions.test_refs import ids, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), rows(1)).append(rows(2)).table.append(rows(3)).table


def store_of(table: Table) -> LocalStore:
    return LocalStore(Path(table.uri))


def hint_of(table: Table) -> Path:
    return Path(table.uri) / hints.HINT


def write_hint_last(table: Table, text: bytes) -> None:
    """Write the hint as a writer does: as the last change in its directory."""
    store_of(table).put_volatile(hints.HINT, text)


def count_system_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls to the operating system."""
    calls: Counter[str] = Counter()

    def counting(name: str, real: Callable) -> Callable:
        def call(*arguments, **options):
            calls[name] += 1
            return real(*arguments, **options)

        return call

    for name in ("scandir", "listdir", "stat", "lstat"):
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return calls


def test_the_hint_equals_that_of_pylance(table: Table) -> None:
    ours = hint_of(table).read_bytes()
    lance.write_dataset(rows(4), table.uri, mode="append")
    assert (ours, hint_of(table).read_bytes()) == (b'{"version":3}', b'{"version":4}')


def test_the_hint_spares_the_listing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_system_calls(monkeypatch)
    assert Table.open(table.uri).version == 3
    assert Table.exists(table.uri)
    assert calls["scandir"] == 0
    lance.write_dataset(rows(4), table.uri, mode="append")
    assert Table.open(table.uri).version == 4
    assert calls["scandir"] == 0


@pytest.mark.parametrize(
    "text",
    [
        b"", b"garbage", b"\xff\xfe", b"[1]", b"3", b'{"version":"3"}', b'{"version":true}', b'{"version":0}',
        b'{"version":-1}', b'{"version":99}', b'{"version":18446744073709551615}', b'{"version":1e3}',
        b'{"version":9223372036854775809}', b'{"v":3}', b"[" * 64, b'{"version":3' + b" " * 100 + b"}",
    ],
)  # fmt: skip
def test_an_invalid_hint_is_ignored(table: Table, text: bytes) -> None:
    write_hint_last(table, text)
    assert hints.find_newest(store_of(table)) is None
    assert Table.open(table.uri).version == 3


def test_a_missing_hint_costs_a_listing_only(table: Table) -> None:
    hint_of(table).unlink()
    assert Table.open(table.uri).version == 3


def test_trap_26_a_low_hint_is_probed_upwards(table: Table) -> None:
    write_hint_last(table, b'{"version":1}')
    assert hints.find_newest(store_of(table)) == (3, NamingScheme.V2)


def test_a_hint_before_a_gap_is_not_trusted(table: Table) -> None:
    """Version 1 exists, 2 does not, 3 does: a reader that stops at the gap would miss version 3."""
    write_hint_last(table, b'{"version":1}')
    (Path(table.uri) / naming.manifest_path(Version(2))).unlink()
    os.utime(Path(table.uri) / "_versions", ns=(0, hint_of(table).stat().st_ctime_ns + 60 * 10**9))
    assert hints.find_newest(store_of(table)) is None
    assert Table.open(table.uri).version == 3


def test_a_copied_table_is_listed(table: Table, tmp_path: Path) -> None:
    write_hint_last(table, b'{"version":1}')
    copied = tmp_path / "copied"
    shutil.copytree(table.uri, copied)
    os.utime(copied / "_versions", ns=(0, 10**18))
    assert hints.find_newest(LocalStore(copied)) is None
    assert Table.open(str(copied)).version == 3


def test_a_commit_without_a_hint_is_found(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
    lance.write_dataset(rows(4), table.uri, mode="append")
    assert ids(Table.open(table.uri)) == [1, 2, 3, 4]


def test_branches_and_clones_have_hints(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [table.branches.create("dev"), table.clone(str(tmp_path / "c"))]
    grown = [line.append(rows(4)).table for line in lines]
    calls = count_system_calls(monkeypatch)
    assert [line.refresh().version for line in (*lines, *grown)] == [4] * 4
    assert calls["scandir"] == 0
    assert [hint_of(line).read_bytes() for line in lines] == [b'{"version":4}'] * 2


def test_stores_that_list_in_order_get_no_hint() -> None:
    store = MemoryStore()
    hints.write_hint(store, Version(1))
    assert store.head(hints.HINT) is None
    assert hints.find_newest(store) is None


def test_a_hint_that_cannot_be_written_is_not_a_failure(table: Table) -> None:
    hint_of(table).unlink()
    hint_of(table).mkdir()
    assert table.append(rows(4)).version == 4
    assert Table.open(table.uri).version == 4


def test_a_damaged_newest_version_is_reported_in_every_case(table: Table) -> None:
    head = Path(table.uri) / table.manifest.path
    head.write_bytes(b"x" * 100)
    for text in (b'{"version":3}', b"nothing"):
        write_hint_last(table, text)
        with pytest.raises(CorruptHead, match="the newest version 3 of this table is damaged"):
            Table.open(table.uri)


def test_trap_35_leftovers_of_writers_are_no_versions(table: Table) -> None:
    versions = Path(table.uri) / "_versions"
    for name in (f"{naming.manifest_path(Version(9)).rpartition('/')[2]}#1", ".tmpAbCdEf", ".tmp-1", "9.manifest.bak"):
        (versions / name).write_bytes(b"half")
    assert Table.open(table.uri).version == 3
    assert len(table.versions()) == 3


def old_names(path: str) -> Table:
    lance.write_dataset(rows(1), path, enable_v2_manifest_paths=False)
    lance.write_dataset(rows(2), path, mode="append")
    return Table.open(path)


def test_writers_keep_the_old_naming_scheme(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t")).append(rows(3)).table
    names = {path.name for path in (tmp_path / "t/_versions").glob("*.manifest")}
    assert names == {"1.manifest", "2.manifest", "3.manifest"}
    assert hints.find_newest(store_of(table)) == (3, NamingScheme.V1)
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == ids(Table.open(table.uri)) == [1, 2, 3]
    branch = table.branches.create("dev")  # a branch with its own, new naming scheme
    assert branch.manifest.path == naming.manifest_path(Version(3))


def test_migrating_names_equals_that_of_pylance(tmp_path: Path) -> None:
    ours, theirs = old_names(str(tmp_path / "ours")), old_names(str(tmp_path / "theirs"))
    lance.dataset(theirs.uri).migrate_manifest_paths_v2()
    for _ in range(2):
        migrated = ours.migrate_manifest_names()
        assert sorted(os.listdir(tmp_path / "ours/_versions")) == sorted(os.listdir(tmp_path / "theirs/_versions"))
    assert ids(migrated.append(rows(3)).table) == [1, 2, 3]
    assert lance.dataset(ours.uri).to_table()["id"].to_pylist() == [1, 2, 3]
    assert ids(migrated.at(1)) == [1]


def test_an_interrupted_migration_is_detected_and_completed(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t"))
    versions = tmp_path / "t/_versions"
    shutil.copy(versions / "1.manifest", tmp_path / "t" / naming.manifest_path(Version(1)))
    hint_of(table).unlink()
    with pytest.raises(Corrupt, match=r"both naming schemes.*migrate_manifest_names"):
        Table.open(table.uri)
    with pytest.raises(Corrupt, match="both naming schemes"):
        table.append(rows(3))
    assert ids(Table.open(table.uri, version=2).migrate_manifest_names()) == [1, 2]


def test_two_manifests_of_one_version_are_an_error(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t"))
    (tmp_path / "t" / naming.manifest_path(Version(2))).write_bytes(table.at(1).manifest.encode())
    with pytest.raises(Corrupt, match="differs from the manifest of the same version under its old name"):
        Table.open(table.uri, version=1).migrate_manifest_names()
    assert (tmp_path / "t/_versions/2.manifest").exists()


def test_many_versions_cost_no_more_to_open(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure is the number of calls, which does not depend on the machine."""
    template = table.manifest
    for number in range(4, 200):
        message = template.copy_header()
        message.version = number
        path = naming.manifest_path(Version(number))
        created = Manifest.from_header(message, index_section=None, transaction=None, path=path)
        (Path(table.uri) / path).write_bytes(created.encode())
    write_hint_last(table, b'{"version":199}')
    calls = count_system_calls(monkeypatch)
    assert Table.open(table.uri).version == 199
    # Three `stat` calls for the table, the hint and the directory of the hint; an `lstat` call for the version of the
    # hint, the next version and the two files that are read, each with its directory where it is new.
    assert calls == {"stat": 3, "lstat": 6}


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t/_versions").mkdir(parents=True)
    (tmp_path / "t/_versions/latest_version_hint.json").write_bytes(b'{"version":1}')
    with pytest.raises(NotFound, match="there is no Lance table"):
        Table.open(str(tmp_path / "t"))
    assert not Table.exists(str(tmp_path / "t"))
