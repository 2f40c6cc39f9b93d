"""`lance-assets doctor`: its findings and advice, and that a table has no findings once the advice is followed."""

import os
import shlex
import time
import uuid
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Table
from lance_core.__main__ import main as fsck
from lance_core.format.ids import Version
from lance_core.format.naming import manifest_path
from lance_core.operations import CreateIndex, IndexMetadata
from lance_core.runtime import SYSTEM_RUNTIME
from tests.lance_assets.cli.conftest import Shell, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Healthy table."""
    return Table.create(str(tmp_path / "t"), rows(*range(100)), durable=False)


def rules(shell: Shell, *arguments: object) -> dict[str, str]:
    """Return the severity of each finding by its rule."""
    return {each["rule"]: each["severity"] for each in shell("doctor", *arguments, "--json").json["findings"]}


def test_healthy_table(table: Table, shell: Shell, tmp_path: Path) -> None:
    answer = shell("doctor", table.uri)
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path).startswith("t: sound; 1 version, 1 file; ")
    assert answer.out.count("\n") == 1
    assert shell("doctor", table.uri, "--json").json == {"uri": table.uri, "sound": True, "findings": []}


def test_small_files_and_deleted_rows(table: Table, shell: Shell, tmp_path: Path) -> None:
    table.append(rows(100)).table.append(rows(101)).table.delete("id < 50")
    message = "50 deleted rows among them (49% of all); compaction rewrites them as 1 group"
    answer = shell("doctor", table.uri)
    assert answer.code == 1
    assert answer.drawn(tmp_path).splitlines()[1:] == [
        "",
        "advice",
        "  small_files_or_deletions",
        f"    3 of 3 fragments are small, or have many deleted rows, {message}",
        '      -> Table.open("t").compact(), or on Spark: compact(spark, "t")',
    ]
    table.refresh().compact()
    assert shell("doctor", table.uri).code == 0


def test_single_small_file_is_no_finding(table: Table, shell: Shell) -> None:
    assert table.delete("id = 1").table.count_rows() == 99
    assert shell("doctor", table.uri).code == 0


def test_index_that_lags_behind(table: Table, shell: Shell) -> None:
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="by_id")
    assert shell("doctor", table.uri).code == 0
    table.refresh().append(rows(*range(100, 200)))
    answer = shell("doctor", table.uri)
    assert answer.code == 1
    assert "the index 'by_id' on id does not cover 100 rows in 1 fragment; queries scan them" in answer.out
    assert f'-> Table.open("{table.uri}").optimize_indices(), or on Spark: optimize_indices(spark, ' in answer.out
    assert "index_behind" not in answer.out
    lance.dataset(table.uri).optimize.optimize_indices()
    assert "index_lags" not in rules(shell, table.uri)


def test_index_of_many_segments_and_unknown_index_type(table: Table, shell: Shell) -> None:
    table = table.create_index("id", "ZONEMAP", name="zones").table
    for number in range(15):
        table = table.append(rows(1000 + number)).table.optimize_indices(merge="none").table
    future = IndexMetadata.new(
        uuid.uuid4(), name="future", field_id=0, dataset_version=table.version,
        covers=BitMap(each.id for each in table.fragments), type_url="/lance.index.pb.FutureIndexDetails", details=b"",
        index_version=0, created_ms=0,
    )  # fmt: skip
    folder = Path(table.uri, "_indices", str(future.uuid))
    folder.mkdir()
    (folder / "of.idx").touch()
    table = table.commit(CreateIndex((future,))).table
    severities = rules(shell, table.uri)
    assert (severities["index_segments"], severities["index_unused"]) == ("advice", "info")
    answer = shell("doctor", table.uri).out
    assert "the index 'zones' has 16 segments, and queries search each of them" in answer
    assert "the index 'future' on id has an unknown index type (FutureIndexDetails); no query here" in answer
    output = shell("show", table.uri).out
    assert "  future has an unknown index type (FutureIndexDetails)\n" in output
    assert "16 of 16" in next(line for line in output.splitlines() if line.startswith("future"))


def test_several_segments_with_full_coverage(table: Table, shell: Shell) -> None:
    lance.dataset(table.uri).create_scalar_index("id", "BTREE", name="by_id")
    table = table.refresh().append(rows(*range(100, 200))).table
    lance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
    assert len(table.refresh().indices) == 2
    assert rules(shell, table.uri).keys() <= {"small_files_or_deletions"}


def test_old_versions_and_the_references_that_retain_them(shell: Shell, tmp_path: Path) -> None:
    begun = time.time_ns() - 20 * 86400 * 10**9

    class PastTable(Table):
        runtime = replace(SYSTEM_RUNTIME, now_ns=lambda: begun)

    table: Table = PastTable.create(str(tmp_path / "t"), rows(*range(100)), durable=False)
    for number in range(14):
        table = table.set_config({"n": str(number)}).table
        assert rules(shell, table.uri) == ({"old_versions": "advice"} if table.version > 10 else {})
    table.tags.create("spring", version=2)
    table.at(4).branches.create("dev")
    answer = shell("doctor", table.uri)
    assert (answer.code, rules(shell, table.uri)) == (1, {"old_versions": "advice", "old_versions_kept": "info"})
    assert "3 versions older than 14 days and not among the newest 10, without a tag or a branch" in answer.out
    assert "old versions are retained because of the tag 'spring', the branch 'dev'" in answer.out
    assert rules(shell, table.uri, "--head") == {}
    for path in tmp_path.rglob("*"):
        os.utime(path, (begun // 10**9, begun // 10**9))
    assert Table.open(table.uri, durable=False).cleanup().versions == (1, 3, 5)
    assert (shell("doctor", table.uri).code, rules(shell, table.uri)) == (0, {"old_versions_kept": "info"})


def test_orphan_files(table: Table, shell: Shell) -> None:
    (Path(table.uri) / "data/left.lance").write_bytes(b"1234")
    assert rules(shell, table.uri) == {"orphan": "info"}


def test_table_of_an_old_format(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "old")
    lance.write_dataset(rows(1), uri, data_storage_version="2.0", enable_v2_manifest_paths=False)
    assert rules(shell, uri) == {"old_manifest_names": "info"}
    assert shell("doctor", uri).code == 0
    Table.open(uri).migrate_manifest_names()
    assert rules(shell, uri) == {}


def test_fsck_findings_name_the_repair_command(table: Table, shell: Shell) -> None:
    table.tags.create("spring")
    table = table.append(rows(*range(100, 2000))).table
    table.tags.create("gone")
    (Path(table.uri) / "_refs/tags/gone.json").write_text('{"branch": null, "version": 77, "manifestSize": 1}')
    answer = shell("doctor", table.uri)
    assert answer.code == 1
    command = next(line for line in answer.out.splitlines() if "--repair tags" in line).partition("Or: ")[2]
    assert command == f"python -m lance_core fsck {table.uri} --repair tags --apply"
    fsck(shlex.split(command)[3:])
    assert not (Path(table.uri) / "_refs/tags/gone.json").exists()


def test_damaged_table_is_still_examined(table: Table, shell: Shell) -> None:
    table.append(rows(100))
    (Path(table.uri) / manifest_path(Version(2))).write_bytes(b"LANC")
    answer = shell("doctor", table.uri)
    assert answer.code == 1
    assert answer.out.startswith(f"{table.uri}: damaged; ")
    assert "\nThe table cannot be opened: " in answer.out
    assert f"fsck {table.uri} --repair head --apply" in answer.out
    assert shell("doctor", table.uri, "--json").json["sound"] is False


def test_branch(table: Table, shell: Shell) -> None:
    table.branches.create("dev").append(rows(100)).table.append(rows(101))
    assert rules(shell, f"{table.uri}@dev:") == {"small_files_or_deletions": "advice"}
    assert rules(shell, table.uri) == {}


def test_damaged_branch(table: Table, shell: Shell) -> None:
    dev = table.branches.create("dev").append(rows(100)).table
    (Path(dev.uri) / manifest_path(Version(2))).write_bytes(b"LANC")
    assert shell("doctor", f"{table.uri}@dev:").out.startswith(f"{dev.uri}: damaged; ")


def test_versions_are_refused(table: Table, shell: Shell) -> None:
    refused = shell("doctor", f"{table.uri}@1")
    assert refused.code == 2
    assert "names a version, but doctor checks a table" in refused.err


def test_long_findings_are_truncated(shell: Shell, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [0]}), durable=False)
    for number in range(30):
        table = table.append(pa.table({"id": [number]})).table
    for path in (tmp_path / "t/data").iterdir():
        path.unlink()
    answer = shell("doctor", table.uri)
    assert answer.code == 1
    assert "more of this rule, with --json" in answer.out
