"""How the newest version is found: by hint and probe where nothing can be missed, by listing otherwise; and the names
of manifests, old and new. Traps of the format are named."""

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


def left_behind(table: Table, text: bytes) -> None:
    """As a writer leaves it: the last thing that happens in the directory."""
    store_of(table).put_volatile(hints.HINT, text)


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the operating system is asked."""
    calls: Counter[str] = Counter()

    def counting(name: str, real: Callable) -> Callable:
        def call(*arguments, **options):
            calls[name] += 1
            return real(*arguments, **options)

        return call

    for name in ("scandir", "listdir", "stat", "lstat"):
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return calls


def test_our_hint_is_theirs(table: Table) -> None:
    ours = hint_of(table).read_bytes()
    lance.write_dataset(rows(4), table.uri, mode="append")
    assert (ours, hint_of(table).read_bytes()) == (b'{"version":3}', b'{"version":4}')


def test_the_hint_spares_the_listing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
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
def test_a_hint_that_says_nothing_is_passed_over(table: Table, text: bytes) -> None:
    left_behind(table, text)
    assert hints.find_newest(store_of(table)) is None
    assert Table.open(table.uri).version == 3


def test_no_hint_is_no_loss(table: Table) -> None:
    hint_of(table).unlink()
    assert Table.open(table.uri).version == 3


def test_trap_26_a_low_hint_is_probed_upwards(table: Table) -> None:
    left_behind(table, b'{"version":1}')
    assert hints.find_newest(store_of(table)) == (3, NamingScheme.V2)


def test_a_hint_from_before_a_gap_is_not_believed(table: Table) -> None:
    """Version 1 is there, 2 is not, and 3 is: whoever stopped at the gap would hide version 3."""
    left_behind(table, b'{"version":1}')
    (Path(table.uri) / naming.manifest_path(Version(2))).unlink()
    os.utime(Path(table.uri) / "_versions", ns=(0, hint_of(table).stat().st_ctime_ns + 60 * 10**9))
    assert hints.find_newest(store_of(table)) is None
    assert Table.open(table.uri).version == 3


def test_a_copied_table_is_listed(table: Table, tmp_path: Path) -> None:
    left_behind(table, b'{"version":1}')
    copied = tmp_path / "copied"
    shutil.copytree(table.uri, copied)
    os.utime(copied / "_versions", ns=(0, 10**18))
    assert hints.find_newest(LocalStore(copied)) is None
    assert Table.open(str(copied)).version == 3


def test_a_commit_without_a_hint_is_seen(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_USE_VERSION_HINT", "0")
    lance.write_dataset(rows(4), table.uri, mode="append")
    assert ids(Table.open(table.uri)) == [1, 2, 3, 4]


def test_branches_and_clones_have_hints(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [table.branches.create("dev"), table.clone(str(tmp_path / "c"))]
    grown = [line.append(rows(4)).table for line in lines]
    calls = counted(monkeypatch)
    assert [line.refresh().version for line in (*lines, *grown)] == [4] * 4
    assert calls["scandir"] == 0
    assert [hint_of(line).read_bytes() for line in lines] == [b'{"version":4}'] * 2


def test_stores_that_list_in_order_get_no_hint() -> None:
    store = MemoryStore()
    hints.write_hint(store, Version(1))
    assert store.head(hints.HINT) is None
    assert hints.find_newest(store) is None


def test_a_hint_that_cannot_be_left_is_no_failure(table: Table) -> None:
    hint_of(table).unlink()
    hint_of(table).mkdir()
    assert table.append(rows(4)).version == 4
    assert Table.open(table.uri).version == 4


def test_a_damaged_head_is_named_however_it_was_found(table: Table) -> None:
    head = Path(table.uri) / table.manifest.path
    head.write_bytes(b"x" * 100)
    for text in (b'{"version":3}', b"nothing"):
        left_behind(table, text)
        with pytest.raises(CorruptHead, match="the newest version 3 of this table is damaged"):
            Table.open(table.uri)


def test_trap_35_leftovers_of_writers_are_no_versions(table: Table) -> None:
    versions = Path(table.uri) / "_versions"
    for name in (f"{naming.manifest_path(Version(9)).rpartition('/')[2]}#1", ".tmpAbCdEf", ".tmp-1", "9.manifest.bak"):
        (versions / name).write_bytes(b"half")
    assert Table.open(table.uri).version == 3
    assert len(table.versions()) == 3


def old_names(place: str) -> Table:
    lance.write_dataset(rows(1), place, enable_v2_manifest_paths=False)
    lance.write_dataset(rows(2), place, mode="append")
    return Table.open(place)


def test_old_names_stay_while_somebody_writes(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t")).append(rows(3)).table
    names = {path.name for path in (tmp_path / "t/_versions").glob("*.manifest")}
    assert names == {"1.manifest", "2.manifest", "3.manifest"}
    assert hints.find_newest(store_of(table)) == (3, NamingScheme.V1)
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == ids(Table.open(table.uri)) == [1, 2, 3]
    branch = table.branches.create("dev")  # a line of its own, named anew
    assert branch.manifest.path == naming.manifest_path(Version(3))


def test_migrating_names_is_what_pylance_does(tmp_path: Path) -> None:
    ours, theirs = old_names(str(tmp_path / "ours")), old_names(str(tmp_path / "theirs"))
    lance.dataset(theirs.uri).migrate_manifest_paths_v2()
    for _ in range(2):
        migrated = ours.migrate_manifest_names()
        assert sorted(os.listdir(tmp_path / "ours/_versions")) == sorted(os.listdir(tmp_path / "theirs/_versions"))
    assert ids(migrated.append(rows(3)).table) == [1, 2, 3]
    assert lance.dataset(ours.uri).to_table()["id"].to_pylist() == [1, 2, 3]
    assert ids(migrated.at(1)) == [1]


def test_half_way_is_refused_and_completed(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t"))
    versions = tmp_path / "t/_versions"
    shutil.copy(versions / "1.manifest", tmp_path / "t" / naming.manifest_path(Version(1)))
    hint_of(table).unlink()
    with pytest.raises(Corrupt, match=r"both naming schemes.*migrate_manifest_names"):
        Table.open(table.uri)
    with pytest.raises(Corrupt, match="both naming schemes"):
        table.append(rows(3))
    assert ids(Table.open(table.uri, version=2).migrate_manifest_names()) == [1, 2]


def test_two_manifests_of_one_version_are_not_chosen_from(tmp_path: Path) -> None:
    table = old_names(str(tmp_path / "t"))
    (tmp_path / "t" / naming.manifest_path(Version(2))).write_bytes(table.at(1).manifest.encode())
    with pytest.raises(Corrupt, match="differs from the manifest of the same version under its old name"):
        Table.open(table.uri, version=1).migrate_manifest_names()
    assert (tmp_path / "t/_versions/2.manifest").exists()


def test_many_versions_cost_no_more_to_open(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """In calls, which do not depend on the machine."""
    template = table.manifest
    for number in range(4, 200):
        message = template.copy_header()
        message.version = number
        path = naming.manifest_path(Version(number))
        made = Manifest.from_header(message, index_section=None, transaction=None, path=path)
        (Path(table.uri) / path).write_bytes(made.encode())
    left_behind(table, b'{"version":199}')
    calls = counted(monkeypatch)
    assert Table.open(table.uri).version == 199
    # The table; how fresh the hint is, by itself and its directory. The hint's version, the one after it: one each, and
    # one each for the directory on the way there, as for the two files that are read.
    assert calls == {"stat": 3, "lstat": 6}


def test_where_nothing_is_says_so(tmp_path: Path) -> None:
    (tmp_path / "t/_versions").mkdir(parents=True)
    (tmp_path / "t/_versions/latest_version_hint.json").write_bytes(b'{"version":1}')
    with pytest.raises(NotFound, match="there is no Lance table"):
        Table.open(str(tmp_path / "t"))
    assert not Table.exists(str(tmp_path / "t"))
