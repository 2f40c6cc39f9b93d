"""The look after a cleanup: what it finds, whom it blames, and what it costs."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.maintenance import cleanup, post_cleanup_check
from lance_core.storage.store import Store
from lance_core.versions import file_inventory
from lance_core.versions.location import Location
from tests.lance_core.maintenance.test_cleanup import DAY, age

NOTHING = timedelta(0)


@pytest.fixture
def place(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": range(10)}))
    for first in range(10, 60, 10):
        table = table.append(pa.table({"id": range(first, first + 10)})).table
    table.delete("id = 3")
    age(uri, 20 * DAY)
    return uri


def test_a_cleanup_that_takes_what_is_needed_says_so(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cleanup._referenced_keys

    def forgetful(location: Location, paths: Iterable[str], *, own_only: bool = False) -> set[str]:
        return real(location, paths, own_only=own_only) if own_only else set()

    monkeypatch.setattr(cleanup, "_referenced_keys", forgetful)
    with pytest.raises(Corrupt, match=r"version 7 of .* references it .*this cleanup removed it.*fsck"):
        Table.open(place).cleanup(keep=1)


@pytest.mark.parametrize("kind", ["data/*.lance", "_deletions/*"])
def test_what_was_gone_before_is_told_and_not_blamed(place: str, kind: str) -> None:
    next(Path(place).glob(kind)).unlink()
    with pytest.raises(Corrupt, match="this cleanup did not remove it"):
        Table.open(place).cleanup(keep=1)


def test_an_index_without_files_is_told(place: str) -> None:
    lance.dataset(place).create_scalar_index("id", "BTREE")
    age(place, 20 * DAY)
    for path in Path(place, "_indices").rglob("*.*"):
        path.unlink()
    with pytest.raises(Corrupt, match=r"^_indices/.*: .*version 8 of .* references it"):
        Table.open(place).cleanup(keep=1)


def test_nothing_is_asked_where_nothing_went(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_cleanup_check, "verify_readable", None)
    assert Table.open(place).cleanup(keep=100).files == ()
    assert Table.open(place).cleanup(keep=1, dry_run=True).versions == (1, 2, 3, 4, 5, 6)


def test_it_asks_for_a_few_files_of_a_few_versions(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(place)
    for first in range(100, 140):
        table = table.append(pa.table({"id": [first]})).table
    age(place, 20 * DAY)
    asked: list[str] = []
    real = file_inventory.file_exists

    def noted(store: Store, key: str) -> bool:
        asked.append(key)
        return real(store, key)

    monkeypatch.setattr(post_cleanup_check, "file_exists", noted)
    assert table.cleanup(keep=10).versions
    assert len(asked) == post_cleanup_check.VERSIONS_CHECKED * post_cleanup_check.FILES_CHECKED
