"""Table names on the command line: every form, names that contain an `@`, and the errors for missing versions."""

from pathlib import Path

import pytest

from lance_assets.cli.table_names import ParsedName, open_named, parse_name
from lance_core import InvalidInput, NotFound, Table
from lance_core.shell import Access
from tests.lance_assets.cli.conftest import rows

HERE = Access()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t", [ParsedName("t")]),
        ("t@3", [ParsedName("t", version=3), ParsedName("t@3")]),
        ("t@9223372036854775999", [ParsedName("t", version=9223372036854775999), ParsedName("t@9223372036854775999")]),
        ("t@spring", [ParsedName("t", tag="spring"), ParsedName("t", branch="spring"), ParsedName("t@spring")]),
        ("t@dev:3", [ParsedName("t", branch="dev", version=3), ParsedName("t@dev:3")]),
        ("t@dev:", [ParsedName("t", branch="dev"), ParsedName("t@dev:")]),
        ("t@dev:latest", [ParsedName("t", branch="dev"), ParsedName("t@dev:latest")]),
        ("t@a/b:3", [ParsedName("t", branch="a/b", version=3), ParsedName("t@a/b:3")]),
        ("t@main:3", [ParsedName("t", branch="main", version=3), ParsedName("t@main:3")]),
        (
            "t@v0000000042",
            [ParsedName("t", tag="v0000000042"), ParsedName("t", version=42), ParsedName("t@v0000000042")],
        ),
        (
            "t@w02.v0000000042",
            [ParsedName("t", tag="w02.v0000000042"), ParsedName("t", version=42), ParsedName("t@w02.v0000000042")],
        ),
        ("/me@work/t", [ParsedName("/me@work/t")]),
        ("/me@work/t@3", [ParsedName("/me@work/t", version=3), ParsedName("/me@work/t@3")]),
        ("t@", [ParsedName("t@")]),
        ("@3", [ParsedName("@3")]),
        ("s3://lake/t@3", [ParsedName("s3://lake/t", version=3), ParsedName("s3://lake/t@3")]),
        ("abfss://c@a.dfs.core.windows.net/t", [ParsedName("abfss://c@a.dfs.core.windows.net/t")]),
        ("abfss://c@a.dfs.core.windows.net", [ParsedName("abfss://c@a.dfs.core.windows.net")]),
        (
            "abfss://c@a.dfs.core.windows.net/t@3",
            [
                ParsedName("abfss://c@a.dfs.core.windows.net/t", version=3),
                ParsedName("abfss://c@a.dfs.core.windows.net/t@3"),
            ],
        ),
        (
            "s3+ddb://lake/t?ddbTableName=c@3",
            [ParsedName("s3+ddb://lake/t?ddbTableName=c", version=3), ParsedName("s3+ddb://lake/t?ddbTableName=c@3")],
        ),
        (
            "t@" + "1" * 21,
            [ParsedName("t", tag="1" * 21), ParsedName("t", branch="1" * 21), ParsedName("t@" + "1" * 21)],
        ),
    ],
)
def test_parsed_names(text: str, expected: list[ParsedName]) -> None:
    assert [*parse_name(text)] == expected


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Table at version 3 with a tag and a branch that has newer versions."""
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False).append(rows(2)).table
    table.tags.create("spring")
    table.branches.create("dev/ann").append(rows(3))
    return table.append(rows(4)).table


@pytest.mark.parametrize(
    ("text", "version", "branch"),
    [
        ("", 3, None),
        ("@2", 2, None),
        ("@v0000000002", 2, None),
        ("@spring", 2, None),
        ("@main:", 3, None),
        ("@main:1", 1, None),
        ("@dev/ann:", 3, "dev/ann"),
        ("@dev/ann:2", 2, "dev/ann"),
        ("/tree/dev/ann", 3, "dev/ann"),
        ("/tree/dev/ann@2", 2, "dev/ann"),
    ],
)
def test_existing_versions(table: Table, text: str, version: int, branch: str | None) -> None:
    opened = open_named(table.uri + text, HERE)
    assert (opened.table.version, opened.table.branch) == (version, branch)
    assert opened.is_newest == (version == 3)


def test_branch_by_name(table: Table) -> None:
    table.branches.create("dev")
    opened = open_named(f"{table.uri}@dev", HERE)
    assert (opened.table.branch, opened.is_newest) == ("dev", True)


def test_tags_precede_versions_of_the_same_spelling(table: Table) -> None:
    table.tags.create("v0000000001", version=2)
    assert open_named(f"{table.uri}@v0000000001", HERE).table.version == 2


@pytest.mark.parametrize("name", ["t@3", "t@spring", "me@work/t", "t@dev:3", "t@v0000000003"])
def test_table_name_with_at_sign(tmp_path: Path, name: str) -> None:
    uri = str(tmp_path / name)
    Table.create(uri, rows(1), durable=False).append(rows(2))
    assert open_named(uri, HERE).table.version == 2
    assert open_named(f"{uri}@1", HERE).table.version == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{t}@7", "has no version 7; it has 1-3 ('{t}@7' was understood as version 7 of {t})"),
        ("{t}@dev/ann:7", "has no version 7; it has 2-3 ('{t}@dev/ann:7' was understood as version 7 of the branch"),
        (
            "{t}@nobody:7",
            "has no branch 'nobody'; it has dev/ann ('{t}@nobody:7' was understood as version 7 of the",
        ),
        ("{t}@autumn", "the tag 'autumn' of {t}: {t} has no tag 'autumn'; it has spring; the newest version of the"),
        ("{t}@autumn", "{t} has no branch 'autumn'; it has dev/ann"),
        ("{t}@no tag", "'no tag' cannot name a tag"),
        ("{t}x@7", "there is no Lance table at {t}x, and none at {t}x@7; check the path ('{t}x@7' was understood as"),
        ("{t}x", "there is no Lance table at {t}x"),
        ("{t}@", "there is no Lance table at {t}@"),
        ("{t}@18446744073709551615", "has no version 18446744073709551615; it has 1-3"),
    ],
)
def test_missing_tables_and_versions(table: Table, text: str, message: str) -> None:
    with pytest.raises(NotFound) as raised:
        open_named(text.format(t=table.uri), HERE)
    assert message.format(t=table.uri) in str(raised.value)


@pytest.mark.parametrize("text", ["s3://me:word@lake/t@3", "s3://lake/t?key=word", "https://me:word@there/t"])
def test_passwords_are_refused_and_not_printed(text: str) -> None:
    with pytest.raises(InvalidInput, match="every user of this machine can see a command line") as raised:
        open_named(text, HERE)
    assert "word" not in str(raised.value).replace("password", "")


def test_version_zero(table: Table) -> None:
    with pytest.raises(InvalidInput, match="versions count from 1"):
        open_named(f"{table.uri}@0", HERE)
