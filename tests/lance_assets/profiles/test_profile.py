"""Profile: the statistics of a version compared with those that Arrow computes from its rows, without Dagster."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.spark_driver import build_table
from lance_assets.common.version_stats import VersionStats
from lance_assets.profiles.column_profile import ColumnProfile, ContentProfile, VectorStats, _add_values
from lance_assets.profiles.profile import Profile, profile_version
from lance_assets.profiles.profile_metadata import metadata_of
from lance_core import Table

HOSTILE = "<script>alert('x')</script>"
PLACE = pa.struct([("city", pa.string()), ("at", pa.struct([("lat", pa.float64())]))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("place", PLACE),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("vec", pa.list_(pa.float32(), 3)),
        pa.field("half", pa.list_(pa.float16(), 2)),
        pa.field(HOSTILE, pa.string()),
    ]
)
NAN, INF = float("nan"), math.inf


def some_rows(first: int, count: int) -> pa.Table:
    def place(n: int) -> object:
        return None if n % 7 == 0 else {"city": None if n % 3 == 0 else "x", "at": None if n % 5 == 0 else {"lat": 1.5}}

    def vector(n: int) -> object:
        odd = {0: None, 1: [0, 0, 0], 2: [NAN, 1, 1], 3: [1, None, 2], 4: [INF, 0, 0]}
        return odd.get(n % 11, [float(n), 0.5, -2.0])

    ids = range(first, first + count)
    return pa.Table.from_pydict(
        {
            "id": list(ids),
            "place": [place(n) for n in ids],
            "tags": [None if n % 4 == 0 else [None, "a"] for n in ids],
            "vec": [vector(n) for n in ids],
            "half": [[np.float16(n % 9), np.float16(2)] for n in ids],
            HOSTILE: [None if n % 2 else "y" for n in ids],
        },
        SCHEMA,
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Table of three fragments, one with deleted rows, and with a column in a separate file."""
    table = Table.create(tmp_path / "t", some_rows(0, 300))
    table = table.append(some_rows(300, 50)).table.append(some_rows(350, 150)).table
    table = table.delete("id >= 20 and id < 60").table
    return table.add_columns({"late": "nullif(id % 6, 2)"}).table


def column(contents: ContentProfile, name: str) -> ColumnProfile:
    (matching,) = [each for each in contents.columns if each.name == name]
    return matching


def vectors_of(rows: pa.Table, name: str) -> tuple[int, int, int, list[float]]:
    vectors = [
        np.array([NAN if x is None else x for x in each], float) for each in rows[name].to_pylist() if each is not None
    ]
    finite = [each for each in vectors if np.isfinite(each).all()]
    norms = [float(np.linalg.norm(each)) for each in finite]
    return len(vectors), len(vectors) - len(finite), norms.count(0.0), norms


def check_profile(stats: VectorStats | None, rows: pa.Table, name: str) -> None:
    count, not_finite, zero, norms = vectors_of(rows, name)
    assert stats is not None
    assert (stats.count, stats.not_finite, stats.zero) == (count, not_finite, zero)
    assert (stats.shortest, stats.longest) == pytest.approx((min(norms), max(norms)))
    assert stats.mean == pytest.approx(sum(norms) / len(norms))


def test_statistics_equal_those_of_the_rows(table: Table) -> None:
    dataset = lance.dataset(table.uri)
    rows, fragments = dataset.to_table(), dataset.get_fragments()
    profile = profile_version(table, Profile())
    assert profile.stats == VersionStats(
        rows=dataset.count_rows(),
        deleted=sum(each.num_deletions for each in fragments),
        fragments=len(fragments),
        small_fragments=3,
        fragments_with_deletions=1,
        files=sum(len(each.data_files()) for each in fragments),
        bytes=sum(file.stat().st_size for file in (Path(table.uri) / "data").iterdir()),
        files_without_size=0,
    )
    assert profile.stats.deleted_share == 40 / 500
    assert (profile.contents.rows_read, profile.contents.is_sampled) == (460, False)
    truth = {name: rows[name].null_count for name in rows.column_names} | {
        path: pc.struct_field(rows["place"], path.split(".")[1:]).null_count
        for path in ("place.city", "place.at", "place.at.lat")
    }
    assert {each.name: each.nulls for each in profile.contents.columns} == truth
    assert not column(profile.contents, "id").can_be_null
    check_profile(column(profile.contents, "vec").vectors, rows, "vec")
    check_profile(column(profile.contents, "half").vectors, rows, "half")


def test_fields_of_null_structs_are_null() -> None:
    """Arrow may store values below a null struct."""
    kind = pa.struct([("city", pa.string())])
    places = pa.StructArray.from_arrays(
        [pa.array(["a", None, "c"])], fields=list(kind), mask=pa.array([True, False, False])
    )
    city = ColumnProfile(("place", "city"), pa.string(), can_be_null=True)
    _add_values(city, places)
    assert city.nulls == 2


def test_older_version(table: Table) -> None:
    profile = profile_version(table.at(1), Profile())
    assert (profile.stats.rows, profile.stats.deleted, profile.stats.fragments) == (300, 0, 1)
    assert "late" not in {each.name for each in profile.contents.columns}
    assert column(profile.contents, HOSTILE).nulls == 150


def test_only_named_columns_are_read(table: Table) -> None:
    contents = profile_version(table, Profile(columns=["vec", "no such column"])).contents
    assert [each.name for each in contents.columns] == ["vec"]
    for file in (Path(table.uri) / "data").iterdir():
        file.unlink()
    assert profile_version(table, Profile(columns=[])).contents.columns == ()
    assert profile_version(table, Profile(columns=["id"])).contents.rows_read == 460


def test_large_tables_are_sampled_from_end_to_end(tmp_path: Path) -> None:
    """The first half of the rows has nulls, and only the last row has a different vector."""
    count = 20_000
    values = np.ones((count, 4), np.float32)
    values[-1] = 7
    vec = pa.FixedSizeListArray.from_arrays(values.ravel(), 4)
    rows = pa.table({"n": pa.array([None] * (count // 2) + [1] * (count // 2), pa.int64()), "vec": vec})
    table = Table.create(tmp_path / "t", rows, max_rows_per_file=3_000)
    sampled = profile_version(table, Profile(read_bytes_max=24 * 1_600))
    assert (sampled.contents.rows_read, sampled.contents.is_sampled) == (1_600, True)
    assert column(sampled.contents, "n").nulls == 800
    vectors = column(sampled.contents, "vec").vectors
    assert vectors is not None
    assert (vectors.count, vectors.shortest, vectors.longest) == (1_600, 2.0, 14.0)
    metadata_by_name = {name: value.value for name, value in metadata_of(sampled, pictures=False).items()}
    assert "a sample: 1,600 of 20,000 rows (8.00%)" in str(metadata_by_name["lance/read"])
    assert metadata_by_name["lance/null_share/n"] == 0.5
    assert not [
        name
        for name in metadata_by_name
        if name.startswith(("lance/nulls/", "lance/zero_vectors/", "lance/nan_vectors/"))
    ]
    complete = profile_version(table, Profile(read_bytes_max=24 * count))
    assert not complete.contents.is_sampled
    tiny = profile_version(table, Profile(read_bytes_max=1))
    assert tiny.contents.rows_read == 1


def test_vectors_whose_squares_overflow(tmp_path: Path) -> None:
    kind = pa.list_(pa.float64(), 2)
    rows = pa.table({"v": pa.array([[3e200, 4e200], [NAN, 1.0], None, [0.0, 0.0]], kind)})
    vectors = column(profile_version(Table.create(tmp_path / "t", rows), Profile()).contents, "v").vectors
    assert vectors is not None
    assert (vectors.count, vectors.zero, vectors.not_finite, vectors.shortest) == (3, 1, 1, 0)
    assert vectors.longest == pytest.approx(5e200)


EMPTY: tuple[tuple[str, Callable[[Path], Table]], ...] = (
    ("no rows ever", lambda path: Table.create(path, SCHEMA)),
    ("all deleted", lambda path: Table.create(path, some_rows(0, 9)).delete("true").table),
    ("only null vectors", lambda path: Table.create(path, some_rows(0, 1))),
)


@pytest.mark.parametrize("make", [make for _, make in EMPTY], ids=[name for name, _ in EMPTY])
def test_empty_table_and_no_columns(tmp_path: Path, make: Callable[[Path], Table]) -> None:
    table = make(tmp_path / "t")
    profile = profile_version(table, Profile())
    assert profile.contents.rows_read == profile.stats.rows == table.count_rows()
    metadata_by_name = metadata_of(profile, pictures=True)
    assert not [name for name in metadata_by_name if name.startswith("lance/norm_") and "vec" in name]
    assert "lance/bytes_per_row" in metadata_by_name or not table.count_rows()


def test_number_of_columns_is_bounded(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({f"c{number}": [None, 1] for number in range(300)}))
    profile = profile_version(table, Profile())
    assert (len(profile.contents.columns), profile.contents.columns_skipped) == (200, 100)
    metadata_by_name = metadata_of(profile, pictures=True)
    assert "100 more columns are not profiled; the table shows the first 60" in str(
        metadata_by_name["lance/read"].value
    )
    assert len(str(metadata_by_name)) < 60_000
    assert sum(name.startswith("lance/null_share/") for name in metadata_by_name) == 20


PLOTTED = {
    "lance/version": 5, "lance/rows": 460, "lance/deleted_rows": 40, "lance/deleted_share": 0.08, "lance/fragments": 3,
    "lance/small_fragments": 3, "lance/fragments_with_deletions": 1, "lance/data_files": 6, "lance/columns": 7,
    "lance/indices": 0, "lance/rows_read": 460,
}  # fmt: skip


def test_metadata_names_of_plots(table: Table) -> None:
    """The names are stable, since a plot over versions uses one name."""
    metadata = metadata_of(profile_version(table, Profile()), pictures=True)
    metadata_by_name = {name: value.value for name, value in metadata.items()}
    assert metadata_by_name | PLOTTED == metadata_by_name
    assert (metadata_by_name["lance/operation"], metadata_by_name["lance/read"]) == ("Merge", "all 460 rows")
    names = {name for name, value in metadata_by_name.items() if isinstance(value, int | float)} - PLOTTED.keys()
    nullable = ["place", "place.at", "place.at.lat", "place.city", "tags", "vec", "half", HOSTILE, "late"]
    figures = ["norm_min", "norm_mean", "norm_max", "zero_vectors", "nan_vectors"]
    assert names == {
        "lance/bytes",
        "lance/bytes_per_row",
        "lance/committed_at",
        "lance/seconds",
        *(f"lance/{statistic}/{name}" for statistic in ("nulls", "null_share") for name in nullable),
        *(f"lance/{statistic}/{name}" for statistic in figures for name in ("vec", "half")),
    }
    assert metadata_by_name[f"lance/null_share/{HOSTILE}"] == pytest.approx(0.5)
    assert [record.data["column"] for record in metadata["lance/columns_profile"].records][:2] == ["id", "place"]  # type: ignore[attr-defined]
    for name in ("lance/fragment_map", "lance/version_graph"):
        assert str(metadata_by_name[name]).startswith("![")
        assert len(str(metadata_by_name[name])) < 10_000


def test_five_thousand_fragments_take_less_than_a_second(tmp_path: Path) -> None:
    table = Table.open(build_table(tmp_path / "t", 5_000, rows_per_fragment=10))
    started = time.thread_time()  # thread time excludes waiting on a busy machine
    metadata_by_name = metadata_of(profile_version(table, Profile(columns=[])), pictures=True)
    assert time.thread_time() - started < 1
    assert (metadata_by_name["lance/fragments"].value, metadata_by_name["lance/rows"].value) == (5_000, 50_000)
