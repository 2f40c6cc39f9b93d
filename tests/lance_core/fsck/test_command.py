"""The command `python -m lance_core fsck`: its output, its exit codes, secrets that it never accepts as arguments, and
its repairs.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, CorruptHead, Table
from lance_core.__main__ import main
from lance_core.coordination.idempotency import path_of
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.versions.version_hint import HINT
from tests.lance_core.in_memory_table import clean_up

SECRET = "s3cr3t-of-everybody"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    def run_command(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main(["fsck", *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        message = capsys.readouterr()
        return code, message.out, message.err

    return run_command


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "t", rows(1, 2), durable=False)
    for number in (3, 4, 5):
        table = table.append(rows(number), intent=f"load {number}").table
    return table


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def files(table: Table) -> dict[str, bytes]:
    root = Path(table.uri)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def file(table: Table, path: str) -> Path:
    return Path(table.uri) / path


def manifest(table: Table, version: int) -> Path:
    return file(table, naming.manifest_path(Version(version)))


# Examinations


def test_a_clean_table(table: Table, shell: Shell) -> None:
    code, message, _ = shell(table.uri)
    assert code == 0
    assert message == (
        f"{table.uri}: sound; 4 versions, 4 files; hashes match for versions 1-3; the chain begins at 1\n"
    )
    assert shell(table.uri, "--all")[:2] == (code, message)
    assert "; 1 version, 2 files; hashes match for versions 1-2;" in shell(table.uri, "--version", 2)[1]
    assert "; 1 version, 4 files; hashes match for versions 3\n" in shell(table.uri, "--head")[1]


def test_findings_of_severity_info_are_no_failure(table: Table, shell: Shell) -> None:
    file(table, "data/left.lance").write_bytes(b"1234")
    code, message, _ = shell(table.uri)
    assert code == 0
    assert "\ninfo\n  orphan\n    data/left.lance\n      no version references it (4 bytes" in message


def test_findings_are_grouped_from_the_most_severe(table: Table, shell: Shell) -> None:
    table.tags.create("gone", 2)
    manifest(table, 2).unlink()
    file(table, table.fragments[0].files[0].qualified_path).unlink()
    code, message, _ = shell(table.uri)
    assert code == 1
    assert message.index("\nerror\n  data_file\n") < message.index("\nwarning\n  dangling_tag\n")
    assert "_refs/tags/gone.json" in message
    assert "Delete the tag. Or: --repair tags" in message
    actual = json.loads(shell(table.uri, "--json")[1])
    assert (actual["sound"], actual["clean"], actual["versions"]) == (False, False, [1, 3, 4])
    assert {each["rule"]: each["kind"] for each in actual["findings"]} == {
        "data_file": None,
        "dangling_tag": "tags",
        "orphan": None,
    }
    assert set(actual["findings"][0]) == {"severity", "rule", "path", "version", "what", "repair", "kind"}
    assert actual["chain"] == {"verified": [3], "begins": [1]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere/at/all"], "there is no Lance table at /nowhere/at/all"),
        (["TABLE", "--version", "99"], "has no version 99; it has 1-4"),
        (["TABLE", "--version", "0"], "versions count from 1"),
        (["TABLE", "--version", "x"], "invalid int value"),
        (["TABLE", "--head", "--version", "1"], "not allowed with"),
        (["TABLE", "--repair", "everything"], "invalid choice: 'everything'"),
        (["TABLE", "--apply"], "--apply needs repairs to apply"),
        (["TABLE", "--storage-option", "aws_region"], "must have the form KEY=VALUE"),
        (["TABLE", "--storage-option-from", "aws_region=NOT_THERE"], "the environment variable 'NOT_THERE' is not set"),
        (["TABLE", "--manifest-store-from", "NOT_THERE"], "the environment variable 'NOT_THERE' is not set"),
        (["TABLE", "--manifest-store", "orders.db"], "manifest_store is not a URL"),
        (["gopher://x/y"], "unknown scheme 'gopher'"),
        ([], "required: URI"),
    ],
)
def test_a_failed_examination_exits_with_2(table: Table, shell: Shell, arguments: list[str], message: str) -> None:
    before = files(table)
    code, out, err = shell(*(table.uri if each == "TABLE" else each for each in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert files(table) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["t", "--storage-option", f"aws_secret_access_key={SECRET}"],
        ["t", "--storage-option", f"AWS_SESSION_TOKEN={SECRET}"],
        ["t", "--storage-option", f"azure_storage_account_key={SECRET}"],
        ["t", "--storage-option", f"azure_storage_sas_token={SECRET}"],
        ["t", "--storage-option", f"azure_client_secret={SECRET}"],
        ["t", "--storage-option", f"google_service_account_key={SECRET}"],
        ["t", "--storage-option", f"bearer_token={SECRET}"],
        ["t", "--storage-option-from", f"aws_secret_access_key={SECRET}"],
        ["t", "--manifest-store", f"postgresql://user:{SECRET}@127.0.0.1/orders"],
        ["t", "--manifest-store", f"postgresql://user:a/b?c{SECRET}@127.0.0.1/orders"],
        ["t", "--manifest-store", f"postgresql://127.0.0.1/orders?user=me&password={SECRET}"],
        ["t", "--manifest-store", f"postgresql://127.0.0.1/orders?pass%77ord={SECRET}"],
        [f"s3://user:{SECRET}@bucket/orders"],
        [f"s3://user:a/b{SECRET}@bucket/orders"],
        [f"s3+ddb://user:a?b{SECRET}@bucket/orders"],
        [f"az://container/orders?sig={SECRET}"],
    ],
)
def test_a_secret_is_not_accepted_as_an_argument(shell: Shell, arguments: list[str]) -> None:
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    if "--storage-option-from" in arguments:
        return  # an argument meant as the name of a variable is shown, so that it can be corrected
    assert SECRET not in err
    assert "-from" in err


def test_a_secret_is_read_from_the_environment(
    table: Table, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)
    monkeypatch.setenv("THE_DATABASE", f"sqlite:///{tmp_path}/m.db")
    code, out, err = shell(
        table.uri, "--storage-option-from", "aws_secret_access_key=THE_KEY", "--storage-option", "aws_region=eu-west-1",
        "--manifest-store-from", "THE_DATABASE",
    )  # fmt: skip
    assert (code, err) == (1, "")
    assert "without sqlite" in out
    assert SECRET not in out


def test_names_in_a_table_cannot_control_the_terminal(table: Table, shell: Shell) -> None:
    file(table, path_of("x\x1b[2J")).write_text(json.dumps({"intent": "x\x1b[2J\x9b31m"}))
    code, out, err = shell(table.uri)
    assert code == 1
    assert "is not the record of an intent" in out
    assert not {"\x1b", "\x9b"} & set(out + err)
    tag = Path(table.uri) / "_refs/tags/red\x1b[31m.json"
    tag.parent.mkdir(parents=True)
    tag.write_text("{}")
    _code, out, err = shell(table.uri)
    assert not {"\x1b", "\x9b"} & set(out + err)


def test_fsck_runs_as_a_program(table: Table) -> None:
    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lance_core", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)

    file(table, table.fragments[0].files[0].qualified_path).unlink()
    assert asked("fsck", table.uri, "--json").returncode == 1
    assert asked().returncode == 2


# Repairs


def repairs(*kinds: str) -> list[str]:
    return [word for kind in kinds for word in ("--repair", kind)]


def test_a_repair_needs_two_options(table: Table, shell: Shell) -> None:
    table.tags.create("gone", 2)
    manifest(table, 2).unlink()
    before = files(table)
    for arguments in ([], ["--repair", "tags"], repairs("head", "entries", "transactions", "tags", "intents")):
        code, message, _ = shell(table.uri, *arguments)
        assert code == 1
        assert ("Delete the tag 'gone', of version 2." in message) is bool(arguments)
    assert files(table) == before
    code, message, _ = shell(table.uri, "--repair", "tags", "--apply")
    assert code == 0
    assert message.startswith(
        "Applied:\n  tags: Delete the tag 'gone', of version 2.\n    _refs/tags/gone.json was deleted\n"
    )
    assert {path for path in before if path not in files(table)} == {"_refs/tags/gone.json"}
    assert shell("--repair", "tags", table.uri)[0] == 0, "the URI may come last"
    assert shell(table.uri, "--repair", "tags", "--apply")[1].startswith("There is nothing of that kind to repair.")


def test_a_damaged_newest_version_is_moved_aside_on_request_only(table: Table, shell: Shell) -> None:
    path = manifest(table, 4)
    original = path.read_bytes()
    path.write_bytes(original[:-3])
    before = files(table)
    assert shell(table.uri, *repairs("entries", "transactions", "tags", "intents", "holds", "hint"), "--apply")[0] == 1
    assert files(table) == before
    with pytest.raises(CorruptHead):
        table.refresh()
    code, message, _ = shell(table.uri, "--repair", "head")
    assert code == 1
    assert "The table continues from version 3, without the changes committed as version 4" in message
    assert files(table) == before
    assert shell(table.uri, "--head", "--repair", "head", "--apply")[0] == 0
    after = files(table)
    moved = f"{naming.manifest_path(Version(4))}.damaged"
    assert after.pop(moved) == original[:-3]
    assert after.keys() == before.keys() - {naming.manifest_path(Version(4))}
    assert all(after[name] == before[name] for name in after)
    table = table.refresh()
    assert (table.version, ids(table)) == (3, [1, 2, 3, 4])
    with pytest.raises(CommitUndecided, match="was committed as version 4, but the table ends at version 3 now"):
        table.append(rows(5), intent="load 5")
    table = table.append(rows(6)).table
    assert (table.version, ids(table)) == (4, [1, 2, 3, 4, 6])
    assert lance.dataset(table.uri).count_rows() == 5
    assert table.fsck().is_sound
    rules = [finding.rule for finding in table.fsck().findings if finding.severity.value != "info"]
    assert rules == ["intent_elsewhere"], "the commit of the damaged version is reported"


def test_a_newest_version_is_moved_aside_again_under_another_name(table: Table, shell: Shell) -> None:
    for expected in ("damaged", "damaged-2"):
        path = manifest(table, table.refresh().version)
        path.write_bytes(expected.encode())
        assert f"to _versions/{path.name}.{expected}\n" in shell(table.uri, "--repair", "head", "--apply")[1]
        assert path.with_name(f"{path.name}.{expected}").read_bytes() == expected.encode()
        table.refresh().append(rows(9))


def test_several_damaged_versions_at_the_end_are_moved_together(table: Table, shell: Shell) -> None:
    for version in (3, 4):
        manifest(table, version).write_bytes(b"nonsense")
    assert shell(table.uri, "--repair", "head", "--apply")[0] in (0, 1)
    assert table.refresh().version == 2
    assert {path.name for path in file(table, "_versions").glob("*.damaged")} == {
        f"{manifest(table, version).name}.damaged" for version in (3, 4)
    }


def test_nothing_is_moved_without_a_readable_version_or_with_a_future_one(table: Table, shell: Shell) -> None:
    for version in (1, 2, 3, 4):
        manifest(table, version).write_bytes(b"nonsense")
    code, message, _ = shell(table.uri, "--repair", "head", "--apply")
    assert code == 1
    assert message.startswith("There is nothing of that kind to repair.")
    assert len(list(file(table, "_versions").glob("*.manifest"))) == 4


def test_a_repair_checks_the_table_again_first(table: Table) -> None:
    """Another process put the file back, or created the version, between the examination and the repair."""
    original = manifest(table, 4).read_bytes()
    manifest(table, 4).write_bytes(b"nonsense")
    (finding,) = [each for each in Table.check(table.uri).findings if each.rule == "head"]
    manifest(table, 4).write_bytes(original)
    assert finding.automatic_repair is not None
    assert finding.automatic_repair.apply() == "version 4 can be read now and was not moved"
    table.tags.create("two", 2)
    away = manifest(table, 2).rename(manifest(table, 2).with_suffix(".away"))
    (finding,) = [each for each in Table.check(table.uri).findings if each.rule == "dangling_tag"]
    away.rename(manifest(table, 2))
    assert finding.automatic_repair is not None
    assert finding.automatic_repair.apply() == "version 2 exists now, and _refs/tags/two.json was not deleted"
    assert table.fsck().is_clean


def test_a_transaction_file_is_restored(table: Table, shell: Shell) -> None:
    name = table.manifest.transaction_file
    file(table, f"_transactions/{name}").unlink()
    code, message, _ = shell(table.uri)
    assert code == 0
    assert (
        f"_transactions/{name} (version 4)\n      it does not exist; the manifest of version 4 contains a copy"
        in message
    )
    assert shell(table.uri, "--repair", "transactions", "--apply")[0] == 0
    assert file(table, f"_transactions/{name}").read_bytes() == table.manifest.inline_transaction
    assert table.fsck().findings == ()


def test_the_commit_of_an_intent_is_recorded(table: Table, shell: Shell) -> None:
    """The writer died before it could record its commit."""
    record = file(table, path_of("load 5"))
    reported = json.loads(record.read_text())
    record.write_text(json.dumps({**reported, "landing": None}))
    code, message, _ = shell(table.uri, "--repair", "intents")
    assert code == 0
    assert "the append of the intent 'load 5' was committed as version 4" in message
    assert shell(table.uri, "--repair", "intents", "--apply")[0] == 0
    assert json.loads(record.read_text())["landing"] == reported["landing"]
    assert table.fsck().findings == ()
    table = table.append(rows(7)).table
    clean_up(table)
    assert table.append(rows(5), intent="load 5").version == 4


def test_an_intent_of_another_history_is_reported(table: Table, shell: Shell) -> None:
    """The table was restored to an earlier state from a backup, and other versions followed."""
    manifest(table, 4).unlink()
    code, message, _ = shell(table.uri)
    assert code == 1
    assert (
        "the append of the intent 'load 5' was committed as version 4, but the newest version is 3: the table was reset"
        in message
    )
    table.refresh().append(rows(50))
    assert "was committed as version 4, which is now another change" in shell(table.uri)[1]


def test_a_damaged_record_is_reported_as_by_a_cleanup(table: Table, shell: Shell) -> None:
    file(table, path_of("load 5")).write_text("{")
    code, message, _ = shell(table.uri)
    assert code == 1
    assert "\nerror\n  intent\n" in message
    assert "Cleanup removes no orphan files while it is younger than their grace period." in message


@pytest.mark.parametrize(
    ("directory", "record"),
    [
        ("notices", '{"versions": ["x"], "files": []}'),
        ("notices", '{"versions": [1e400], "files": []}'),
        ("holds", '{"what": "x", "version": true, "files": []}'),
        ("holds", "["),
    ],
)
def test_an_invalid_record_of_a_write_in_progress_is_deleted_on_request(
    table: Table, shell: Shell, directory: str, record: str
) -> None:
    path = file(table, f"_lance_assets/{directory}/a.json")
    path.parent.mkdir()
    path.write_text(record)
    assert table.cleanup().damaged == (f"_lance_assets/{directory}/a.json",)
    code, message, _ = shell(table.uri, "--repair", "holds")
    assert (code, path.exists()) == (1, True)
    assert "\nerror\n  work_under_way\n" in message
    path.write_text('{"what": "x", "version": 1, "versions": [1], "files": []}')
    assert shell(table.uri, "--repair", "holds", "--apply")[0] == 0
    assert path.exists(), "it can be read now"
    path.write_text(record)
    assert shell(table.uri, "--repair", "holds", "--apply")[0] == 0
    assert not path.exists()


def test_an_invalid_record_of_a_clone_is_reported(table: Table, shell: Shell) -> None:
    path = file(table, "_lance_assets/clones/a.json")
    path.parent.mkdir()
    path.write_text('{"version": 1e400, "uri": "x"}')
    code, message, _ = shell(table.uri)
    assert code == 1
    assert "_lance_assets/clones/a.json\n      is not a clone record" in message


@pytest.mark.parametrize(
    ("note", "message"), [('{"version":2}', "it names version 2"), ("{", "it contains no version")]
)
def test_a_stale_hint_is_rewritten(table: Table, shell: Shell, note: str, message: str) -> None:
    file(table, HINT).write_text(note)
    code, out, _ = shell(table.uri)
    assert code == 0
    assert f"{message}, but the newest is 4" in out
    assert shell(table.uri, "--repair", "hint", "--apply")[0] == 0
    assert json.loads(file(table, HINT).read_text()) == {"version": 4}
    assert table.fsck().findings == ()


def test_a_branch_is_examined_as_a_table(table: Table, shell: Shell) -> None:
    branch = table.branches.create("dev").append(rows(9)).table
    code, message, _ = shell(branch.uri)
    assert code == 0
    assert message.startswith(f"{branch.uri}: sound; 2 versions")


def test_a_clone_is_examined_with_its_bases(table: Table, shell: Shell, tmp_path: Path) -> None:
    table.clone(tmp_path / "clone")
    assert shell(tmp_path / "clone")[0] == 1
    assert shell(tmp_path / "clone", "--base", table.uri)[0] == 0
