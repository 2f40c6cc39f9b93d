"""References: their names and JSON equal those of pylance byte for byte, and corruption is reported."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import refs
from lance_core.format.ids import Version
from lance_core.format.refs import Branch, Tag

# Written by pylance 14.
TAG = b"""{
  "branch": "dev/x",
  "version": 2,
  "createdAt": "2026-11-18T13:04:54.092943513Z",
  "updatedAt": "2026-11-18T13:04:54.103633299Z",
  "manifestSize": 422,
  "metadata": {
    "k": "v"
  }
}"""
BRANCH = b"""{
  "parentBranch": null,
  "identifier": {
    "version_mapping": [
      [
        2,
        "f9198b468ea546b4bdab5eb380ba7e07"
      ]
    ]
  },
  "parentVersion": 2,
  "createAt": 1795007038,
  "manifestSize": 422,
  "metadata": {}
}"""


def test_a_tag_is_encoded_and_decoded() -> None:
    tag = refs.decode_tag(TAG, path="t")
    assert (tag.branch, tag.version, tag.manifest_bytes, tag.metadata) == ("dev/x", 2, 422, {"k": "v"})
    assert tag.created_at is not None
    assert tag.created_at.isoformat() == "2026-11-18T13:04:54.092943+00:00"
    assert refs.encode_tag(tag) == TAG


def test_a_branch_is_encoded_and_decoded() -> None:
    branch = refs.decode_branch(BRANCH, name="b", path="b")
    assert (branch.parent_branch, branch.parent_version, branch.created_seconds) == (None, 2, 1795007038)
    assert branch.lineage == ((2, "f9198b468ea546b4bdab5eb380ba7e07"),)
    assert refs.encode_branch(branch) == BRANCH


def test_tags_of_older_releases_are_read() -> None:
    assert refs.decode_tag(b'{"version": 3, "manifestSize": 12}', path="t") == Tag(None, Version(3), 12)


def test_a_branch_of_2025_gets_the_id_that_pylance_gives_it() -> None:
    data = b'{"parentBranch": null, "parentVersion": 1, "createAt": 1795007094, "manifestSize": 368}'
    assert refs.decode_branch(data, name="s", path="b").lineage == ((0, "17ac0ead94ae21019d6f66b217e34824"),)


def test_time_is_written_to_the_nanosecond() -> None:
    assert refs.timestamp(1_795_007_094_092_943_513) == "2026-11-18T13:04:54.092943513Z"


@pytest.mark.parametrize("name", ["v1", "a.b-c_d", "1", "main", "ä", "a.lock.b"])
def test_names_of_tags(name: str) -> None:
    assert refs.parse_reference_name(refs.tag_path(name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "..", ".a", "a.", "a..b", "a.lock", "a b", "a%2Fb", "/etc/x", "a\\b", "a\0", "x" * 300, "a:b", "~"],
)
def test_invalid_names_of_tags(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a tag"):
        refs.tag_path(name)


@pytest.mark.parametrize("name", ["dev", "dev/x", ".x", "x.", "x.lock/y", "a/b/c", "ä/ö"])
def test_names_of_branches(name: str) -> None:
    assert refs.parse_reference_name(refs.branch_path(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "main", "/a", "a/", "a//b", "..", "a/..", "a/../b", "../a", "a/./b", ".", "a..b", "a\\b", "a.lock", "a b",
        "a%2Fb", "%2e%2e/x", "a\0b", "http://x", "x" * 300,
    ],
)  # fmt: skip
def test_invalid_names_of_branches(name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a branch"):
        refs.branch_path(name)
    with pytest.raises(InvalidInput, match="cannot name a branch"):
        refs.branch_directory(name)


@pytest.mark.parametrize("name", ["data", "dev/_versions", "dev/data/x", "tree", "_refs"])
def test_a_new_branch_stays_out_of_a_tables_directories(name: str) -> None:
    with pytest.raises(InvalidInput, match="is a directory of the table's own files"):
        refs.check_new_branch_name(name)


def test_a_name_that_slash_would_split_is_one_file() -> None:
    assert refs.branch_path("dev/ä") == "_refs/branches/dev%2F%C3%A4.json"


@pytest.mark.parametrize("path", ["_refs/tags/.tmpAbc123", "_refs/tags/v1.json#1", "_refs/tags/README"])
def test_leftovers_are_not_references(path: str) -> None:
    assert refs.parse_reference_name(path) is None


@pytest.mark.parametrize("file", ["%2E%2E%2Fx.json", "..%2F..%2Fetc.json", "%2Fetc.json", "%FF.json", "a%00.json"])
def test_files_with_hostile_names_are_rejected(file: str) -> None:
    with pytest.raises(Corrupt, match="is not the name of a reference"):
        refs.parse_reference_name(f"_refs/branches/{file}")


@pytest.mark.parametrize("branch", ["../../etc", "/etc", "a/../b", "%2e%2e", "main", ""])
def test_a_tag_on_a_hostile_branch_is_rejected(branch: str) -> None:
    with pytest.raises(Corrupt, match="has the invalid branch name"):
        refs.decode_tag(json.dumps({"branch": branch, "version": 1}).encode(), path="t")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "reference"),
        (b"[]", "reference"),
        (b"\xff", "reference"),
        (b"[" * 100_000, "reference"),
        (b"{}", "version"),
        (b'{"version": "1"}', "version"),
        (b'{"version": true}', "version"),
        (b'{"version": -1}', "version"),
        (b'{"version": 1, "createdAt": "yesterday"}', "createdAt"),
        (b'{"version": 1, "metadata": {"a": 1}}', "metadata"),
        (b'{"version": 1, "branch": 7}', "branch"),
    ],
)
def test_a_corrupt_tag_is_reported(data: bytes, field: str) -> None:
    with pytest.raises(Corrupt) as raised:
        refs.decode_tag(data, path="t")
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"parentBranch": "../x"}, "parentBranch"),
        ({"parentVersion": 0}, "parentVersion"),
        ({"createAt": 1e9}, "createAt"),
        ({"createAt": 2**63}, "createAt"),
        ({"identifier": [1]}, "identifier"),
        ({"identifier": {"version_mapping": [[1]]}}, "identifier"),
        ({"identifier": {"version_mapping": [["1", "a"]]}}, "identifier"),
    ],
)
def test_a_corrupt_branch_is_reported(members: dict[str, object], field: str) -> None:
    original = json.loads(BRANCH) | members
    with pytest.raises(Corrupt) as raised:
        refs.decode_branch(json.dumps(original).encode(), name="b", path="b")
    assert raised.value.field == field


@given(st.binary(max_size=200))
def test_any_bytes_are_a_reference_or_corrupt(data: bytes) -> None:
    for decode in (lambda: refs.decode_tag(data, path="t"), lambda: refs.decode_branch(data, name="b", path="b")):
        try:
            decode()
        except Corrupt:
            continue


def test_ancestors_of_branches() -> None:
    def branch(*lineage: tuple[int, str]) -> Branch:
        return Branch(None, Version(1), 0, 0, lineage)

    parent = branch((1, "a"))
    assert branch((1, "a"), (3, "b")).is_below(parent)
    assert branch((1, "a"), (3, "b"), (4, "c")).is_below(parent)
    assert not parent.is_below(parent)
    assert not branch((1, "z"), (3, "b")).is_below(parent)
