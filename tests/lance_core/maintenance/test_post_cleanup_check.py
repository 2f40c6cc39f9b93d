"""Post-cleanup check: what it finds, which cause it reports, and what it costs."""

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.format.manifest import Manifest
from lance_core.maintenance import branch_manifests, post_cleanup_check
from lance_core.storage.store import Store
from lance_core.versions import file_inventory
from lance_core.versions.file_inventory import FileReferences
from tests.lance_core.maintenance.test_cleanup import DAY, set_age

NO_AGE = timedelta(0)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": range(10)}))
    for first in range(10, 60, 10):
        table = table.append(pa.table({"id": range(first, first + 10)})).table
    table.delete("id = 3")
    set_age(uri, 20 * DAY)
    return uri


def test_a_cleanup_that_removes_referenced_files_is_reported(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_version_7(manifest: Manifest) -> FileReferences:
        return FileReferences(frozenset(), frozenset()) if manifest.version == 7 else references_of(manifest)

    references_of = file_inventory.references_of
    monkeypatch.setattr(branch_manifests, "references_of", forget_version_7)
    with pytest.raises(Corrupt, match=r"version 7 of .* references it .*this cleanup removed it.*fsck"):
        Table.open(uri).cleanup(keep=1)


@pytest.mark.parametrize("kind", ["data/*.lance", "_deletions/*"])
def test_a_file_missing_before_is_not_blamed_on_the_cleanup(uri: str, kind: str) -> None:
    next(Path(uri).glob(kind)).unlink()
    with pytest.raises(Corrupt, match="this cleanup did not remove it"):
        Table.open(uri).cleanup(keep=1)


def test_an_index_without_files_is_reported(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    set_age(uri, 20 * DAY)
    for path in Path(uri, "_indices").rglob("*.*"):
        path.unlink()
    with pytest.raises(Corrupt, match=r"^_indices/.*: .*version 8 of .* references it"):
        Table.open(uri).cleanup(keep=1)


def test_nothing_is_checked_if_nothing_was_removed(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_cleanup_check, "verify_readable", None)
    assert Table.open(uri).cleanup(keep=100).files == ()
    assert Table.open(uri).cleanup(keep=1, dry_run=True).versions == (1, 2, 3, 4, 5, 6)


def test_a_few_files_of_a_few_versions_are_checked(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(uri)
    for first in range(100, 140):
        table = table.append(pa.table({"id": [first]})).table
    set_age(uri, 20 * DAY)
    checked: list[str] = []
    file_exists = file_inventory.file_exists

    def record_and_check(store: Store, key: str) -> bool:
        checked.append(key)
        return file_exists(store, key)

    monkeypatch.setattr(post_cleanup_check, "file_exists", record_and_check)
    assert table.cleanup(keep=10).versions
    assert len(checked) == len(set(checked)), "versions share files, each of which is checked once"
    sampled = post_cleanup_check.VERSIONS_CHECKED * post_cleanup_check.FILES_CHECKED
    assert post_cleanup_check.FILES_CHECKED <= len(checked) <= sampled
