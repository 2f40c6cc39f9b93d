"""Data overlays: tables to which pylance gave new values for single cells are read alike by both libraries, also by
indices, and after changes by either of them."""

import os
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap

from lance_core import Corrupt, Table, Unsupported
from lance_core.datafiles.fragment_reader import read_fragment
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.tasks.compaction import compact as task_compact
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.rows import delete as task_delete
from lance_core.tasks.rows import update as task_update
from lance_core.versions.location import locate
from lance_core.versions.snapshot import load_latest
from tests.interop.overlays import ALLOWED, commit_overlay
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

ROWS = 12
ROWS_PER_FILE = 6


@pytest.fixture(autouse=True)
def overlays_are_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ALLOWED, "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


COLUMNS = {
    "int": pa.array([None if n == 4 else n for n in range(ROWS)], pa.int32()),
    "text": pa.array([None if n == 7 else f"text {n}" for n in range(ROWS)]),
    "list": pa.array([None if n == 2 else list(range(n % 4)) for n in range(ROWS)]),
    "fsl": pa.array([None if n == 5 else [n, -n] for n in range(ROWS)], pa.list_(pa.float32(), 2)),
    "flag": pa.array([n % 2 == 0 for n in range(ROWS)]),
    "moment": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
    "category": pa.array([f"c{n % 3}" for n in range(ROWS)]).dictionary_encode(),
    "json": pa.array([f'{{"a":{n}}}' for n in range(ROWS)], pa.json_(pa.utf8())),
    "struct": pa.array([None if n == 3 else {"x": n, "y": f"y{n}"} for n in range(ROWS)]),
    "structs": pa.array([[{"a": n}] * (n % 3) for n in range(ROWS)]),
    "map": pa.array([[(f"k{n}", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
}
FIELD_IDS = {
    "2.1": {"int": [1], "text": [2], "list": [4], "struct": [6, 7], "flag": [8]},
    "2.2": {"int": [1], "text": [2], "list": [4], "fsl": [5], "flag": [6], "moment": [7], "category": [8],
        "json": [9], "struct": [11, 12], "structs": [15], "map": [18, 19]},
}  # fmt: skip


def table_of(version: str, start: int = 0) -> pa.Table:
    names = FIELD_IDS[version]
    return pa.table({"id": pa.array(range(start, start + ROWS), pa.int64()), **{name: COLUMNS[name] for name in names}})


def assert_reads_agree(directory: Path, *, order: str | None = None) -> None:
    expected = lance.dataset(str(directory)).to_table()
    ours = Table.open(directory).to_table()
    if order is not None:
        expected, ours = expected.sort_by(order), ours.sort_by(order)
    assert ours.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("version", FIELD_IDS)
@pytest.mark.parametrize("seed", range(2))
def test_values_of_every_type_are_read_alike(version: Literal["2.1", "2.2"], seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    path = tmp_path / "t"
    data = table_of(version)
    lance.write_dataset(data, path, data_storage_version=version, max_rows_per_file=ROWS_PER_FILE)
    ids = FIELD_IDS[version]
    for step in range(8):
        names = choose.sample(sorted(ids), choose.randint(1, 3))
        offsets = sorted(choose.sample(range(ROWS_PER_FILE), choose.randint(1, ROWS_PER_FILE)))
        values = data.select(names).take([choose.randrange(ROWS) for _ in offsets])
        fields = [field_id for name in names for field_id in ids[name]]
        fragment = choose.randrange(2)
        if step % 2:
            commit_overlay(path, fragment, values, fields, offsets)
        else:
            each: list[Iterable[int]] = [sorted(choose.sample(offsets, len(offsets))) for _ in fields]
            commit_overlay(path, fragment, values, fields, each)
        if step == 5:
            lance.dataset(str(path)).delete("id in (1, 8)")
    assert_reads_agree(path)
    theirs, ours = lance.dataset(str(path)), Table.open(path)
    for names in (["id"], ["text"], ["id", *choose.sample(sorted(ids), 2)]):
        assert ours.to_table(columns=names).to_pylist() == theirs.to_table(columns=names).to_pylist()
    numbers = sorted(choose.sample(range(ours.count_rows()), 5))
    assert ours.take(numbers).to_pylist() == theirs.take(numbers).to_pylist()
    for sql in (
        "int > 3",
        "text = 'text 1' or flag",
        "struct.x >= 4 and struct is not null",
        "int is null",
        "struct is null",
    ):
        assert ours.to_table(filter=sql).to_pylist() == theirs.to_table(filter=sql).to_pylist(), sql
        assert ours.count_rows(sql) == theirs.count_rows(filter=sql), sql
    part = ours.to_table(columns=["id", "text"], limit=5, offset=3)
    assert part.to_pylist() == theirs.to_table(columns=["id", "text"], limit=5, offset=3).to_pylist()
    rows_before = ours.to_table().to_pylist()
    ours.compact()
    compacted = Table.open(path)
    assert not any(fragment.has_overlays for fragment in compacted.fragments)
    assert not compacted.manifest.has_overlays
    assert compacted.to_table().to_pylist() == rows_before
    assert lance.dataset(str(path)).to_table().to_pylist() == rows_before


def test_storage_version_2_0(tmp_path: Path) -> None:
    path = tmp_path / "t"
    data = pa.table({"id": [1, 2, 3], "s": ["a", "b", None], "l": [[1], [2, 3], []]})
    lance.write_dataset(data, path, data_storage_version="2.0")
    commit_overlay(path, 0, pa.table({"s": pa.array([None, "new"], pa.string())}), [1], [0, 2])
    commit_overlay(path, 0, pa.table({"l": [[9, 9]]}), [2, 3], [1])
    assert_reads_agree(path)
    Table.open(path).compact()
    assert_reads_agree(path)


FILTERS = ["a < 0", "a = -3", "a = 30", "a >= 50", "b like 'new%'", "b = 'b4'", "a is null", "a < 0 and b like 'new%'"]
Step = Callable[[Path, random.Random], object]


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "a": pa.array([n * 10 for n in numbers], pa.int64()),
         "b": [f"b{n}" for n in numbers], "c": pa.array([float(n) for n in numbers])}
    )  # fmt: skip


def overlay(path: Path, choose: random.Random) -> object:
    dataset = lance.dataset(str(path))
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    fragment = choose.choice(dataset.get_fragments())
    offsets = sorted(choose.sample(range(fragment.physical_rows), choose.randint(1, min(3, fragment.physical_rows))))
    a = pa.array([choose.choice([None, -1, -3, 30, 70]) for _ in offsets], pa.int64())
    b = pa.array([choose.choice([None, "new", "newer", "b4"]) for _ in offsets], pa.string())
    names = choose.choice([["a"], ["b"], ["a", "b"]])
    values = pa.table({"a": a, "b": b}).select(names)
    return commit_overlay(path, fragment.fragment_id, values, [ids[name] for name in names], offsets)


def upsert(path: Path, choose: random.Random, columns: list[str]) -> object:
    existing = lance.dataset(str(path)).to_table(columns=["id"])["id"].to_pylist()
    chosen = [*choose.sample(existing, min(2, len(existing))), max(existing, default=0) + 1]
    source = pa.table({"id": pa.array(chosen, pa.int64()), "a": pa.array([-3] * len(chosen), pa.int64()),
                       "b": ["newest"] * len(chosen), "c": pa.array([0.5] * len(chosen))})  # fmt: skip
    return Table.open(path).upsert(source.select(columns), on="id", insert=False)


def recreate_index(path: Path, choose: random.Random) -> object:
    kind = choose.choice(["BTREE", "BITMAP", "ZONEMAP"])
    column = choose.choice(["a", "b"])
    return Table.open(path).create_index(column, kind, name=f"{kind} of {column}", replace=True)


STEPS: dict[str, Step] = {
    "overlay": overlay,
    "overlay again": overlay,
    "overlay once more": overlay,
    "append": lambda path, choose: Table.open(path).append(rows(choose.randrange(100, 10_000), 3)),
    "delete": lambda path, choose: Table.open(path).delete(f"id % 7 = {choose.randrange(7)}"),
    "delete by value": lambda path, choose: Table.open(path).delete("a = -1"),
    "update": lambda path, choose: Table.open(path).update({"c": "c + 1"}, where="a < 0"),
    "update a": lambda path, choose: Table.open(path).update({"a": "a - 1"}, where=f"id % 5 = {choose.randrange(5)}"),
    "update most of a": lambda path, choose: Table.open(path).update({"a": "a + 1"}, where="id % 5 < 4"),
    "upsert": lambda path, choose: upsert(path, choose, ["id", "a", "b", "c"]),
    "upsert in place": lambda path, choose: upsert(path, choose, ["id", "a"]),
    "compact": lambda path, choose: Table.open(path).compact(),
    "compact and record": lambda path, choose: Table.open(path).compact(
        remap=None if Table.open(path).manifest.has_stable_row_ids else "reuse"
    ),
    "index": recreate_index,
    "optimize": lambda path, choose: Table.open(path).optimize_indices(),
    "theirs: index": lambda path, choose: lance.dataset(str(path)).create_scalar_index(
        "a", "BTREE", name="t", replace=True
    ),
    "theirs: compact": lambda path, choose: lance.dataset(str(path)).optimize.compact_files(),
    "theirs: optimize": lambda path, choose: lance.dataset(str(path)).optimize.optimize_indices(),
    "theirs: delete": lambda path, choose: lance.dataset(str(path)).delete(f"id % 9 = {choose.randrange(9)}"),
    "theirs: update": lambda path, choose: lance.dataset(str(path)).update(
        {"a": "a + 1"}, where=f"id % 6 = {choose.randrange(6)}"
    ),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("seed", range(2))
def test_histories_with_overlays(seed: int, stable: bool, tmp_path: Path) -> None:
    """After each step both libraries return the same rows, and filters by indices those of a scan."""
    choose = random.Random(seed)
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 18), path, max_rows_per_file=6, enable_stable_row_ids=stable)
    history: list[str] = []
    for name in ["index", "overlay", *choose.choices(sorted(STEPS), k=14)]:
        if not Table.open(path).count_rows():
            break
        history.append(name)
        STEPS[name](path, choose)
        ours = Table.open(path)
        assert ours.to_table().to_pylist() == lance.dataset(str(path)).to_table().to_pylist(), history
        for sql in FILTERS:
            found = sorted(ours.to_table(filter=sql, columns=["id"])["id"].to_pylist())
            scanned = sorted(ours.to_table(filter=sql, columns=["id"], use_indices=False)["id"].to_pylist())
            assert found == scanned, (sql, history)
    report = Table.open(path).fsck()
    assert report.is_sound, (report, history)


def overlaid_table(path: Path) -> Table:
    lance.write_dataset(rows(0, 12), path, max_rows_per_file=6)
    commit_overlay(path, 0, pa.table({"a": [-1, -2], "b": ["new", "newer"]}), [1, 2], [1, 4])
    return Table.open(path)


def test_clones_have_the_overlays(tmp_path: Path) -> None:
    table = overlaid_table(tmp_path / "t")
    expected = table.to_table().to_pylist()
    shallow = table.clone(str(tmp_path / "shallow"))
    assert shallow.to_table().to_pylist() == expected
    assert lance.dataset(shallow.uri).to_table().to_pylist() == expected
    deep = table.clone(str(tmp_path / "deep"), shallow=False)
    assert deep.to_table().to_pylist() == expected
    branch = table.branches.create("dev")
    assert branch.to_table().to_pylist() == expected
    assert shallow.fsck().is_sound
    assert deep.fsck().is_sound


def test_a_cleanup_keeps_overlay_files_as_long_as_a_version_has_them(tmp_path: Path) -> None:
    table = overlaid_table(tmp_path / "t")
    (overlay_file,) = [file for file in (tmp_path / "t/data").iterdir() if len(file.stem) == 32]
    table.append(rows(50, 1))
    clean_up(tmp_path / "t")
    assert overlay_file.exists()
    Table.open(table.uri).compact()
    assert Table.open(table.uri).to_table(filter="a = -2")["b"].to_pylist() == ["newer"]
    clean_up(tmp_path / "t")
    assert not overlay_file.exists()
    assert_reads_agree(tmp_path / "t")


def clean_up(path: Path) -> None:
    """Remove all versions but the newest."""
    for file in path.rglob("*"):
        os.utime(file, (0, 0))
    Table.open(path).cleanup(older_than=timedelta(0), keep=1)


def test_fsck_reports_missing_and_broken_overlays(tmp_path: Path) -> None:
    table = overlaid_table(tmp_path / "t")
    (overlay_file,) = [file for file in (tmp_path / "t/data").iterdir() if len(file.stem) == 32]
    assert table.fsck().is_sound
    data = overlay_file.read_bytes()
    overlay_file.unlink()
    assert {finding.rule for finding in table.fsck().findings} == {"overlay_file"}
    overlay_file.write_bytes(data)
    table = table.record_checksums().table
    assert table.fsck(data=True).is_sound
    overlay_file.write_bytes(data.replace(b"newer", b"newex"))
    assert not table.fsck(data=True).is_sound
    with pytest.raises(Corrupt, match=overlay_file.name):
        Table.open(table.uri, verify="read").to_table()
    overlay_file.write_bytes(data[:-1])
    assert {finding.rule for finding in table.fsck().findings} == {"overlay_file"}


def test_changes_of_columns_keep_overlays_true(tmp_path: Path) -> None:
    path = tmp_path / "t"
    overlaid_table(path)
    Table.open(path).add_columns({"doubled": "a * 2"})
    assert_reads_agree(path)
    assert Table.open(path).to_table(filter="a = -2")["doubled"].to_pylist() == [-4]
    Table.open(path).alter_column("a", type=pa.float64())
    assert_reads_agree(path)
    assert Table.open(path).to_table(filter="b = 'newer'")["a"].to_pylist() == [-2.0]
    Table.open(path).alter_column("b", rename="renamed")
    assert_reads_agree(path)
    Table.open(path).drop_columns(["renamed"])
    assert not any(fragment.has_overlays for fragment in Table.open(path).fragments)
    Table.open(path).add_columns({"b": "'other'"})
    assert_reads_agree(path)
    assert set(Table.open(path).to_table()["b"].to_pylist()) == {"other"}
    Table.open(path).restore(2)
    assert_reads_agree(path)
    assert Table.open(path).manifest.has_overlays


def test_an_overlay_of_blobs_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table({"id": [1, 2], "b": [b"x", b"y"]}, schema=pa.schema([pa.field("id", pa.int64()), field]))
    lance.write_dataset(data, path, data_storage_version="2.1")
    commit_overlay(path, 0, data.select(["b"]).slice(0, 1), [1], [1])
    table = Table.open(path)
    assert table.to_table(columns=["id"])["id"].to_pylist() == [1, 2]
    with pytest.raises(Unsupported, match=r"replaces blobs of column 'b'.*compact the table with the library"):
        table.to_table()


def test_a_broken_overlay_is_corrupt(tmp_path: Path) -> None:
    table = overlaid_table(tmp_path / "t")
    location = load_latest(locate(table.uri)).location
    breaks: list[tuple[Callable[[table_pb2.DataOverlayFile], object], str]] = [
        (lambda overlay: overlay.ClearField("shared_offset_bitmap"), "does not say which rows it covers"),
        (lambda overlay: setattr(overlay, "shared_offset_bitmap", b"\x3b0\0\0\0\xff"), "broken Roaring bitmap"),
        (lambda overlay: setattr(overlay, "shared_offset_bitmap", BitMap(range(9)).serialize()), "covers 9 rows"),
        (lambda overlay: overlay.field_coverage.offset_bitmaps.append(b""), "2 fields, but covers rows for 1"),
    ]
    for break_overlay, message in breaks:
        fragment = Fragment.decode(table.fragments[0].encode())
        break_overlay(fragment.message.overlays[0])
        with pytest.raises(Corrupt, match=message):
            list(
                read_fragment(location.store, location.codec, fragment, table.manifest.schema, columns=["a"], path="m")
            )


def test_workers_see_and_keep_overlays(tmp_path: Path) -> None:
    """Each verb that workers execute gives the rows that it gives in one process."""
    verbs: list[tuple[Callable[[TableRef], object], Callable[[Table], object]]] = [
        (
            lambda ref: task_update.update(
                ref, {"c": "a"}, "a < 0", limits=FileLimits(), options=WriteOptions(), runner=InProcessWorkers()
            ),
            lambda table: table.update({"c": "a"}, "a < 0"),
        ),
        (
            lambda ref: task_delete.delete(ref, "b = 'newer'", options=WriteOptions(), runner=InProcessWorkers()),
            lambda table: table.delete("b = 'newer'"),
        ),
        (
            lambda ref: task_compact.compact(
                ref, target_rows=100, materialize_deletions=True, remap=None, batch=64, options=WriteOptions(),
                runner=InProcessWorkers(),
            ),
            lambda table: table.compact(target_rows=100),
        ),
    ]  # fmt: skip
    overlaid_table(tmp_path / "workers")
    overlaid_table(tmp_path / "alone")
    for by_workers, alone in verbs:
        by_workers(TableRef(str(tmp_path / "workers"), durable=False))
        alone(Table.open(tmp_path / "alone"))
        assert_reads_agree(tmp_path / "workers")
        found = Table.open(tmp_path / "workers").to_table().sort_by("id").to_pylist()
        assert found == Table.open(tmp_path / "alone").to_table().sort_by("id").to_pylist()
    assert not Table.open(tmp_path / "workers").manifest.has_overlays


@pytest.mark.parametrize("stable", [False, True])
def test_replaced_columns_hide_the_overlays_before_them(tmp_path: Path, stable: bool) -> None:
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "x": pa.array(range(8), pa.int64()), "y": ["a"] * 8})
    lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=4, enable_stable_row_ids=stable)
    commit_overlay(tmp_path / "t", 0, pa.table({"x": pa.array([100, 101], pa.int64())}), [1], [0, 1])
    table = Table.open(tmp_path / "t", durable=False)
    table = table.add_columns({"x": "x + 1000"}, replace=True, where="id in (1, 2)").table
    assert table.to_table()["x"].to_pylist() == [100, 1101, 1002, 3, 4, 5, 6, 7]
    assert_reads_agree(tmp_path / "t")
    commit_overlay(tmp_path / "t", 0, pa.table({"x": pa.array([50], pa.int64())}), [1], [3])
    table = table.refresh().add_columns({"new": "x * 2", "x": "-x"}, replace=True, where="id >= 2").table
    assert table.to_table()["x"].to_pylist() == [100, 1101, -1002, -50, -4, -5, -6, -7]
    assert table.to_table()["new"].to_pylist() == [None, None, 2004, 100, 8, 10, 12, 14]
    assert_reads_agree(tmp_path / "t")
    lance.dataset(str(tmp_path / "t")).optimize.compact_files()
    assert table.refresh().to_table()["x"].to_pylist() == [100, 1101, -1002, -50, -4, -5, -6, -7]


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced column", "input column"])
def test_an_overlay_during_a_computation_makes_it_compute_the_fragment_again(tmp_path: Path, replaced: bool) -> None:
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "x": pa.array(range(8), pa.int64())})
    lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=4)
    calls: list[int] = []

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not calls:
            commit_overlay(tmp_path / "t", 0, pa.table({"x": pa.array([50, 60], pa.int64())}), [1], [2, 3])
        calls.extend(batch["id"].to_pylist())
        return pa.record_batch([pc.add(batch["x"], 1)], names=["x" if replaced else "new"])

    table = Table.open(tmp_path / "t", durable=False)
    table = table.add_columns(compute, replace=replaced, where="id < 3 or id > 5").table
    assert calls == [0, 1, 2, 6, 7, 0, 1, 2]
    expected = [1, 2, 51, 60, 4, 5, 7, 8] if replaced else [1, 2, 51, None, None, None, 7, 8]
    assert table.to_table()["x" if replaced else "new"].to_pylist() == expected
    assert_reads_agree(tmp_path / "t")
