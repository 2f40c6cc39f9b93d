"""What every manifest store answers, whichever database it is."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.factory import open_manifest_store
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.store import Put


def staged(version: int, who: str = "0b5a3c9e-0000-4000-8000-000000000000", size: int | None = 10) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest-{who}", size)


def final(version: int, size: int | None = 10) -> Entry:
    return Entry(Version(version), f"_versions/{version}.manifest", size)


def test_nothing_is_known_of_a_new_table(manifests: ManifestStore) -> None:
    assert manifests.newest_entry("a/table") is None
    assert manifests.find_entry("a/table", Version(1)) is None


def test_a_version_is_reserved_once(manifests: ManifestStore) -> None:
    assert manifests.reserve("a/table", staged(1)) is Put.CREATED
    assert manifests.reserve("a/table", staged(1, "0b5a3c9e-0000-4000-8000-000000000001")) is Put.EXISTS
    assert manifests.reserve("a/table", staged(1)) is Put.EXISTS
    assert manifests.find_entry("a/table", Version(1)) == staged(1)


def test_tables_and_versions_are_told_apart(manifests: ManifestStore) -> None:
    for key in ("a/table", "a/table/tree/dev", "a/tab", "ä/ö u"):
        assert manifests.reserve(key, staged(1)) is Put.CREATED
        assert manifests.reserve(key, staged(2, size=None)) is Put.CREATED
        assert manifests.newest_entry(key) == staged(2, size=None)


def test_the_newest_is_the_highest_number_not_the_last_word(manifests: ManifestStore) -> None:
    for version in (9, 10, 100, 2):
        manifests.reserve("t", staged(version))
    assert manifests.newest_entry("t") == staged(100)


def test_all_entries_of_one_table_are_listed_the_oldest_first(manifests: ManifestStore) -> None:
    assert list(manifests.list_entries("t")) == []
    for version in (10, 2, 9, 1):
        manifests.reserve("t", staged(version))
        manifests.reserve("t/tree/dev", staged(version, size=None))
    assert manifests.move_entry("t", staged(2), final(2))
    assert list(manifests.list_entries("t")) == [staged(1), final(2), staged(9), staged(10)]
    assert len(manifests.list_entries("t/tree/dev")) == 4


def test_only_an_entry_that_is_still_there_is_moved(manifests: ManifestStore) -> None:
    manifests.reserve("t", staged(1))
    assert manifests.move_entry("t", staged(1), final(1, 11))
    assert manifests.find_entry("t", Version(1)) == final(1, 11)
    assert not manifests.move_entry("t", staged(1), final(1, 12))
    assert not manifests.move_entry("t", staged(2), final(2))
    assert manifests.find_entry("t", Version(1)) == final(1, 11)
    assert manifests.find_entry("t", Version(2)) is None


def test_only_an_entry_that_is_still_there_is_forgotten(manifests: ManifestStore) -> None:
    manifests.reserve("t", staged(1))
    manifests.remove_entry("t", final(1))
    assert manifests.find_entry("t", Version(1)) == staged(1)
    manifests.remove_entry("t", staged(1))
    manifests.remove_entry("t", staged(1))
    assert manifests.find_entry("t", Version(1)) is None


def test_one_of_many_threads_reserves_a_version(manifests: ManifestStore) -> None:
    """From the first on, which may have to make the table."""
    who = [f"0b5a3c9e-0000-4000-8000-{number:012}" for number in range(8)]
    with ThreadPoolExecutor(len(who)) as pool:
        for version in range(1, 6):
            answers = list(pool.map(lambda each, version=version: manifests.reserve("t", staged(version, each)), who))
            assert sorted(answer.value for answer in answers) == ["created"] + ["exists"] * (len(who) - 1)
            found = manifests.find_entry("t", Version(version))
            assert found == staged(version, who[answers.index(Put.CREATED)])


_RACER = """
import sys
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import Entry
from lance_core.storage.manifest_stores.factory import open_manifest_store
given, who = sys.argv[1], sys.argv[2]
manifests = open_manifest_store(given, None)
sys.stdin.readline()
for version in range(1, 41):
    answer = manifests.reserve("t", Entry(Version(version), f"_versions/{version}.manifest-{who}", 1))
    print(version, answer.value)
"""


@pytest.mark.parametrize("given", ["sqlite", "postgresql"], indirect=True)
def test_one_of_many_processes_reserves_a_version(given: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, given, f"0b5a3c9e-0000-4000-8000-{number:012}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for number in range(3)
    ]
    answers = [racer.communicate()[0].split("\n")[:-1] for racer in _started(racers)]
    won = [line.split()[0] for lines in answers for line in lines if line.endswith("created")]
    assert sorted(map(int, won)) == list(range(1, 41))
    assert all(len(lines) == 40 and not any("unknown" in line for line in lines) for lines in answers)


def _started(racers: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """All go at once: each is told by a line, before any is waited for."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return racers


def test_entries_of_several_pages_are_listed(aws: dict[str, str], dynamodb_table: str) -> None:
    """DynamoDB answers with a megabyte at most."""
    manifests = open_manifest_store(f"dynamodb://{dynamodb_table}", aws)
    assert manifests is not None
    large = [Entry(Version(number), f"_versions/{'x' * 300_000}{number}.manifest", 1) for number in range(1, 8)]
    for entry in large:
        assert manifests.reserve("t", entry) is Put.CREATED
    assert list(manifests.list_entries("t")) == large
