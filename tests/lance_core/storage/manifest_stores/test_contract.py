"""Manifest store contract: the answers of every manifest store, for each database."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lance_core.format.ids import Version
from lance_core.storage.factory import open_manifest_store
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.store import Put


def staged(version: int, writer_id: str = "0b5a3c9e-0000-4000-8000-000000000000", size: int | None = 10) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest-{writer_id}", size)


def final(version: int, size: int | None = 10) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest", size)


def test_a_new_table_has_no_entries(manifests: ManifestStore) -> None:
    assert manifests.newest_entry("a/table") is None
    assert manifests.find_entry("a/table", Version(1)) is None


def test_a_version_is_reserved_once(manifests: ManifestStore) -> None:
    assert manifests.reserve("a/table", staged(1)) is Put.CREATED
    assert manifests.reserve("a/table", staged(1, "0b5a3c9e-0000-4000-8000-000000000001")) is Put.EXISTS
    assert manifests.reserve("a/table", staged(1)) is Put.EXISTS
    assert manifests.find_entry("a/table", Version(1)) == staged(1)


def test_tables_and_versions_have_separate_entries(manifests: ManifestStore) -> None:
    for key in ("a/table", "a/table/tree/dev", "a/tab", "ä/ö u"):
        assert manifests.reserve(key, staged(1)) is Put.CREATED
        assert manifests.reserve(key, staged(2, size=None)) is Put.CREATED
        assert manifests.newest_entry(key) == staged(2, size=None)


def test_the_newest_entry_has_the_highest_version(manifests: ManifestStore) -> None:
    for version in (9, 10, 100, 2):
        manifests.reserve("t", staged(version))
    assert manifests.newest_entry("t") == staged(100)


def test_entries_of_a_table_are_listed_from_the_oldest(manifests: ManifestStore) -> None:
    assert list(manifests.list_entries("t")) == []
    for version in (10, 2, 9, 1):
        manifests.reserve("t", staged(version))
        manifests.reserve("t/tree/dev", staged(version, size=None))
    assert manifests.move_entry("t", staged(2), final(2))
    assert list(manifests.list_entries("t")) == [staged(1), final(2), staged(9), staged(10)]
    assert len(manifests.list_entries("t/tree/dev")) == 4


def test_only_an_unchanged_entry_is_moved(manifests: ManifestStore) -> None:
    manifests.reserve("t", staged(1))
    assert manifests.move_entry("t", staged(1), final(1, 11))
    assert manifests.find_entry("t", Version(1)) == final(1, 11)
    assert not manifests.move_entry("t", staged(1), final(1, 12))
    assert not manifests.move_entry("t", staged(2), final(2))
    assert manifests.find_entry("t", Version(1)) == final(1, 11)
    assert manifests.find_entry("t", Version(2)) is None


def test_only_an_unchanged_entry_is_removed(manifests: ManifestStore) -> None:
    manifests.reserve("t", staged(1))
    manifests.remove_entry("t", final(1))
    assert manifests.find_entry("t", Version(1)) == staged(1)
    manifests.remove_entry("t", staged(1))
    manifests.remove_entry("t", staged(1))
    assert manifests.find_entry("t", Version(1)) is None


def test_one_of_many_threads_reserves_a_version(manifests: ManifestStore) -> None:
    """The first reservation may have to create the database table."""
    writer_ids = [f"0b5a3c9e-0000-4000-8000-{number:012}" for number in range(8)]
    with ThreadPoolExecutor(len(writer_ids)) as pool:
        for version in range(1, 6):
            answers = list(
                pool.map(lambda each, version=version: manifests.reserve("t", staged(version, each)), writer_ids)
            )
            assert sorted(answer.value for answer in answers) == ["created"] + ["exists"] * (len(writer_ids) - 1)
            entry = manifests.find_entry("t", Version(version))
            assert entry == staged(version, writer_ids[answers.index(Put.CREATED)])


_RACER = """
import sys
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import Entry
from lance_core.storage.factory import open_manifest_store
url, writer_id = sys.argv[1], sys.argv[2]
manifests = open_manifest_store(url, None)
sys.stdin.readline()
for version in range(1, 41):
    answer = manifests.reserve("t", Entry(Version(version), f"_versions/{version}.manifest-{writer_id}", 1))
    print(version, answer.value)
"""


@pytest.mark.parametrize("manifest_store", ["sqlite", "postgresql"], indirect=True)
def test_one_of_many_processes_reserves_a_version(manifest_store: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, manifest_store, f"0b5a3c9e-0000-4000-8000-{number:012}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for number in range(3)
    ]
    answers = [racer.communicate()[0].split("\n")[:-1] for racer in _start_all(racers)]
    won = [line.split()[0] for lines in answers for line in lines if line.endswith("created")]
    assert sorted(map(int, won)) == list(range(1, 41))
    assert all(len(lines) == 40 and not any("unknown" in line for line in lines) for lines in answers)


def _start_all(racers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Start all processes together: each gets a line before any is awaited."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return racers


def test_entries_of_several_pages_are_listed(aws: dict[str, str], dynamodb_table: str) -> None:
    """DynamoDB answers with at most one megabyte."""
    manifests = open_manifest_store(f"dynamodb://{dynamodb_table}", aws)
    assert manifests is not None
    large = [Entry(Version(number), f"_versions/{'x' * 300_000}{number}.manifest", 1) for number in range(1, 8)]
    for entry in large:
        assert manifests.reserve("t", entry) is Put.CREATED
    assert list(manifests.list_entries("t")) == large
