"""Verification of file contents: damage is found, named and counted, and an interrupted run continues."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.__main__ import main
from lance_core.errors import InvalidInput
from lance_core.fsck import DataCheck, Finding, Severity
from lance_core.fsck.examine import examine
from lance_core.progress import OperationProgress
from lance_core.versions.location import locate


def create_table(directory: Path) -> Table:
    """Create a table of 8 data files, a deletion file and the files of an index."""
    data = pa.table({"id": list(range(80)), "word": [f"word {n}" for n in range(80)]})
    table = Table.create(directory, data, max_rows_per_file=10, durable=False)
    return table.delete("id = 5").table.create_index("id", "BTREE").table


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)


def files_below(table: Table) -> list[Path]:
    return sorted(path for name in ("data", "_deletions", "_indices") for path in Path(table.uri, name).rglob("*.*"))


def test_every_damaged_file_is_named_with_its_owner_and_versions(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    files = files_below(table)
    assert table.fsck(data=True).verified_files == len(files) == 11
    assert not table.fsck(data=True).findings
    for file in files:
        original = file.read_bytes()
        flip_bit(file)
        report = table.fsck(data=True)
        found = [finding for finding in report.errors if finding.rule == "checksum"]
        assert [finding.path for finding in found] == [str(file.relative_to(table.uri))]
        assert "--repair data-files" in found[0].repair
        owner = "index 'id_idx', version 3" if "_indices" in str(file) else "fragment "
        assert owner in found[0].what
        file.write_bytes(original)


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    table, record = create_table(tmp_path / "t"), tmp_path / "verified.jsonl"
    seen: list[OperationProgress] = []

    def interrupt(state: OperationProgress) -> None:
        if state.step == "verify files" and record.exists() and record.read_text().count("\n") >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.fsck(data=True, progress=interrupt, resume=record)
    verified = len(record.read_text().splitlines())
    assert 4 <= verified < 11
    with record.open("a") as out:
        out.write('{"path": "data/x')  # the line that the interruption cut off
    report = table.fsck(data=True, progress=seen.append, resume=record)
    assert report.verified_files == 11 - verified
    assert (seen[-1].operation, seen[-1].step, seen[-1].unit) == ("fsck", "verify files", "bytes")
    assert seen[-1].done == seen[-1].total == sum(path.stat().st_size for path in files_below(table))
    assert not record.exists()


def test_turns_of_a_share_verify_every_file_once(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    paths = [str(path) for path in files_below(table)]
    turns = [[path for path in paths if DataCheck(share=0.25, turn=turn).includes(path)] for turn in range(4)]
    assert sorted(path for each in turns for path in each) == sorted(paths)
    assert [DataCheck(share=0.25, turn=4).includes(path) for path in paths] == [path in turns[0] for path in paths]
    with pytest.raises(InvalidInput, match="share"):
        DataCheck(share=0)


def test_the_command_verifies_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = create_table(tmp_path / "t")
    assert main(["fsck", table.uri, "--data"]) == 0
    assert "the bytes of 11 verified" in capsys.readouterr().out
    flip_bit(files_below(table)[0])
    assert main(["fsck", table.uri, "--data", "--resume", str(tmp_path / "record")]) == 1
    assert "checksum" in capsys.readouterr().out
    assert main(["fsck", table.uri, "--resume", "x"]) == 2


def test_options_of_the_verification_need_it(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    with pytest.raises(InvalidInput, match="data=True"):
        table.fsck(resume=tmp_path / "x")
    assert Table.check(table.uri, data=True).verified_files == 11
    assert not [finding for finding in table.fsck().findings if finding.severity is Severity.ERROR]


def test_damaged_and_missing_files_are_restored_from_a_clone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = create_table(tmp_path / "t")
    clone = table.clone(tmp_path / "copy", shallow=False)
    files = files_below(table)
    originals = {file: file.read_bytes() for file in files}
    flip_bit(files[0])
    for file in files[1:-1:2]:
        flip_bit(file)
    files[-1].unlink()
    damaged = {file: file.read_bytes() for file in files if file.exists()}
    arguments = ["fsck", table.uri, "--repair", "data-files", "--source", clone.uri]
    assert main(arguments) == 1
    assert "To be applied with --apply" in capsys.readouterr().out
    assert damaged == {file: file.read_bytes() for file in files if file.exists()}
    assert main([*arguments, "--apply"]) == 0
    assert originals == {file: file.read_bytes() for file in files_below(table)}


def test_a_copy_with_other_bytes_is_not_used(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t")
    clone = table.clone(tmp_path / "copy", shallow=False)
    file, copy = files_below(table)[0], files_below(clone)[0]
    flip_bit(file)
    assert main(["fsck", table.uri, "--repair", "data-files"]) == 2
    finding = one_repairable(table.uri, clone.uri)
    original = copy.read_bytes()
    flip_bit(copy)
    assert finding.automatic_repair is not None
    damaged = file.read_bytes()
    assert "nothing was changed" in finding.automatic_repair.apply()
    assert file.read_bytes() == damaged
    assert not [path for path in Path(table.uri).rglob(".tmp*") if "lock" not in path.name]
    copy.write_bytes(original)
    data_directory = one_repairable(table.uri, str(copy.parent))
    assert data_directory.automatic_repair is not None
    assert "done" in data_directory.automatic_repair.apply()
    assert "nothing was changed" in data_directory.automatic_repair.apply()
    assert file.read_bytes() == original


def one_repairable(uri: str, source: str) -> Finding:
    report = examine(locate(uri), data=DataCheck(sources=(source,)))
    (finding,) = [finding for finding in report.findings if finding.automatic_repair]
    return finding


def test_files_that_a_concurrent_cleanup_removes_are_no_findings(tmp_path: Path) -> None:
    """A file that is missing from an existing version is still an error."""
    table = Table.create(tmp_path / "t", pa.table({"id": range(40)}), max_rows_per_file=1, durable=False)
    table = table.update({"id": "-id"}, where="id > 9").table
    for manifest in Path(table.uri, "_versions").iterdir():
        os.utime(manifest, (0, 0))
    before = files_below(table)
    lost = Path(table.uri, "data", table._snapshot.manifest.fragments[-1].files[0].path)

    def clean(_progress: OperationProgress) -> None:
        if lost.exists():
            table.cleanup(older_than=timedelta(0), keep=1)
            lost.unlink()

    report = table.fsck(data=True, progress=clean)
    assert len(files_below(table)) == len(before) - 31
    assert [finding.path for finding in report.errors if finding.rule == "checksum"] == [f"data/{lost.name}"]


@pytest.mark.parametrize("storage_version", ["2.0", "2.2"])
def test_damaged_files_without_a_hash_are_found_by_decoding(
    tmp_path: Path, storage_version: Literal["2.0", "2.2"]
) -> None:
    """Files of pylance have no hash. The offsets of a list, damaged in version 2.0, would end this process."""
    rows = pa.table({"id": range(40), "words": [["x"] * (n % 4) for n in range(40)]})
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows, uri, data_storage_version=storage_version, max_rows_per_file=20)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 3")
    files = files_below(Table.open(uri))
    assert {file.parent.name for file in files} >= {"data", "_deletions"}
    report = Table.open(uri).fsck(data=True)
    assert not report.errors
    assert report.verified_files == 0
    (unhashed,) = [finding for finding in report.findings if finding.rule == "no_checksum"]
    assert f"for {len(files)} of {len(files)} files, so their rows were decoded" in unhashed.what
    for file in files:
        original = file.read_bytes()
        damaged = bytearray(original)
        # Data files begin with the ids and the offsets. Index files have only numbers, whose change no decoder notices.
        part = slice(0, 400) if file.parent.name == "data" else slice(-160, -40)
        damaged[part] = b"\xff" * len(damaged[part])
        file.write_bytes(damaged)
        found = [each for each in Table.open(uri).fsck(data=True).errors if each.rule == "decoding"]
        detected = {each.path for each in found}
        file.write_bytes(original)
        assert detected == {str(file.relative_to(uri))}, file
